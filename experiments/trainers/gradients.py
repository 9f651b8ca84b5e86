"""The error of a step's gradient, against that of the mean over all its samples in one process."""

from typing import Any

import numpy as np
import numpy.typing as npt

from experiments.trainers.setting import Rows, Setting, padded


def flat(model: Any) -> npt.NDArray[np.float64]:
    """Return all parameters' gradients in one row."""
    rows = [each.grad.reshape(-1).numpy() for each in model.parameters() if each.grad is not None]
    return np.concatenate(rows).astype(np.float64)


def relative_error(setting: Setting, found: npt.NDArray[np.float64], rows: Rows, weights: int = 0) -> float:
    """Return the relative error of a gradient at the first weights; ``rows``: the step's samples over all ranks."""
    import torch.nn.functional as F

    model, batch = setting.build_model(weights), padded(rows)
    labels = batch.pop("labels")
    F.cross_entropy(model(**batch).logits, labels).backward()
    right = flat(model)
    return float(np.linalg.norm(found - right) / np.linalg.norm(right))
