"""The gradients that a run's optimizer gets."""

from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import pytest
import torch

from ddpsched.training.optimise import Optimiser


@contextmanager
def kept_gradients() -> Iterator[list[np.ndarray]]:
    """A list that grows by one flat gradient with each optimizer step; the step itself is taken."""
    kept: list[np.ndarray] = []
    step = Optimiser.step

    def keep(self: Optimiser) -> float:
        kept.append(torch.cat([p.grad.reshape(-1) for p in self._parameters]).numpy().copy())
        return step(self)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Optimiser, "step", keep)
        yield kept
