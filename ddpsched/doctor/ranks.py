"""A world of two ranks over gloo: sums, offers and votes, clocks; then rank 1 is killed while rank 0 waits for it."""

import os
import signal
import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from ddpsched.doctor.clocks import judge_offsets
from ddpsched.doctor.finding import Finding, Setting, one_line, why_failed
from ddpsched.exchange import Flag, offer_row, read_offers, verdict, vote_row
from ddpsched.local_ranks import Outcome, at_fault, post, run_ranks

RANKS, VICTIM, VOTES = 2, 1, 200
TIMEOUT_S = 5.0  # that a collective waits
SLOW_VOTE_S = 0.01  # a step casts one
GLOO = (
    "let processes connect to 127.0.0.1 (firewall, container), or install torch again; else use executor.kind=virtual"
)


@dataclass(frozen=True)
class Met:
    """Results of one rank's collectives.

    ``sums``: of 1, 2, ... and of 10, 20, ... over ranks. ``offers``: the costs of every rank's offer. ``objection``:
    what the votes make of a step to which rank 1 objects; ``accord``: of one to which nobody does. ``vote_s``: the
    median time of a vote. ``clocks``: offset and largest error by rank.
    """

    sums: list[int]
    offers: list[list[int]]
    accord: str
    objection: str
    vote_s: float
    clocks: list[tuple[float, float]]


@dataclass(frozen=True)
class Alone:
    """A rank's wait for one that had been killed: how long it took, and the error that ended it."""

    waited_s: float
    error: str


def check(_: Setting) -> list[Finding]:
    """Return the findings on collectives, clocks and a rank that is killed."""
    outcomes = run_ranks(_meet, RANKS, timeout_s=2 * TIMEOUT_S, limit_s=4 * TIMEOUT_S)
    met = [each for outcome in outcomes for each in outcome.posts if isinstance(each, Met)]
    if len(met) < RANKS:
        return [Finding("two ranks", "fail", why_failed(outcomes), GLOO)]
    return [judge_met(met), judge_offsets(met[0].clocks), judge_killed(outcomes)]


def judge_met(met: Sequence[Met]) -> Finding:
    """Return the finding on what the ranks got from each other."""
    expected = [sum(range(1, RANKS + 1)), 10 * sum(range(1, RANKS + 1))]
    costs = [[_cost(rank)] * 4 for rank in range(RANKS)]
    wrong = [
        f"rank {rank}: {what} {got}, expected {right}"
        for rank, each in enumerate(met)
        for what, got, right in (
            ("sums over ranks are", each.sums, expected),
            ("offers are", each.offers, costs),
            ("votes of ranks that agree say", each.accord or "go on", "go on"),
            ("votes with an objection of rank 1 say", each.objection or "go on", _objected()),
        )
        if got != right
    ]
    if wrong:
        return Finding("two ranks", "fail", one_line("; ".join(wrong), 480), f"gloo changes messages here: {GLOO}")
    vote_s = max(each.vote_s for each in met)
    says, numbers = f"sums, offers and votes are right; a vote takes {1e3 * vote_s:.2f} ms", {"vote_s": vote_s}
    if vote_s > SLOW_VOTE_S:
        remedy = "start fewer ranks than processors, and end other programs: every step casts a vote"
        return Finding("two ranks", "warn", f"{says}, more than {1e3 * SLOW_VOTE_S:.0f} ms", remedy, numbers)
    return Finding("two ranks", "ok", says, numbers=numbers)


def judge_killed(outcomes: Sequence[Outcome]) -> Finding:
    """Return the finding on the rank that was killed: whether the other noticed, and whom ``at_fault`` names."""
    name, remedy = "killed rank", f"set executor.timeout_s low, as a lost rank is noticed by its time-out alone; {GLOO}"
    alone = [each for outcome in outcomes for each in outcome.posts if isinstance(each, Alone)]
    if not alone or alone[0].waited_s > TIMEOUT_S:
        return Finding(name, "fail", f"rank 0 waited more than {TIMEOUT_S:.0f} s for a rank that had died", remedy)
    if not alone[0].error:
        return Finding(name, "fail", "a collective succeeded without the rank that had been killed", GLOO)
    named = [each.rank for each in at_fault(outcomes)]
    if named != [VICTIM]:
        says = f"rank {VICTIM} was killed, and rank(s) {', '.join(map(str, named)) or 'none'} named"
        return Finding(name, "fail", f"{says}: {why_failed(outcomes)}", "report it with this line")
    numbers = {"noticed_s": alone[0].waited_s}
    how = at_fault(outcomes)[0].brief
    says = f"noticed by the other in {1e3 * alone[0].waited_s:.0f} ms, and named: rank {VICTIM} {how}"
    return Finding(name, "ok", says, numbers=numbers)


def _meet() -> None:
    """Exchange messages and post them; then wait for rank 1, which is killed. Runs on every rank."""
    from ddpsched.local_ranks import join_group
    from ddpsched.training.group_exchange import GroupExchange
    from ddpsched.world import World

    join_group(TIMEOUT_S)
    world = World.detect()
    exchange = GroupExchange(world, TIMEOUT_S)
    sums = exchange.sum_batch([world.rank + 1, 10 * (world.rank + 1)]).wait()
    offer = offer_row(0, 0, np.full(4, _cost(world.rank), dtype=np.int64), 4, 4)
    costs, _ = read_offers(exchange.offer(offer[None]), 0, 0)
    went = []
    for flag in (Flag.OK, Flag.NON_FINITE if world.rank == VICTIM else Flag.OK):
        went.append(verdict(exchange.vote(_vote(flag)[None])))
    seconds = []
    for _ in range(VOTES):
        begin = time.perf_counter()
        exchange.vote(_vote(Flag.OK)[None])
        seconds.append(time.perf_counter() - begin)
    clocks = [(each.offset_s, each.uncertainty_s) for each in exchange.clock_offsets()]
    accord, objection = ("" if each is None else str(each) for each in went)
    post(Met(sums, costs.tolist(), accord, objection, statistics.median(seconds), clocks))
    exchange.barrier()
    if world.rank == VICTIM:
        os.kill(os.getpid(), signal.SIGKILL)
    begin = time.monotonic()
    try:
        exchange.barrier()
    except RuntimeError as error:
        post(Alone(time.monotonic() - begin, str(error)))
        raise
    post(Alone(time.monotonic() - begin, ""))


def _cost(rank: int) -> int:
    """Return the cost that a rank offers: large enough that a message of 32 bits would cut it."""
    return (rank + 1) * 2**40 + rank


def _vote(flag: Flag) -> "np.ndarray[tuple[int], np.dtype[np.int64]]":
    return vote_row(step=0, digest=2**60 + 1, flags=flag, count=3, longest=7)


def _objected() -> str:
    """Return what votes say where rank 1 objects."""
    return str(verdict(np.stack([_vote(Flag.NON_FINITE if rank == VICTIM else Flag.OK) for rank in range(RANKS)])))
