"""What would I gain? Policies, and peers, side by side on paper: an epoch's plans, made, timed and measured.

Nothing is trained and torch is not imported; a peer may import it.
"""

import gc
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, fields, replace
from time import perf_counter
from typing import Any

import numpy as np

from ddpsched.config import RunConfig, parse
from ddpsched.costs.cost_model import AffineQuadratic, Floored
from ddpsched.costs.kinds import CostModel, Int, cost_model
from ddpsched.data.lengths import KnownLengths
from ddpsched.errors import ConfigError, DdpschedError, PeerMissing
from ddpsched.exchange import LocalExchange
from ddpsched.orders.epoch_order import epoch_order
from ddpsched.peers import PEERS, Problem
from ddpsched.peers.budget import fit_budget
from ddpsched.plan import StepPlan
from ddpsched.planning.planner import num_steps, plan_steps
from ddpsched.planning.yardstick import Ruler, Yardstick

MICROBATCHES = 4  # of the arm with several, where no most is given
POOL, POOL_BATCHES = 32, 4  # samples in a rank's pool: its default, or as many batches where that is more

Arm = dict[str, dict[str, Any]]  # tables of a config: [policy], and what else is different from static
# what says how large a step of these is; it is found so that a step has B samples on average
FITTED = {"token_budget": "max_tokens_for_batch", "bins": "median_batch", "pool": "max_tokens_for_batch"}


@dataclass(frozen=True)
class Question:
    """What is compared: the same samples in the same order for every arm.

    ``lengths``: (N,), int64. ``cost``: the ``[cost]`` table of a config, which plans and scores; ``memory`` likewise,
    with a budget where plans are capped. ``time``: a cost in nanoseconds for the predicted step time.
    """

    lengths: Int
    world_size: int
    global_batch: int
    max_microbatches: int | None = None
    lookahead: int = 1
    prefetch: int | None = None
    epochs: int = 1
    seed: int = 0
    cost: dict[str, Any] | None = None
    memory: dict[str, Any] | None = None
    time: CostModel | None = None

    @property
    def caps(self) -> list[int] | None:
        """Bytes that each rank may use; None where memory is no matter."""
        budget = (self.memory or {}).get("budget_bytes")
        return None if budget is None else [budget] * self.world_size

    def config(self, arm: Arm) -> RunConfig:
        """The run that this arm would be. Raises ConfigError."""
        prefetch = self.prefetch or -(-2 * self.global_batch // self.world_size)
        return parse(
            {
                "epochs": self.epochs,
                "data": {"max_length": max(3, int(self.lengths.max())), **arm.get("data", {})},
                "order": arm.get("order", {}),
                "seed": self.seed,
                "global_batch": self.global_batch,
                "world_size": self.world_size,
                "policy": {"prefetch": prefetch, **arm["policy"]},
                "cost": self.cost or {},
                "memory": self.memory or {},
                "executor": {"kind": "simulated"},
            },
            source="ddpsched plan",
        )


@dataclass(frozen=True)
class Row:
    """One arm's figures, or why it has none."""

    arm: str
    figures: Yardstick | None = None
    planning_us: float | None = None  # per sample, from the step's ids and lengths to its plan and digest
    gap: float | None = None  # sum of makespans / sum of lower bounds - 1; None where the method has no bound
    skipped: str | None = None
    options: dict[str, Any] | None = None  # of [policy], where some were found for the question

    def flat(self) -> dict[str, Any]:
        """One level, for JSON and frames."""
        figures = (
            dict.fromkeys(field.name for field in fields(Yardstick)) if self.figures is None else asdict(self.figures)
        )
        return {
            "arm": self.arm,
            **figures,
            "planning_us": self.planning_us,
            "gap": self.gap,
            "skipped": self.skipped,
            "options": self.options,
        }


def arms(question: Question, policies: Sequence[str]) -> dict[str, Arm]:
    """Name -> tables of a config: those named, or all that apply."""
    most, ahead = question.max_microbatches, question.lookahead
    if policies:
        return dict(_arm(question, kind, most or 1, ahead) for kind in policies)
    chosen = [_arm(question, kind, 1, 1) for kind in ("static", "minmax", "balanced")]
    if (most or MICROBATCHES) > 1:
        chosen.append(_arm(question, "balanced", most or MICROBATCHES, 1))
    chosen.append(_arm(question, "packed", 1, 1))
    if ahead > 1:
        chosen += [_arm(question, "balanced", m, ahead) for m in (1, most or MICROBATCHES)]
        chosen.append(_arm(question, "packed", 1, ahead))
    chosen += [_arm(question, kind, 1, 1) for kind in FITTED]
    pool = dict(chosen)["pool"]["policy"]
    return {
        "padded to the longest": {"policy": {"kind": "static"}, "data": {"pad_to": "max_length"}},
        **dict(chosen),
        "pool, packed": {"policy": {**pool, "sequence_packing": True}},
        "static, length_grouped": {"policy": {"kind": "static"}, "order": {"kind": "length_grouped"}},
    }


def _arm(question: Question, kind: str, most: int, ahead: int) -> tuple[str, Arm]:
    policy: dict[str, Any] = {"kind": kind}
    words = [kind]
    if kind == "token_budget":
        policy["max_tokens_for_batch"] = int(question.lengths.max())
    if kind == "pool":
        policy["pool_size"] = max(POOL, POOL_BATCHES * question.global_batch // question.world_size)
    if kind == "balanced" and most > 1:
        policy["max_microbatches"] = most
        words.append(f"M = {most}")
    if kind in ("balanced", "packed") and ahead > 1:
        policy["lookahead"] = ahead
        words.append(f"W = {ahead}")
    return ", ".join(words), {"policy": policy}


def fitted(question: Question, arm: Arm) -> RunConfig:
    """The run of an arm, its budget or batch size such that the first epoch's steps have B samples on average."""
    key = FITTED.get(arm["policy"]["kind"])
    if key is None:
        return question.config(arm)
    source, caps = KnownLengths(question.lengths), question.caps

    def config(value: int) -> RunConfig:
        return question.config({**arm, "policy": {**arm["policy"], key: value}})

    def mean(value: int) -> float:
        return len(question.lengths) / num_steps(config(value).model_copy(update={"epochs": 1}), source, caps)

    share = question.global_batch / question.world_size
    tokens = key == "max_tokens_for_batch"
    lowest, guess = (int(question.lengths.max()), share * float(question.lengths.mean())) if tokens else (1, share)
    target = min(question.global_batch, len(question.lengths))
    return config(fit_budget(mean, target, lowest, max(1, round(guess))))


def compare(question: Question, policies: Sequence[str] = (), peers: Sequence[str] = ()) -> Iterator[Row]:
    """A row for each policy and peer, as it is done. Raises ConfigError for what no arm could plan."""
    for name, arm in arms(question, policies).items():
        try:
            yield measure(question, name, fitted(question, arm))
        except DdpschedError as error:
            if policies:  # asked for by name: its fault is the answer
                raise
            yield Row(name, skipped=str(error))
    for name in peers:
        if name not in PEERS:
            raise ConfigError(f"peer {name!r} is none of: {', '.join(PEERS)}")
        try:
            yield _peer(question, name)
        except PeerMissing as error:
            yield Row(name, skipped=error.reason)


def plans(question: Question, config: RunConfig) -> Iterator[StepPlan]:
    """All plans of the epochs asked for."""
    exchange = LocalExchange(question.world_size)
    return plan_steps(config, KnownLengths(question.lengths), exchange, question.caps)


def measure(question: Question, name: str, config: RunConfig) -> Row:
    """Plan every epoch, timed; then score it."""
    packed, cost = config.policy.packs, cost_model(config.cost)
    ruler = Ruler(question.lengths, question.world_size, cost, packed, question.time)
    gc.collect()
    gc.freeze()  # what earlier arms left behind is not for this one to be searched for garbage
    try:
        made = list(plans(question, config))
    finally:
        gc.unfreeze()
    times = [plan.times for plan in made]
    seconds = sum((t.offer_s or 0.0) + (t.exchange_s or 0.0) + (t.solve_s or 0.0) for t in times)
    for epoch in range(question.epochs):
        steps = [plan for plan in made if plan.epoch == epoch]
        ruler.add_epoch(
            [[[micro.ids for micro in rank] for rank in plan.ranks] for plan in steps],
            [max(micro.pad_to for rank in plan.ranks for micro in rank) for plan in steps],
        )
    bounds = [(max(plan.predicted_cost), plan.lower_bound) for plan in made if plan.predicted_cost and plan.lower_bound]
    gap = sum(cost for cost, _ in bounds) / sum(bound for _, bound in bounds) - 1 if bounds else None
    found = None
    if config.policy.fills:
        found = config.policy.model_dump(exclude_defaults=True, exclude={"prefetch"})
    planning_us = seconds / (len(question.lengths) * question.epochs) * 1e6
    return Row(name, ruler.read(), planning_us, gap, options=found)


def _peer(question: Question, name: str) -> Row:
    peer = PEERS[name]
    config = question.config({"policy": {"kind": "static"}})
    cost = cost_model(config.cost)
    if peer.packed and not isinstance(cost, AffineQuadratic | Floored):
        return Row(name, skipped=f"packed rows have no cost.kind = {config.cost.kind!r}")
    ruler = Ruler(question.lengths, question.world_size, cost, peer.packed, question.time)
    problem = Problem(
        lengths=question.lengths,
        order=np.arange(len(question.lengths)),
        world_size=question.world_size,
        global_batch=question.global_batch,
        max_microbatches=question.max_microbatches or MICROBATCHES,
        seed=question.seed,
        cost=cost,
    )
    seconds = 0.0
    for epoch in range(question.epochs):
        order = epoch_order(config, KnownLengths(question.lengths), epoch)
        problem = peer.fitted(replace(problem, order=order, epoch=epoch))
        next(peer.steps(problem), None)  # what is imported for the first step is no planning
        begin = perf_counter()
        steps = list(peer.steps(problem))
        seconds += perf_counter() - begin
        ruler.add_epoch(steps)
    return Row(name, ruler.read(), seconds / (len(question.lengths) * question.epochs) * 1e6)
