"""A small data set and step loaders over it, for tests."""

from typing import Any

import numpy as np
import torch
from torch.utils.data import Dataset

from ddpsched import StepLoader, World
from ddpsched.data.embedded.length_histogram import sst2_lengths

LENGTHS = sst2_lengths(103, np.random.default_rng(0))


BUDGET = 16 * 12


POLICIES: dict[str, dict[str, Any]] = {
    "static": {"kind": "static"},
    "minmax": {"kind": "minmax"},
    "balanced": {"kind": "balanced"},
    "balanced in two": {"kind": "balanced", "max_microbatches": 2, "lookahead": 2},
    "packed": {"kind": "packed"},
    "token_budget": {"kind": "token_budget", "max_tokens_for_batch": BUDGET, "batches_per_optimizer_step": 2},
    "real tokens": {"kind": "token_budget", "max_tokens_for_batch": BUDGET, "budget": "real"},
    "bins": {"kind": "bins", "median_batch": 4, "batches_per_optimizer_step": 2},
    "bins of each rank": {"kind": "bins", "median_batch": 4, "per_rank_bins": True},
    "pool": {"kind": "pool", "max_tokens_for_batch": BUDGET, "pool_size": 16, "batches_per_optimizer_step": 2},
    "pool, first": {"kind": "pool", "max_tokens_for_batch": BUDGET, "strategy": "prefer_first"},
    "packed pool": {"kind": "pool", "max_tokens_for_batch": BUDGET, "sequence_packing": True},
}


class Rows(Dataset[tuple[int, torch.Tensor]]):
    """Maps ``[id]`` to the id and as many tokens as its length; ``asked``: ids in the order of loading."""

    def __init__(self, lengths: Any = LENGTHS) -> None:
        self.lengths, self.asked = lengths, list[int]()

    def __len__(self) -> int:
        return len(self.lengths)

    def __getitem__(self, id: int) -> tuple[int, torch.Tensor]:
        self.asked.append(id)
        return id, torch.full((int(self.lengths[id]),), id + 1)


def fill_up(sample: tuple[int, torch.Tensor], length: int) -> tuple[int, torch.Tensor]:
    id, tokens = sample
    return id, torch.nn.functional.pad(tokens, (0, length - len(tokens)))


def ids_of(samples: list[tuple[int, torch.Tensor]]) -> list[int]:
    return [id for id, _ in samples]


def loader(name: str, rank: int = 0, world_size: int = 2, **changes: Any) -> StepLoader:
    """Return a step loader whose batches are ids, unless ``changes`` collates them otherwise."""
    policy = POLICIES[name]
    values = {
        "dataset": Rows(changes.get("lengths", LENGTHS)), "lengths": LENGTHS, "world": World(rank, world_size),
        "policy": policy, "collate_fn": ids_of, "seed": 5,
        "global_batch": None if policy["kind"] in ("token_budget", "bins", "pool") else 16,
    }  # fmt: skip
    return StepLoader(**{**values, **changes})
