"""In which order an epoch visits its samples: one global order, the same on every rank."""

from collections.abc import Callable

import numpy as np

from ddpsched.plan import Ids


def shuffled(num_samples: int, seed: int, epoch: int) -> Ids:
    """A permutation drawn anew each epoch from (seed, epoch)."""
    return np.random.default_rng([seed, epoch]).permutation(num_samples)


def sequential(num_samples: int, seed: int, epoch: int) -> Ids:
    """0, 1, 2, ... in every epoch."""
    return np.arange(num_samples, dtype=np.int64)


ORDERS: dict[str, Callable[[int, int, int], Ids]] = {"shuffled": shuffled, "sequential": sequential}


def epoch_order(kind: str, num_samples: int, seed: int, epoch: int) -> Ids:
    """(num_samples,), int64: each id once, in the order that ``kind`` names."""
    return ORDERS[kind](num_samples, seed, epoch)
