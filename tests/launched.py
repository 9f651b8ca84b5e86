"""A loop with known gradients: what each rank records of a step, and its expected value."""

import math
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from ddpsched import BatchSampler
from ddpsched.data.embedded.length_histogram import sst2_lengths

NUM_SAMPLES, EPOCHS = 49, 2  # the last step of an epoch has one sample
LENGTHS = sst2_lengths(NUM_SAMPLES, np.random.default_rng(3))


def sampler(**changes: Any) -> BatchSampler:
    """Return a sampler made before there are ranks."""
    return BatchSampler(LENGTHS, **{"global_batch": 16, "seed": 8, **changes})


def model() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 1)).double()


def summed_loss(net: nn.Module, ids: torch.Tensor) -> torch.Tensor:
    features = torch.stack([torch.sin(ids.double() * k) for k in (1.0, 2.0, math.pi)], dim=1)
    return net(features).square().sum()


def gradient(net: nn.Module) -> torch.Tensor:
    return torch.cat([parameter.grad.flatten() for parameter in net.parameters() if parameter.grad is not None])


def worst_error(folder: Path, ranks: int) -> float:
    """Return the largest relative error of a step's gradient on any rank, against one process with the whole batch.

    Each rank saved a list of (ids, scale, gradient) as ``rank{r}``. Every id must have run once an epoch.
    """
    steps: list[Any] = [torch.load(folder / f"rank{rank}") for rank in range(ranks)]
    assert len({len(records) for records in steps}) == 1
    seen: list[int] = []
    worst = 0.0
    for shares in zip(*steps, strict=True):
        ids = [i for rank_ids, scale, _ in shares if scale for i in rank_ids]
        seen += ids
        net = model()
        (summed_loss(net, torch.tensor(ids)) / len(ids)).backward()
        right = gradient(net)
        worst = max(worst, *(float((found - right).norm() / right.norm()) for _, _, found in shares))
    assert sorted(seen) == sorted([*range(NUM_SAMPLES)] * EPOCHS)
    assert seen[:NUM_SAMPLES] != seen[NUM_SAMPLES:], "each epoch has an order of its own"
    return worst
