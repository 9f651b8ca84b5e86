"""The first difference between two ranks' plans of a step, shown with both plans.

Ranks find by their votes that a plan differs; then each gathers all plans, by two messages of fixed shape: the lengths,
and the plans padded to the longest.
"""

from collections.abc import Iterator

import numpy as np

from ddpsched.exchange import Exchange, Messages, differing
from ddpsched.parts import Part
from ddpsched.step_plan import Microbatch, StepPlan

MOST_SHOWN = 2000  # characters of each plan


def difference(plan: StepPlan, votes: Messages, exchange: Exchange) -> str:
    """Return the plan of a rank that differs, that of the other ranks, and where they differ first.

    Every rank calls it, with its own ``plan`` and the gathered votes. The text is the same on all ranks.
    """
    own = encode(plan)
    lengths = exchange.vote(np.array([[len(own)]], dtype=np.int64))[:, 0]
    row = np.zeros((1, int(lengths.max())), dtype=np.int64)
    row[0, : len(own)] = own
    table = exchange.vote(row)
    plans = [decode(values[:length]) for values, length in zip(table, lengths, strict=True)]
    odd = differing(votes)[0]
    other = next(rank for rank, digest in enumerate(votes[:, 2]) if digest != votes[odd, 2])
    return (
        f"first difference: {first_difference(plans[odd], plans[other], odd, other)}\n"
        f"rank {odd}'s plan: {shown(plans[odd])}\nrank {other}'s plan: {shown(plans[other])}"
    )


def first_difference(one: StepPlan, two: StepPlan, rank_one: int, rank_two: int) -> str:
    """Return the first thing in which the plans of two ranks differ, with both values."""
    mine, theirs = dict(_parts(one)), dict(_parts(two))
    for name in mine | theirs:
        if mine.get(name) != theirs.get(name):
            values = mine.get(name, "not there"), theirs.get(name, "not there")
            return f"{name} is {values[0]} by rank {rank_one}, {values[1]} by rank {rank_two}"
    return "none"  # their digests differ, but not what they run: one of the ranks computes it in another way


def _parts(plan: StepPlan) -> Iterator[tuple[str, str]]:
    yield "the epoch", str(plan.epoch)
    yield "the number of ranks", str(plan.world_size)
    for rank, micros in enumerate(plan.ranks):
        for place, micro in enumerate(micros):
            yield f"micro-batch {place} of rank {rank}", _described(micro)


def _described(micro: Microbatch) -> str:
    words = " packed" * micro.packed + f" padded to {micro.pad_to}" * bool(micro.pad_to)
    if micro.part is not None:
        words += f" part {micro.part.index} of {micro.part.count}, tokens {list(map(list, micro.part.ranges))}"
    return f"{micro.ids.tolist()}{words}"


def shown(plan: StepPlan) -> str:
    """Return the micro-batches of each rank, cut where they are many."""
    text = "; ".join(f"{rank}: {' '.join(map(_described, micros))}" for rank, micros in enumerate(plan.ranks))
    return text if len(text) <= MOST_SHOWN else f"{text[:MOST_SHOWN]} ... ({plan.global_batch} samples)"


def encode(plan: StepPlan) -> Messages:
    """Return a plan as integers: epoch, step, ranks, and of each rank its micro-batches with ids and parts."""
    values = [plan.epoch, plan.step, plan.world_size]
    for micros in plan.ranks:
        values.append(len(micros))
        for micro in micros:
            values += [len(micro), int(micro.packed), micro.pad_to, *micro.ids.tolist()]
            values += [0, 0, 0] if micro.part is None else micro.part.numbers()
    return np.array(values, dtype=np.int64)


def decode(values: Messages) -> StepPlan:
    """Return the plan that ``encode`` made integers of."""
    rest = iter(values.tolist())
    epoch, step, size = next(rest), next(rest), next(rest)
    ranks = []
    for _ in range(size):
        micros = []
        for _ in range(next(rest)):
            count, packed, pad_to = next(rest), bool(next(rest)), next(rest)
            ids = np.array([next(rest) for _ in range(count)], dtype=np.int64)
            index, parts, number = next(rest), next(rest), next(rest)
            ranges = tuple((next(rest), next(rest)) for _ in range(number))
            micros.append(Microbatch(ids, packed, pad_to, Part(index, parts, ranges) if parts else None))
        ranks.append(tuple(micros))
    return StepPlan(epoch, step, tuple(ranks))
