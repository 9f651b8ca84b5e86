"""In which order an epoch visits its samples: one global order, the same on every rank."""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from ddpsched.config import RunConfig
from ddpsched.plan import Ids


@dataclass(frozen=True)
class Draw:
    """What an order follows from. ``lengths(ids)`` gives tokens; ``mega_batch``: samples that are sorted together."""

    num_samples: int
    seed: int
    epoch: int
    lengths: Callable[[Ids], Ids]
    mega_batch: int


def shuffled(draw: Draw) -> Ids:
    """A permutation drawn anew each epoch from (seed, epoch)."""
    return np.random.default_rng([draw.seed, draw.epoch]).permutation(draw.num_samples)


def sequential(draw: Draw) -> Ids:
    """0, 1, 2, ... in every epoch."""
    return np.arange(draw.num_samples, dtype=np.int64)


def length_grouped(draw: Draw) -> Ids:
    """Shuffled, then each run of ``mega_batch`` samples by falling length; the epoch's longest sample comes first.

    So neighbours are about as long, and a device too small says so in the first step. Source: transformers'
    ``group_by_length``.
    """
    order = shuffled(draw)
    lengths = draw.lengths(order)
    runs = np.arange(draw.num_samples) // draw.mega_batch
    falling = np.lexsort((-lengths, runs))  # a stable sort: equals stay as shuffled
    order, lengths = order[falling], lengths[falling]
    longest = int(lengths.argmax())
    order[[0, longest]] = order[[longest, 0]]
    return order


ORDERS: dict[str, Callable[[Draw], Ids]] = {
    "shuffled": shuffled,
    "sequential": sequential,
    "length_grouped": length_grouped,
}


def epoch_order(config: RunConfig, num_samples: int, epoch: int, lengths: Callable[[Ids], Ids]) -> Ids:
    """(num_samples,), int64: each id once, in the order that the config names. ``lengths(ids)``: their tokens."""
    batches = min(config.order.mega_batches, num_samples // (4 * config.global_batch))
    draw = Draw(num_samples, config.seed, epoch, lengths, config.global_batch * max(1, batches))
    return ORDERS[config.order.kind](draw)
