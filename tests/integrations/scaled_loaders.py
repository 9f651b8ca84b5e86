"""Samplers and loaders whose batches are paired with scales, for tests."""

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader

from ddpsched import BatchSampler, World
from ddpsched.data.embedded.length_histogram import sst2_lengths

SIZE = 99  # of 16 a step, 3 samples are left for 4 ranks


LENGTHS = sst2_lengths(SIZE, np.random.default_rng(0))


POLICIES: dict[str, Any] = {
    "balanced": "balanced",
    "minmax": "minmax",
    "token_budget": {"kind": "token_budget", "max_tokens_for_batch": 16 * 12},
}


EPOCHS = 2


def sampler(name: str = "balanced", rank: int = 3, **changes: Any) -> BatchSampler:
    batch = None if name == "token_budget" else 16
    return BatchSampler(
        LENGTHS, global_batch=batch, world=World(rank, 4), policy=POLICIES[name], **{"seed": 5, **changes}
    )


def plain(made: BatchSampler, workers: int) -> Any:
    return DataLoader(torch.arange(SIZE), batch_sampler=made, num_workers=workers)


def stateful(made: BatchSampler, workers: int, every: int = 1) -> Any:
    loaders = pytest.importorskip("torchdata.stateful_dataloader")
    return loaders.StatefulDataLoader(
        torch.arange(SIZE), batch_sampler=made, num_workers=workers, snapshot_every_n_steps=every
    )


Pair = tuple[tuple[int, ...], float]


def pairs(steps: Any) -> Iterator[Pair]:
    for batch, scale in steps:
        yield tuple(batch.tolist() if isinstance(batch, torch.Tensor) else batch), scale


def epochs_of(name: str, rank: int = 3, **changes: Any) -> list[list[Pair]]:
    """Return the rank's ids and G / B of each step, epoch by epoch, from the plans.

    A rank without samples has a stand-in and 0.
    """
    epochs = []
    for epoch in range(EPOCHS):
        made = sampler(name, rank, **changes)
        made.set_epoch(epoch)
        steps = [(plan.rank_ids(rank).tolist(), 4 / plan.global_batch) for plan in made.plans()]
        epochs.append([(tuple(ids), scale) if ids else ((int(LENGTHS.argmin()),), 0.0) for ids, scale in steps])
    return epochs
