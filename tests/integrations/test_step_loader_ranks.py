"""StepLoader on two real ranks under torch's DDP: the gradient of one process with the whole global batch."""

from collections import Counter
from contextlib import nullcontext
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from ranks import run_ranks
from torch.nn.parallel import DistributedDataParallel

from ddpsched import StepLoader, World
from ddpsched.local_ranks import join_group

LENGTHS = np.random.default_rng(3).integers(2, 30, 61)
POLICIES: dict[str, dict[str, Any]] = {
    "balanced": {"kind": "balanced", "max_microbatches": 2},
    "token_budget": {"kind": "token_budget", "max_tokens_for_batch": 90, "batches_per_optimizer_step": 2},
    "bins": {"kind": "bins", "median_batch": 3, "per_rank_bins": True},
    "pool": {"kind": "pool", "max_tokens_for_batch": 90, "pool_size": 12, "batches_per_optimizer_step": 3},
}
Sample = tuple[int, torch.Tensor, torch.Tensor]  # id, tokens, label


def sample(id: int) -> Sample:
    tokens = torch.from_numpy(np.random.default_rng([7, id]).integers(1, 50, LENGTHS[id]))
    return id, tokens, (tokens[0] % 2).long()


class Sentences:
    def __len__(self) -> int:
        return len(LENGTHS)

    def __getitem__(self, id: int) -> Sample:
        return sample(id)


def fill_up(given: Sample, length: int) -> Sample:
    id, tokens, label = given
    return id, F.pad(tokens, (0, length - len(tokens))), label


class Model(torch.nn.Module):
    """Predicts the first token's parity from the mean of embeddings without padding."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.embedding, self.head = torch.nn.Embedding(50, 8), torch.nn.Linear(8, 2)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        real = (tokens > 0)[..., None]
        return self.head((self.embedding(tokens).tanh() * real).sum(1) / real.sum(1))


def flat_gradient(model: torch.nn.Module) -> np.ndarray:
    return torch.cat([p.grad.reshape(-1) for p in model.parameters()]).numpy().copy()


Steps = list[tuple[list[int], np.ndarray]]  # each step's samples on a rank, and its optimizer's gradient


def train_all() -> dict[str, Steps]:
    """Train every policy with the loader's scale, and pool with plain means as an inexact loop does."""
    join_group()
    return {**{name: train(name, exact=True) for name in POLICIES}, "means": train("pool", exact=False)}


def train(name: str, exact: bool) -> Steps:
    loader = StepLoader(
        Sentences(), LENGTHS, world=World.detect(), policy=POLICIES[name], epochs=2, seed=8,
        global_batch=14 if name == "balanced" else None, sample_padding_fn=fill_up,
    )  # fmt: skip
    model = DistributedDataParallel(Model())
    optimizer, steps = torch.optim.SGD(model.parameters(), lr=0.5), []
    for batches in loader:
        assert loader.step is not None
        run = [id for ids, _, _ in batches for id in ids.tolist()]
        weight = loader.step.sum_scale if batches else 0.0
        batches = batches or [loader.stand_in()]
        for number, (_, tokens, labels) in enumerate(batches):
            with model.no_sync() if number + 1 < len(batches) else nullcontext():
                if exact:
                    loss = weight * F.cross_entropy(model(tokens), labels, reduction="sum")
                else:
                    loss = F.cross_entropy(model(tokens), labels) / len(batches)
                loss.backward()
        steps.append((run, flat_gradient(model)))
        optimizer.step()
        optimizer.zero_grad()
    return steps


def largest_error(ranks: list[Steps]) -> float:
    """Return the largest error against one process that takes the mean loss of each step's samples in one batch."""
    model = Model()
    optimizer, worst = torch.optim.SGD(model.parameters(), lr=0.5), 0.0
    for step in zip(*ranks, strict=True):
        np.testing.assert_array_equal(step[0][1], step[1][1])
        ids = [id for run, _ in step for id in run]
        rows = [fill_up(sample(id), LENGTHS[ids].max()) for id in ids]
        tokens, labels = (torch.stack([row[column] for row in rows]) for column in (1, 2))
        F.cross_entropy(model(tokens), labels).backward()
        expected = flat_gradient(model)
        worst = max(worst, float(np.linalg.norm(step[0][1] - expected) / np.linalg.norm(expected)))
        optimizer.step()
        optimizer.zero_grad()
    return worst


@pytest.fixture(scope="module")
def trained() -> list[dict[str, Steps]]:
    return run_ranks(train_all, 2)


@pytest.mark.parametrize("name", POLICIES)
def test_the_gradient_is_that_of_one_process(trained: list[dict[str, Steps]], name: str) -> None:
    ranks = [policies[name] for policies in trained]
    assert Counter(id for steps in ranks for ids, _ in steps for id in ids) == Counter({id: 2 for id in range(61)})
    assert largest_error(ranks) <= 1e-6
    if name == "token_budget":
        assert any(not ids for ids, _ in ranks[1]), "a rank without samples in an epoch's last step is among these"


def test_means_of_unequal_batches_are_not(trained: list[dict[str, Steps]]) -> None:
    assert largest_error([policies["means"] for policies in trained]) > 1e-2
