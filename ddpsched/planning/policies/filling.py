"""Policies that fill micro-batches, so that the global batch varies from step to step."""

from abc import abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from time import perf_counter
from typing import Annotated, ClassVar, Literal

import numpy as np
from pydantic import Field

from ddpsched.costs.cost_model import Int
from ddpsched.costs.memory_cap import Cap
from ddpsched.errors import InfeasibleError
from ddpsched.planning.assignment import Assignment
from ddpsched.planning.policy import Policy
from ddpsched.planning.steps.context import Context

Tokens = Annotated[int, Field(gt=0, le=2**40)]


@dataclass(frozen=True, eq=False)
class Supply:
    """An epoch's samples, and where in it the policy begins.

    ``lengths``: (N,), tokens of the epoch's samples in its order; ``parts``: (N, 2), likewise, of prompt and text,
    where both are bounded. ``seed``: of what is drawn in this epoch. ``cursor``: samples handed out before;
    ``windows[r]``: of these, the positions in the order that rank r has waiting.
    """

    lengths: Int
    world_size: int
    seed: tuple[int, ...] = (0,)
    parts: Int | None = None
    caps: tuple[Cap, ...] | None = None
    cursor: int = 0
    windows: tuple[Int, ...] = ()

    def __len__(self) -> int:
        return len(self.lengths)


class FillingPolicy(Policy):
    """Is given the whole epoch in order, and fills micro-batches of sizes of their own."""

    batches_per_optimizer_step: Annotated[int, Field(gt=0, le=2**16)] = 1  # micro-batches of each rank

    takes: ClassVar[Literal["batches", "windows", "epoch"]] = "epoch"
    varies: ClassVar[bool] = True
    reads_cost: ClassVar[bool] = False

    @property
    def most_microbatches(self) -> int:
        return self.batches_per_optimizer_step

    def __call__(self, context: Context) -> Iterator[Assignment]:
        begin, spec, order = perf_counter(), context.spec, context.order
        supply = Supply(
            context.lengths.lengths(order),
            spec.world_size,
            (spec.seed, context.start.epoch),
            context.lengths.parts(order) if self.bounds_parts else None,
            spec.caps,
            context.start.cursor,
            context.waiting,
        )
        context.times.offer_s = perf_counter() - begin  # all at once, before the epoch's first step
        for found in self.fill(supply):
            lengths = supply.lengths[found.positions]
            yield replace(found, costs=spec.cost.price_ranks(lengths, found.sizes, found.packed, found.pad_to))

    @abstractmethod
    def fill(self, supply: Supply) -> Iterator[Assignment]:
        """Yield each step; positions are of the epoch's order."""


def most_samples(lengths: Int, budget: int, caps: tuple[Cap, ...] | None) -> list[int]:
    """``[length]`` -> the most samples of a padded micro-batch whose longest has that length; all, for a part of 0.

    By the ``budget`` of padded tokens, where it may be 0, and by every rank's memory. Raises InfeasibleError where a
    sample there is does not fit into memory even alone.
    """
    longest = int(lengths.max())
    each = np.arange(1, longest + 1)
    fits = budget // each
    for cap in caps or ():
        room = cap.limit(each)
        if not room[-1]:
            raise InfeasibleError(
                f"one sample of {longest} tokens alone needs more memory than a rank may use; raise "
                "memory.budget_bytes, or lower data.max_length"
            )
        fits = np.minimum(fits, room)
    return [len(lengths), *fits.tolist()]


def deal(
    runs: Sequence[tuple[int, int]], world_size: int, cursor: int, pad_to: int = 0, method: str = ""
) -> Assignment:
    """Return the step of micro-batches that are runs of positions, dealt to ranks in turn.

    >>> step = deal([(0, 2), (2, 3), (3, 6)], 2, cursor=6)
    >>> step.positions.tolist(), step.sizes
    ([0, 1, 3, 4, 5, 2], ((2, 3), (1,)))
    """
    mine = [range(rank, len(runs), world_size) for rank in range(world_size)]
    positions = np.concatenate([np.arange(*runs[k]) for own in mine for k in own])
    sizes = tuple(tuple(runs[k][1] - runs[k][0] for k in own) for own in mine)
    return Assignment(positions, sizes, method=method, pad_to=pad_to, cursor=cursor)
