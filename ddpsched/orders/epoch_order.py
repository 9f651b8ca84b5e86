"""In which order an epoch visits its samples: one global order, the same on every rank."""

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np

from ddpsched.data.lengths import Lengths
from ddpsched.orders.config import OrderConfig
from ddpsched.orders.curriculum import Sorted, interleaved, local, open_samples, paced, reshuffled, sorted_ids
from ddpsched.plan import Ids


@dataclass(frozen=True, eq=False)
class Order:
    """In which order epochs visit the samples: the options of [order], and what its file holds, read once."""

    options: OrderConfig = field(default_factory=OrderConfig)
    file: Sorted | None = None

    @classmethod
    def of(cls, options: OrderConfig) -> "Order":
        """Read the file that ``options.path`` names, if any; DataError where it is no ordered file."""
        return cls(options, None if options.path is None else Sorted.read(options.path))

    @property
    def sorts(self) -> bool:
        """Whether neighbours of the order are about as difficult, so that ranks are dealt them in turn."""
        return self.options.sorts


@dataclass(frozen=True)
class Draw:
    """What one epoch's order follows from. ``mega_batch``: samples that are sorted together."""

    source: Lengths
    order: Order
    seed: int
    epoch: int
    world_size: int
    global_batch: int
    mega_batch: int

    @property
    def generator(self) -> np.random.Generator:
        """Of this epoch."""
        return np.random.default_rng([self.seed, self.epoch])

    def __len__(self) -> int:
        return len(self.source)


def shuffled(draw: Draw) -> Ids:
    """A permutation drawn anew each epoch from (seed, epoch)."""
    return draw.generator.permutation(len(draw))


def sequential(draw: Draw) -> Ids:
    """0, 1, 2, ... in every epoch."""
    return np.arange(len(draw), dtype=np.int64)


def length_grouped(draw: Draw) -> Ids:
    """Shuffled, then each run of ``mega_batch`` samples by falling length; the epoch's longest sample comes first.

    So neighbours are about as long, and a device too small says so in the first step. Source: transformers'
    ``group_by_length``.
    """
    order = shuffled(draw)
    lengths = draw.source.lengths(order)
    runs = np.arange(len(draw)) // draw.mega_batch
    falling = np.lexsort((-lengths, runs))  # a stable sort: equals stay as shuffled
    order, lengths = order[falling], lengths[falling]
    longest = int(lengths.argmax())
    order[[0, longest]] = order[[longest, 0]]
    return order


def curriculum(draw: Draw) -> Ids:
    """Easiest first; or drawn from a share of them that grows in the first epoch, after which all is open."""
    if draw.order.options.pacing is not None and draw.epoch > 0:
        return shuffled(draw)
    easiest = sorted_ids(draw.source, draw.order.file)
    if draw.order.options.pacing is None:
        return reshuffled(easiest, draw.order.options.window, draw.generator)
    return paced(
        easiest, open_samples(draw.order.options, len(draw), draw.global_batch), draw.global_batch, draw.generator
    )


def curriculum_local(draw: Draw) -> Ids:
    """Each rank's shard of the data by itself, easiest first; with ranks, one sample of each in turn.

    A shard is rows r * N // G to (r + 1) * N // G of the data. Where B is a multiple of G, static deals each rank its
    own. The simple way, which no rank needs to be asked for; what is easy differs between shards and with G.
    """
    return interleaved(local(sorted_ids(draw.source, draw.order.file), draw.world_size))


ORDERS: dict[str, Callable[[Draw], Ids]] = {
    "shuffled": shuffled,
    "sequential": sequential,
    "length_grouped": length_grouped,
    "curriculum": curriculum,
    "curriculum_local": curriculum_local,
}


def epoch_order(order: Order, source: Lengths, *, seed: int, epoch: int, world_size: int, global_batch: int) -> Ids:
    """Return (N,), int64: each id once, in the order that the options name.

    ``world_size`` and ``global_batch`` matter to orders that deal shards or sort batches together.
    """
    batches = max(1, min(order.options.mega_batches, len(source) // (4 * global_batch)))
    draw = Draw(source, order, seed, epoch, world_size, global_batch, global_batch * batches)
    return ORDERS[order.options.kind](draw)
