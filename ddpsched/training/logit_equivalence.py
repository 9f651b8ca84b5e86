"""A model's logits computed two ways, to find out whether other inputs can replace padded rows with a padding mask.

Both ways are computed in float64 and without dropout. Rounding then stays below
``TOLERANCE``, also where a model computes norms and rotations in float32; any mixing
of samples is above it, even a short convolution's of neighbours.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

TOLERANCE = 1e-5  # of the spread of logits
LONGEST = 70  # tokens of the longest sample compared; beyond ModernBERT's window of 64 to each side


def some_rows(model: Any, max_length: int) -> list[NDArray[np.int64]]:
    """Return four samples of random tokens, two of one length; none is longer than ``max_length``."""
    random = np.random.default_rng(0)
    # a pad token inside a sample has no position of its own in some models
    words = np.setdiff1d(np.arange(model.config.vocab_size), [model.config.pad_token_id or 0])
    return [random.choice(words, min(length, max_length)) for length in (7, LONGEST, 3, 7)]


@contextmanager
def exactly(model: Any) -> Iterator[None]:
    """Let a float32 ``model`` compute in float64, without dropout and without gradients."""
    training = model.training
    model.double().eval()
    try:
        with torch.no_grad():
            yield
    finally:
        model.float().train(training)  # exact: every number was a float32 before


def gap(result: torch.Tensor, expected: torch.Tensor) -> float:
    """Return the largest difference of logits over their spread among rows; NaN where all rows are equal.

    ``result``, ``expected``: (rows, num_labels).
    """
    return float((result - expected).abs().max() / (expected - expected.mean(0)).abs().max())


def objection(compare: Callable[[], float], differs: str, fails: str) -> str | None:
    """Return why a model does not pass ``compare``, which returns a :func:`gap`; None where it passes.

    ``differs``, ``fails``: the words for a gap that is too large, and for a model that raises an error.
    """
    try:
        apart = compare()
    except Exception as error:
        return f"{fails} ({type(error).__name__}: {error})"
    # a NaN fails too: all logits are equal, and nothing was compared
    return None if apart <= TOLERANCE else f"{differs} by {apart:.1e} of their spread"
