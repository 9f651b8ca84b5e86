"""bins: samples sorted into ranges of length, each with a batch size of its own.

A step draws a bin, and every rank takes that bin's batch size from it. Here each
sample comes once an epoch: the epoch's batches, all bins' together, are shuffled,
so that bins come in proportion to the batches they hold and all are spent
together. ``replacement = true`` is the well-known recipe: each step draws a bin
by the samples it holds, a bin is reshuffled when it cannot fill a batch, and
samples repeat and are left out.
"""

from collections.abc import Iterator
from itertools import pairwise
from typing import Annotated, Literal

import numpy as np
from pydantic import Field, model_validator

from ddpsched.costs.cost_model import Int
from ddpsched.errors import ConfigError, InfeasibleError
from ddpsched.planning.assignment import Assignment
from ddpsched.planning.policies.filling import FillingPolicy, Supply, Tokens
from ddpsched.table import Positive

OURS = (2.0, 1.0, 0.75, 0.5)  # times the median batch: roughly as many tokens a batch in every bin
SOURCE = (2.0, 1.0, 1.5, 0.5)  # the recipe's, whose third bin is larger than its second

Bin = tuple[int, int, int]  # from, to, batch size
Step = list[Int]  # positions of each micro-batch; micro-batch k is rank k % world_size's


def default_bins(longest: int, median_batch: int, replacement: bool) -> list[Bin]:
    """Four quarters of the longest length, batch sizes by it; fewer where the longest has fewer than four tokens.

    >>> default_bins(66, 32, replacement=False)
    [(1, 16, 64), (17, 33, 32), (34, 49, 24), (50, 66, 16)]
    """
    edges = [longest * quarter // 4 for quarter in range(5)]
    sizes = [max(1, round(times * median_batch)) for times in (SOURCE if replacement else OURS)]
    return [(low + 1, high, size) for (low, high), size in zip(pairwise(edges), sizes, strict=True) if high > low]


class Bins(FillingPolicy):
    """Steps of one bin (of a bin for each rank with ``per_rank_bins``), ``batches_per_optimizer_step`` times a rank.

    What a bin has left over is dealt evenly.
    """

    kind: Literal["bins"] = "bins"
    # [from, to, batch size] of each
    bins: Annotated[list[Annotated[list[Tokens], Field(min_length=3, max_length=3)]], Field(min_length=1)] | None = None
    median_batch: Positive = 64  # bins by default: four quarters of the longest; 2, 1, 3/4 and 1/2 times this
    per_rank_bins: bool = False  # each rank draws its own bin
    replacement: bool = False  # bins drawn by what they hold, again and again: samples repeat and are left out

    @property
    def repeats(self) -> bool:
        return self.replacement

    @model_validator(mode="after")
    def _belong_together(self) -> "Bins":
        for (_, high, _), (low, _, _) in pairwise(self.bins or []):
            if low != high + 1:
                what = f"a gap: lengths {high + 1} to {low - 1} have" if low > high else "an overlap: some lengths have"
                raise ValueError(f"bins = {self.bins} leave {what} no bin of their own; bin after bin must follow on")
        if self.bins is not None and self.median_batch != type(self).model_fields["median_batch"].default:
            raise ValueError("median_batch sizes the four default bins; bins of your own bring their batch sizes")
        for low, high, _ in self.bins or []:
            if low > high:
                raise ValueError(f"bins: [{low}, {high}, ...] goes from long to short; write [from, to, batch size]")
        return self

    def fill(self, supply: Supply) -> Iterator[Assignment]:
        """Raises ConfigError where a length has no bin, InfeasibleError where memory cannot hold a bin's one sample."""
        spans = _sized(_spans(self, supply.lengths), supply)
        which = np.digitize(supply.lengths, [low for low, _, _ in spans]) - 1
        members = [np.flatnonzero(which == number) for number in range(len(spans))]
        sizes = [size for _, _, size in spans]
        schedule = _again_and_again if self.replacement else _once
        done = 0
        for step in schedule(self, supply, members, sizes):
            before, done = done, min(done + sum(map(len, step)), len(supply))
            if before >= supply.cursor:
                yield _assigned(supply, step, done)
            elif done > supply.cursor:
                raise ConfigError(
                    f"the position's cursor = {supply.cursor} lies within a step of this epoch's bins: it was taken "
                    "with another seed, data, world size or other bins"
                )


def _spans(policy: Bins, lengths: Int) -> list[Bin]:
    shortest, longest = int(lengths.min()), int(lengths.max())
    if policy.bins is None:
        return default_bins(longest, policy.median_batch, policy.replacement)
    spans = [(low, high, size) for low, high, size in policy.bins]
    if shortest < spans[0][0] or longest > spans[-1][1]:
        outside = int(((lengths < spans[0][0]) | (lengths > spans[-1][1])).sum())
        raise ConfigError(
            f"policy.bins reach from {spans[0][0]} to {spans[-1][1]} tokens, but samples from {shortest} to {longest}: "
            f"{outside} of {len(lengths)} have no bin; widen the first or the last"
        )
    return spans


def _sized(spans: list[Bin], supply: Supply) -> list[Bin]:
    """Batch sizes no larger than every rank's memory allows."""
    if supply.caps is None:
        return spans
    sized = []
    for low, high, size in spans:
        longest = np.array([min(high, int(supply.lengths.max()))])
        fits = min(int(cap.limit(longest)[0]) for cap in supply.caps)
        if not fits:
            raise InfeasibleError(
                f"one sample of {longest[0]} tokens alone needs more memory than a rank may use; raise "
                "memory.budget_bytes, or lower data.max_length"
            )
        sized.append((low, high, min(size, fits)))
    return sized


def _once(policy: Bins, supply: Supply, members: list[Int], sizes: list[int]) -> Iterator[Step]:
    """Every sample once: each bin's members in the epoch's order, cut into batches, and these in a shuffled order."""
    ranks = supply.world_size
    generator, width = np.random.default_rng([*supply.seed, 1]), ranks * policy.batches_per_optimizer_step
    if policy.per_rank_bins:
        micro = [
            own[start : start + size]
            for own, size in zip(members, sizes, strict=True)
            for start in range(0, len(own), size)
        ]
        turn = generator.permutation(len(micro)).tolist()
        for start in range(0, len(turn), width):
            yield [micro[k] for k in turn[start : start + width]]
        return
    steps = [
        own[start : start + size * width]
        for own, size in zip(members, sizes, strict=True)
        for start in range(0, len(own), size * width)
    ]
    for k in generator.permutation(len(steps)).tolist():
        yield np.array_split(steps[k], width)


def _again_and_again(policy: Bins, supply: Supply, members: list[Int], sizes: list[int]) -> Iterator[Step]:
    """The recipe: until as many samples were drawn as there are."""
    ranks = supply.world_size
    generator, width = np.random.default_rng([*supply.seed, 1]), ranks * policy.batches_per_optimizer_step
    held = np.array([len(own) for own in members]) / len(supply)
    left = [own[:0] for own in members]
    done = 0
    while done < len(supply):
        drawn = generator.choice(len(members), width if policy.per_rank_bins else 1, p=held)
        step: Step = [left[0][:0]] * width
        for number in np.unique(drawn).tolist():
            places = np.flatnonzero(drawn == number).tolist() if policy.per_rank_bins else list(range(width))
            wanted = min(sizes[number] * len(places), len(members[number]))
            if len(left[number]) < wanted:  # what is left of it is not seen in this round
                left[number] = generator.permutation(members[number])
            taken, left[number] = left[number][:wanted], left[number][wanted:]
            for place, part in zip(places, np.array_split(taken, len(places)), strict=True):
                step[place] = part
        done += sum(map(len, step))
        yield step


def _assigned(supply: Supply, step: Step, cursor: int) -> Assignment:
    ranks = supply.world_size
    mine = [[step[k] for k in range(rank, len(step), ranks) if len(step[k])] for rank in range(ranks)]
    sizes = tuple(tuple(len(positions) for positions in own) for own in mine)
    return Assignment(np.concatenate([p for own in mine for p in own]), sizes, method="bins", cursor=cursor)
