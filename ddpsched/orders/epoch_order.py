"""The order in which an epoch visits its samples: one global order, the same on every rank."""

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import lru_cache

import numpy as np

from ddpsched.data.lengths import Lengths
from ddpsched.orders.config import OrderConfig
from ddpsched.orders.curriculum import Sorted, interleaved, local, open_samples, paced, reshuffled, sorted_ids
from ddpsched.step_plan import Ids


@dataclass(frozen=True, eq=False)
class Order:
    """The order in which epochs visit the samples: the options of [order], and the contents of its file."""

    options: OrderConfig = field(default_factory=OrderConfig)
    file: Sorted | None = None

    @classmethod
    def of(cls, options: OrderConfig) -> "Order":
        """Read the file that ``options.path`` names, if any. Raises DataError where it is no ordered file."""
        return cls(options, None if options.path is None else Sorted.read(options.path))

    @property
    def sorts(self) -> bool:
        """Whether neighbours of the order are about as difficult, so that ranks are dealt them in turn."""
        return self.options.sorts


@dataclass(frozen=True)
class Draw:
    """Everything that one epoch's order depends on. ``mega_batch``: samples that are sorted together."""

    lengths: Lengths
    order: Order
    seed: int
    epoch: int
    world_size: int
    global_batch: int
    mega_batch: int

    @property
    def generator(self) -> np.random.Generator:
        """A new random generator of this epoch."""
        return _generator(self.seed, self.epoch)

    def __len__(self) -> int:
        return len(self.lengths)


def shuffled(draw: Draw) -> Ids:
    """Return a permutation drawn anew each epoch from (seed, epoch)."""
    return _permutation(draw.seed, draw.epoch, len(draw))


@lru_cache(maxsize=1)  # the candidates of policy auto, and their menus, draw the same one
def _permutation(seed: int, epoch: int, number: int) -> Ids:
    order = _generator(seed, epoch).permutation(number)
    order.setflags(write=False)
    return order


def _generator(seed: int, epoch: int) -> np.random.Generator:
    return np.random.default_rng([seed, epoch])


def sequential(draw: Draw) -> Ids:
    """Return 0, 1, 2, ... in every epoch."""
    return np.arange(len(draw), dtype=np.int64)


def length_grouped(draw: Draw) -> Ids:
    """Return a shuffled order with each run of ``mega_batch`` samples by falling length, the epoch's longest first.

    So neighbours are of similar length, and a device too small fails in the first step. Source: transformers'
    ``group_by_length``.
    """
    order = shuffled(draw)
    lengths = draw.lengths.lengths(order)
    runs = np.arange(len(draw)) // draw.mega_batch
    falling = np.lexsort((-lengths, runs))  # a stable sort: equals stay as shuffled
    order, lengths = order[falling], lengths[falling]
    longest = int(lengths.argmax())
    order[[0, longest]] = order[[longest, 0]]
    return order


def curriculum(draw: Draw) -> Ids:
    """Return the easiest first; or, with pacing, draws from a share that grows to all samples in the first epoch."""
    options = draw.order.options
    if options.pacing is not None and draw.epoch > 0:
        return shuffled(draw)
    easiest = sorted_ids(draw.lengths, draw.order.file)
    if options.pacing is None:
        return reshuffled(easiest, options.window, draw.generator)
    return paced(easiest, open_samples(options, len(draw), draw.global_batch), draw.global_batch, draw.generator)


def curriculum_local(draw: Draw) -> Ids:
    """Return each rank's shard of the data sorted by itself, easiest first, one sample of each shard in turn.

    A shard is rows r * N // G to (r + 1) * N // G of the data. Where B is a multiple of G, static assigns each rank its
    shard. Ranks need not communicate for it; which samples are easy depends on the shard and on G.
    """
    return interleaved(local(sorted_ids(draw.lengths, draw.order.file), draw.world_size))


KINDS: tuple[Callable[[Draw], Ids], ...] = (shuffled, sequential, length_grouped, curriculum, curriculum_local)
ORDERS = {order.__name__: order for order in KINDS}
