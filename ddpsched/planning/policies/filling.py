"""What policies that fill micro-batches are given, what they answer, and the table of what fits."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from ddpsched.config import PolicyConfig
from ddpsched.costs.kinds import Int
from ddpsched.costs.memory_cap import Cap
from ddpsched.errors import InfeasibleError
from ddpsched.plan import Ids


@dataclass(frozen=True, eq=False)
class Supply:
    """An epoch's samples, and where in it the policy begins.

    ``order``: (N,), ids as the epoch visits them; ``lengths``: (N,), tokens in that order; ``parts``: (N, 2), likewise,
    of prompt and text, where both are bounded. ``cursor``: samples handed out before; ``windows[r]``: of these, the
    positions in the order that rank r has waiting. ``seed``: of what is drawn in this epoch.
    """

    order: Ids
    lengths: Int
    world_size: int
    policy: PolicyConfig
    seed: tuple[int, ...] = (0,)
    parts: Int | None = None
    caps: tuple[Cap, ...] | None = None
    cursor: int = 0
    windows: tuple[Int, ...] = ()

    def __len__(self) -> int:
        return len(self.order)


@dataclass(frozen=True, eq=False)
class Filled:
    """A step: ``positions`` into the order, rank by rank, of which each micro-batch takes ``sizes[rank][m]`` in turn.

    ``longest``: tokens of the longest sample of each micro-batch, in the same turn. ``cursor`` and ``windows`` as
    in :class:`Supply`, after this step. ``pad_to``: a length that all its micro-batches are padded to.
    """

    positions: Int
    sizes: tuple[tuple[int, ...], ...]
    longest: Sequence[int]
    cursor: int
    windows: tuple[Int, ...] = ()
    packed: bool = False
    pad_to: int = 0


FillingPolicy = Callable[[Supply], Iterator[Filled]]


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


def dealt(
    runs: Sequence[tuple[int, int]], longest: Sequence[int], world_size: int
) -> tuple[Int, tuple[tuple[int, ...], ...], list[int]]:
    """Micro-batches that are runs of positions, dealt to ranks in turn: ``positions``, ``sizes``, ``longest``.

    >>> dealt([(0, 2), (2, 3), (3, 6)], [9, 8, 7], 2)
    (array([0, 1, 3, 4, 5, 2]), ((2, 3), (1,)), [9, 7, 8])
    """
    mine = [range(rank, len(runs), world_size) for rank in range(world_size)]
    turn = [k for own in mine for k in own]
    positions = np.concatenate([np.arange(*runs[k]) for k in turn])
    sizes = tuple(tuple(runs[k][1] - runs[k][0] for k in own) for own in mine)
    return positions, sizes, [longest[k] for k in turn]
