"""The gradients that a run's optimizer receives."""

from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import pytest
import torch
from torch.distributed.tensor import DTensor

from ddpsched.training.optimise import Optimiser


@contextmanager
def kept_gradients() -> Iterator[list[np.ndarray]]:
    """Yield a list that grows by one flat gradient with each optimizer step; the step still runs."""
    kept: list[np.ndarray] = []
    step = Optimiser.step

    def keep(self: Optimiser, size: float | None = None) -> float:
        gradients = [p.grad.full_tensor() if isinstance(p.grad, DTensor) else p.grad for p in self._parameters]
        kept.append(torch.cat([gradient.reshape(-1) for gradient in gradients]).numpy().copy())
        return step(self, size)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Optimiser, "step", keep)
        yield kept
