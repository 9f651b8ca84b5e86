"""The logits of a few samples two ways: whether a model can be fed otherwise than with padded rows and a padding mask.

Both ways are computed in float64 and without dropout. Rounding then stays below
``TOLERANCE``, also of norms and rotations that some models insist to compute in
float32; any mixing of samples is above it, a short convolution's of neighbours too.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

TOLERANCE = 1e-5  # of the spread of logits
LONGEST = 70  # tokens of the longest sample compared; beyond ModernBERT's window of 64 to each side


def some_rows(model: Any, max_length: int) -> list[NDArray[np.int64]]:
    """Four samples of random tokens, two of one length; none is longer than ``max_length``."""
    random = np.random.default_rng(0)
    # a pad token inside a sample has no position of its own in some models
    words = np.setdiff1d(np.arange(model.config.vocab_size), [model.config.pad_token_id or 0])
    return [random.choice(words, min(length, max_length)) for length in (7, LONGEST, 3, 7)]


@contextmanager
def exactly(model: Any) -> Iterator[None]:
    """A float32 ``model`` computes in float64, without dropout and without gradients in it."""
    training = model.training
    model.double().eval()
    try:
        with torch.no_grad():
            yield
    finally:
        model.float().train(training)  # exact: every number was a float32 before


def gap(found: torch.Tensor, expected: torch.Tensor) -> float:
    """Largest difference of logits, both (rows, num_labels), over their spread among rows; NaN where all are equal."""
    return float((found - expected).abs().max() / (expected - expected.mean(0)).abs().max())
