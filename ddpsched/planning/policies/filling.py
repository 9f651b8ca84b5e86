"""The base of policies that fill micro-batches, so that the global batch varies from step to step."""

from abc import abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from time import perf_counter
from typing import Annotated, ClassVar, Literal

import numpy as np
from pydantic import Field

from ddpsched.costs.cost_model import Int
from ddpsched.costs.memory_cap import Cap
from ddpsched.costs.shape_menu import MenuCost
from ddpsched.planning.assignment import Assignment, refuse_too_long
from ddpsched.planning.policy import Policy
from ddpsched.planning.steps.context import Context


@dataclass(frozen=True, eq=False)
class Supply:
    """An epoch's samples, and the place in it at which the policy begins.

    ``lengths``: (N,), tokens of the epoch's samples in its order; ``parts``: (N, 2), likewise, of prompt and text,
    where both are bounded. ``seed``: of random draws in this epoch. ``cursor``: samples handed out before;
    ``windows[r]``: of these, the positions in the order that rank r has waiting. ``batch_ranks``: the ranks that
    steps are made for, where they are not ``world_size``. ``menu``: to whose lengths ``lengths`` are rounded.
    """

    lengths: Int
    world_size: int
    seed: tuple[int, ...] = (0,)
    parts: Int | None = None
    caps: tuple[Cap, ...] | None = None
    cursor: int = 0
    windows: tuple[Int, ...] = ()
    batch_ranks: int | None = None
    menu: MenuCost | None = None

    def __len__(self) -> int:
        return len(self.lengths)


class FillingPolicy(Policy):
    """A policy that is given the whole epoch in order, and fills micro-batches of varying sizes."""

    batches_per_optimizer_step: Annotated[int, Field(gt=0, le=2**16)] = 1
    """Micro-batches of each rank in a step."""

    takes: ClassVar[Literal["batches", "windows", "epoch"]] = "epoch"
    varies: ClassVar[bool] = True
    reads_cost: ClassVar[bool] = False

    @property
    def most_microbatches(self) -> int:
        return self.batches_per_optimizer_step

    def __call__(self, context: Context) -> Iterator[Assignment]:
        begin, spec, order = perf_counter(), context.spec, context.order
        supply = Supply(
            spec.cost.rounded(context.lengths.lengths(order)),
            spec.world_size,
            (spec.seed, context.start.epoch),
            context.lengths.parts(order) if self.bounds_parts else None,
            spec.caps,
            context.start.cursor,
            context.waiting,
            spec.batch_ranks,
            spec.cost if isinstance(spec.cost, MenuCost) else None,
        )
        context.times.offer_s = perf_counter() - begin  # all at once, before the epoch's first step
        for step in self.fill(supply):
            lengths = supply.lengths[step.positions]
            step.costs = spec.cost.price_ranks(lengths, step.sizes, step.packed, step.pad_to)
            yield step

    @abstractmethod
    def fill(self, supply: Supply) -> Iterator[Assignment]:
        """Yield each step; positions are of the epoch's order."""


def most_samples(lengths: Int, budget: int | None, caps: tuple[Cap, ...] | None = None) -> list[int]:
    """Return the most samples of a padded micro-batch, by the length of its longest; all of them for a length of 0.

    They are limited by the ``budget`` of padded tokens, where there is one, and by every rank's memory. Raises
    InfeasibleError where a sample does not fit into memory even alone.

    >>> most_samples(np.array([2, 4, 3]), 8)
    [3, 8, 4, 2, 2]
    """
    longest = int(lengths.max())
    each = np.arange(1, longest + 1)
    fits = np.full(longest, len(lengths)) if budget is None else budget // each
    for cap in caps or ():
        limit = cap.limit(each)
        if not limit[-1]:
            refuse_too_long(longest)
        fits = np.minimum(fits, limit)
    return [len(lengths), *fits.tolist()]


def deal(micro: Sequence[Int], world_size: int, cursor: int, pad_to: int = 0, method: str = "") -> Assignment:
    """Return the step of these micro-batches, positions each, dealt to ranks in turn; empty ones are left out.

    >>> step = deal([np.array([0, 1]), np.array([2]), np.array([3, 4, 5])], 2, cursor=6)
    >>> step.positions.tolist(), step.sizes
    ([0, 1, 3, 4, 5, 2], ((2, 3), (1,)))
    """
    ranks = [micro[rank::world_size] for rank in range(world_size)]
    sizes = tuple(tuple([len(positions) for positions in rank if len(positions)]) for rank in ranks)
    positions = np.concatenate([positions for rank in ranks for positions in rank])
    return Assignment(positions, sizes, method=method, pad_to=pad_to, cursor=cursor)
