"""Plans of every policy as each rank makes them: ``python -m experiments.reliability.plan_streams STEPS SEED``.

Printed is a JSON object: of each case a digest of all of its plans, by stream. The stream "all" is a process that runs
every rank; the stream of a rank is shown the table of offers that all ranks made. At each step the streams plan in
another order, and the ranks of "all" lie in another order than their numbers: both are drawn by SEED. All digests of a
case must be equal, whatever the order, and whatever PYTHONHASHSEED the process has.
"""

import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import blake2b
from typing import Any

import numpy as np

from ddpsched.costs.cost_model import CostModel
from ddpsched.costs.memory_cap import Cap, MemoryModel, probed
from ddpsched.costs.rank_speed import Speed
from ddpsched.data.embedded.length_histogram import sst2_lengths
from ddpsched.data.lengths import KnownLengths
from ddpsched.exchange import LocalExchange, Messages
from ddpsched.orders.config import OrderConfig
from ddpsched.orders.epoch_order import Order
from ddpsched.planning.plan_spec import PlanSpec
from ddpsched.planning.planner import plan_steps
from ddpsched.planning.policies import POLICIES
from ddpsched.step_plan import StepPlan

NUM_SAMPLES = 4000
LINEAR = CostModel(1e-3, 1e-5, 1e-8, delta=1e-6)
BYTES = MemoryModel(base=0.0, per_sample=10.0, per_token=3.0, per_square=0.1)


@dataclass(frozen=True)
class Case:
    """A policy with what its plans depend on. ``caps``: samples of the longest length that each rank holds.

    ``speeds``: ranks report measured speeds, which differ from step to step.
    """

    policy: Mapping[str, Any]
    ranks: int = 4
    global_batch: int = 32
    order: Mapping[str, Any] = field(default_factory=dict)
    caps: tuple[Cap, ...] | None = None
    speeds: bool = False


def _room(*tokens: int) -> tuple[Cap, ...]:
    return tuple(Cap(int(BYTES.bytes(1, each)), BYTES.sample) for each in tokens)


CASES = {
    "static": Case({"kind": "static"}, order={"kind": "length_grouped"}),
    "minmax": Case({"kind": "minmax", "prefetch": 16}),
    "minmax, 8 ranks": Case({"kind": "minmax", "prefetch": 64}, ranks=8, global_batch=128),
    "minmax, caps": Case({"kind": "minmax", "prefetch": 24}, caps=tuple(probed(n, 66) for n in (4, 6, 9, 20))),
    "minmax, speeds": Case({"kind": "minmax", "prefetch": 24}, speeds=True),
    "balanced": Case({"kind": "balanced"}),
    "balanced, M = 4": Case({"kind": "balanced", "max_microbatches": 4}, global_batch=64),
    "balanced, lookahead": Case({"kind": "balanced", "lookahead": 4}, ranks=8, global_batch=64),
    "balanced, caps": Case({"kind": "balanced", "max_microbatches": 3}, caps=_room(400, 500, 600, 900)),
    "balanced, speeds": Case({"kind": "balanced", "max_microbatches": 2}, ranks=3, global_batch=30, speeds=True),
    "balanced, curriculum": Case({"kind": "balanced"}, order={"kind": "curriculum", "window": 320}),
    "packed": Case({"kind": "packed", "lookahead": 2}),
    "packed, caps and speeds": Case({"kind": "packed"}, caps=_room(300, 400, 400, 700), speeds=True),
    "token_budget": Case({"kind": "token_budget", "max_tokens_for_batch": 512}),
    "token_budget, same shape": Case(
        {"kind": "token_budget", "max_tokens_for_batch": 512, "same_shape": True, "batches_per_optimizer_step": 2}
    ),
    "bins": Case({"kind": "bins", "median_batch": 8, "per_rank_bins": True}),
    "bins, replacement": Case({"kind": "bins", "median_batch": 8, "replacement": True}),
    "pool": Case({"kind": "pool", "max_tokens_for_batch": 512}),
    "pool, first": Case({"kind": "pool", "max_tokens_for_batch": 512, "strategy": "prefer_first"}, ranks=8),
    "pool, packed": Case({"kind": "pool", "max_tokens_for_batch": 512, "sequence_packing": True}),
}


class Shuffled(LocalExchange):
    """An exchange of a process that runs all ranks, in this order; it keeps the last table of offers."""

    def __init__(self, ranks: Sequence[int]) -> None:
        self.ranks = tuple(ranks)
        self.table: Messages | None = None

    def offer(self, rows: Messages) -> Messages:
        """Return the rows by rank."""
        self.table = np.empty_like(rows)
        self.table[list(self.ranks)] = rows
        return self.table


class Shown(LocalExchange):
    """An exchange of one rank, which is shown the others' offers as ``source`` gathered them."""

    def __init__(self, rank: int, source: Shuffled) -> None:
        self.ranks, self._source = (rank,), source

    def offer(self, rows: Messages) -> Messages:
        """Return the table of all ranks with this rank's own row in its place."""
        assert self._source.table is not None, "the process of all ranks plans each step first"
        table = self._source.table.copy()
        table[self.ranks[0]] = rows[0]
        return table


class Stream:
    """The plans of one process, and a digest of those made so far."""

    def __init__(self, spec: PlanSpec, lengths: KnownLengths, exchange: LocalExchange) -> None:
        self._ranks = exchange.ranks
        self._speeds = [Speed() for _ in exchange.ranks] if spec.refined else None
        self._plans = plan_steps(spec, lengths, exchange, self._speeds)
        self._digest = blake2b(digest_size=8)

    @property
    def digest(self) -> str:
        """The digest, hexadecimal."""
        return self._digest.hexdigest()

    def advance(self) -> None:
        """Make one plan, and measure each rank's speed in it."""
        plan = next(self._plans)
        self._digest.update(_bytes_of(plan))
        for rank, speed in zip(self._ranks, self._speeds or (), strict=self._speeds is not None):
            speed.add(1_000_000, 1e-3 * (1 + (7 * rank + 3 * plan.step) % 11 / 5))


def _bytes_of(plan: StepPlan) -> bytes:
    """Return all that a plan holds but its times: beside its digest the costs, their proof and the position."""
    proof = (plan.predicted_cost, plan.lower_bound, plan.status, plan.tie_break, plan.method)
    after = None if plan.after is None else plan.after.as_dict()
    return f"{plan.digest_hex} {proof} {after}\n".encode()


def digests(case: Case, steps: int, seed: int) -> dict[str, str]:
    """Return the digest of each stream of a case after so many steps."""
    rng = np.random.default_rng(seed)
    lengths = KnownLengths(sst2_lengths(NUM_SAMPLES, np.random.default_rng(1)))
    spec = PlanSpec(
        case.ranks,
        case.global_batch,
        POLICIES[case.policy["kind"]](**case.policy),
        seed=3,
        steps=steps,
        order=Order(OrderConfig(**case.order)),
        cost=LINEAR,
        caps=case.caps,
        max_length=66,
        refined=case.speeds,
    )
    shuffled = Shuffled(rng.permutation(case.ranks).tolist())
    everything = Stream(spec, lengths, shuffled)
    ranks = [Stream(spec, lengths, Shown(rank, shuffled)) for rank in range(case.ranks)]
    for _ in range(steps):
        everything.advance()
        for rank in rng.permutation(case.ranks).tolist():
            ranks[rank].advance()
    return {"all": everything.digest} | {f"rank {rank}": each.digest for rank, each in enumerate(ranks)}


def shares(steps: int) -> dict[str, int]:
    """Return the steps of each case, which add up to ``steps``."""
    return {name: len(range(place, steps, len(CASES))) for place, name in enumerate(CASES)}


def main(words: Sequence[str]) -> int:
    """Print the digests of all cases."""
    steps, seed = map(int, words)
    print(json.dumps({name: digests(CASES[name], share, seed) for name, share in shares(steps).items() if share}))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
