"""bins: samples sorted into ranges of length, each with a batch size."""

from collections.abc import Iterator
from itertools import pairwise
from typing import Annotated, Literal

import numpy as np
from pydantic import Field, model_validator

from ddpsched.costs.cost_model import Int
from ddpsched.costs.shape_menu import Shape
from ddpsched.errors import ConfigError
from ddpsched.planning.assignment import Assignment
from ddpsched.planning.policies.filling import FillingPolicy, Supply, deal, most_samples
from ddpsched.planning.shapes.length_menu import LengthMenus, length_menus, shared_out
from ddpsched.planning.shapes.observed import observe
from ddpsched.planning.steps.context import Context
from ddpsched.table import Positive, Tokens

SHARES = (2.0, 1.0, 0.75, 0.5)  # times the median batch: roughly as many tokens a batch in every bin
RECIPE_SHARES = (2.0, 1.0, 1.5, 0.5)  # the recipe's, whose third bin is larger than its second

Bin = tuple[int, int, int]  # from, to, batch size
BinStep = list[Int]  # positions of each micro-batch; micro-batch k is of rank k % world_size


def default_bins(longest: int, median_batch: int, replacement: bool) -> list[Bin]:
    """Return four quarters of the longest length with their batch sizes; fewer where it has fewer than four tokens.

    >>> default_bins(66, 32, replacement=False)
    [(1, 16, 64), (17, 33, 32), (34, 49, 24), (50, 66, 16)]
    """
    edges = [longest * quarter // 4 for quarter in range(5)]
    sizes = [max(1, round(times * median_batch)) for times in (RECIPE_SHARES if replacement else SHARES)]
    return [(low + 1, high, size) for (low, high), size in zip(pairwise(edges), sizes, strict=True) if high > low]


class Bins(FillingPolicy):
    """Take each step's samples from one bin, or for each rank from one (``per_rank_bins``), at the bin's batch size.

    Each sample comes once an epoch: each bin is cut into batches in the epoch's order, and the batches of all bins are
    shuffled together. So bins come in proportion to the batches they hold,

        batches of bin k  =  samples of bin k / batch size of bin k

    and all are used up together. The remainder of a bin is dealt evenly. A step draws ``batches_per_optimizer_step``
    micro-batches a rank.

    Options: ``bins``, ``[from, to, batch size]`` of each, in tokens and samples; by default four quarters of the
    longest length with batch sizes of 2, 1, 3/4 and 1/2 times ``median_batch``. ``median_batch``, samples.
    ``per_rank_bins``. ``replacement``: each step draws a bin by the samples it holds, a bin is reshuffled when it
    cannot fill a batch, and samples repeat and are left out; its default bins have 3/2 in place of 3/4.
    ``batches_per_optimizer_step``.
    Sources: with replacement, a recipe that has no first source; TensorFlow's ``bucket_by_sequence_length``.
    """

    kind: Literal["bins"] = "bins"
    bins: Annotated[list[Annotated[list[Tokens], Field(min_length=3, max_length=3)]], Field(min_length=1)] | None = None
    """[from, to, batch size] of each, in tokens and samples; None: four quarters of the longest length."""
    median_batch: Positive = 64
    """Samples, of which the default bins have 2, 1, 3/4 and 1/2 times as many."""
    per_rank_bins: bool = False
    """Each rank draws a bin of its own in a step; else all draw one."""
    replacement: bool = False
    """Draw bins by the samples they hold, and reshuffle one that is used up: samples repeat and are left out."""

    @model_validator(mode="after")
    def _belong_together(self) -> "Bins":
        for low, high, _ in self.bins or []:
            if low > high:
                raise ValueError(f"bins: [{low}, {high}, ...] goes from long to short; write [from, to, batch size]")
        for (_, high, _), (low, _, _) in pairwise(self.bins or []):
            if low != high + 1:
                fault = f"leave a gap: lengths {high + 1} to {low - 1} have no bin"
                if low <= high:
                    fault = f"have an overlap or another order: the bin from {low} follows one that ends at {high}"
                raise ValueError(f"bins = {self.bins} {fault}; begin each bin one token after the previous one ends")
        if self.bins is not None and self.median_batch != type(self).model_fields["median_batch"].default:
            raise ValueError(
                f"median_batch = {self.median_batch} sizes the default bins, but bins = {self.bins} has batch sizes "
                "itself; give one of the two"
            )
        return self

    def shapes(self, context: Context, most: int) -> list[Shape]:
        """Return each bin's rows by the lengths that pad its micro-batches least; all bins share ``most``."""
        width = context.spec.ranks_of_batch * self.batches_per_optimizer_step
        lengths = context.lengths.lengths(context.order)
        spans, observed = _spans(self, lengths), observe(self(context), lengths)
        kinds: list[tuple[int, LengthMenus]] = []
        for low, high, size in spans:
            inside = lengths[(lengths >= low) & (lengths <= high)]
            if len(inside):
                here = (observed.longest >= low) & (observed.longest <= high)
                longest = np.append(observed.longest[here], inside.max())
                rows = min(
                    size, -(-len(inside) // (1 if self.per_rank_bins else width))
                )  # fewer than a cut: dealt evenly
                kinds.append((rows, length_menus(longest, np.append(observed.counts[here], 0), most)))
        if len(kinds) > most:
            return [(size, each.menus[-1][-1]) for size, each in kinds]
        menus = shared_out([each for _, each in kinds], most)
        return [(size, length) for (size, _), menu in zip(kinds, menus, strict=True) for length in menu]

    def fill(self, supply: Supply) -> Iterator[Assignment]:
        """Yield each step. Raises ConfigError for a length without a bin, InfeasibleError for one over a memory."""
        spans = _spans(self, supply.lengths)
        which = np.digitize(supply.lengths, [low for low, _, _ in spans]) - 1
        members = [np.flatnonzero(which == number) for number in range(len(spans))]
        sizes = [size for _, _, size in spans]
        if supply.caps is not None:  # no larger than every rank's memory allows
            most = most_samples(supply.lengths, None, supply.caps)
            sizes = [min(size, most[min(high, len(most) - 1)]) for _, high, size in spans]
        schedule = _with_replacement if self.replacement else _once
        done = 0
        generator = np.random.default_rng([*supply.seed, 1])
        width = (supply.batch_ranks or supply.world_size) * self.batches_per_optimizer_step
        for step in schedule(generator, width, members, sizes, self.per_rank_bins):
            before, done = done, min(done + sum(map(len, step)), len(supply))
            if before >= supply.cursor:
                yield deal(step, supply.world_size, done, method="bins")
            elif done > supply.cursor:
                raise ConfigError(
                    f"the position's cursor = {supply.cursor} lies within a step of this epoch's bins: it was taken "
                    "with another seed, data, world size or other bins"
                )


def _spans(policy: Bins, lengths: Int) -> list[Bin]:
    if policy.bins is None:
        return default_bins(int(lengths.max()), policy.median_batch, policy.replacement)
    least, most = policy.bins[0][0], policy.bins[-1][1]
    outside = int(((lengths < least) | (lengths > most)).sum())
    if outside:
        raise ConfigError(
            f"policy.bins reach from {least} to {most} tokens, but samples from {lengths.min()} to {lengths.max()}: "
            f"{outside} of {len(lengths)} have no bin; widen the first or the last"
        )
    return [(low, high, size) for low, high, size in policy.bins]


def _once(
    generator: np.random.Generator, width: int, members: list[Int], sizes: list[int], per_rank: bool
) -> Iterator[BinStep]:
    """Yield every sample once: each bin's members in the epoch's order, cut into batches, and these shuffled."""
    micro = 1 if per_rank else width  # micro-batches that share a cut
    cuts = [
        positions[start : start + size * micro]
        for positions, size in zip(members, sizes, strict=True)
        for start in range(0, len(positions), size * micro)
    ]
    shuffled = [cuts[k] for k in generator.permutation(len(cuts)).tolist()]
    if per_rank:
        for start in range(0, len(shuffled), width):
            yield shuffled[start : start + width]
    else:
        for positions in shuffled:
            yield np.array_split(positions, width)


def _with_replacement(
    generator: np.random.Generator, width: int, members: list[Int], sizes: list[int], per_rank: bool
) -> Iterator[BinStep]:
    """Yield the recipe's steps until as many samples were drawn as there are."""
    total = sum(map(len, members))
    held = np.array([len(positions) for positions in members]) / total
    left = [positions[:0] for positions in members]
    done = 0
    while done < total:
        drawn = generator.choice(len(members), width if per_rank else 1, p=held)
        step: BinStep = [left[0][:0]] * width
        for number in np.unique(drawn).tolist():
            places = np.flatnonzero(drawn == number).tolist() if per_rank else list(range(width))
            wanted = min(sizes[number] * len(places), len(members[number]))
            if len(left[number]) < wanted:  # its remainder is not seen in this round
                left[number] = generator.permutation(members[number])
            taken, left[number] = left[number][:wanted], left[number][wanted:]
            for place, part in zip(places, np.array_split(taken, len(places)), strict=True):
                step[place] = part
        done += sum(map(len, step))
        yield step
