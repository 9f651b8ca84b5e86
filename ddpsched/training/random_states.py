"""The random generators of Python, NumPy and torch's CPU, kept as they are while something is tried."""

import random
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import torch


@contextmanager
def kept_random_states() -> Iterator[None]:
    """Put the generators back at the end, so that a trial changes nothing that is drawn after it."""
    states = random.getstate(), np.random.get_state()  # noqa: NPY002 (the global one, which user code may draw from)
    try:
        with torch.random.fork_rng(devices=[]):
            yield
    finally:
        random.setstate(states[0])
        np.random.set_state(states[1])  # noqa: NPY002
