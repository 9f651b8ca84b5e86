"""Steps of a small classifier under every synchroniser, and the gradient of one process to compare with."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from installed import HAS_FSDP
from toy import VOCABULARY, Toy, toy

from ddpsched.config import SyncConfig
from ddpsched.training.clock import Clock
from ddpsched.training.collate import Batch, pad
from ddpsched.training.loss import loss_sum
from ddpsched.training.sync import SYNCS, Synchroniser

CPU = torch.device("cpu")
DTYPES = {"float32": torch.float32, "float64": torch.float64, "bfloat16": torch.bfloat16}
TOLERANCE = {"float32": 1e-6, "float64": 1e-12, "bfloat16": 2e-2}
KINDS = ("naive", "overlap", "bucketed", "ddp", *["fsdp"] * HAS_FSDP)
SMALL_MB = 0.0005  # several buckets
STEPS = 3
Gradients = dict[str, np.ndarray | None]


def batches(step: int, world_size: int, accumulation: int) -> list[list[Batch]]:
    """Return batches by rank and micro-batch, of different counts and lengths.

    The parameter ``sometimes`` is used in step 0 by rank 0's first micro-batch alone, and in step 1 by none. In step 2
    the last rank has no micro-batch.
    """
    rng = np.random.default_rng([step, world_size, accumulation])
    ranks = []
    for rank in range(world_size):
        rank_batches = []
        for micro in range(accumulation):
            count, length = 3 + (rank + 2 * micro) % 4, 3 + rank
            rows = [rng.integers(0, VOCABULARY, length) for _ in range(count)]
            rows[0][0] = 2 if (rank, micro) == (0, 0) and step != 1 else 3
            rank_batches.append(pad(rows, rng.integers(0, 3, count), 0, CPU))
        ranks.append(rank_batches)
    if step == 2 and world_size > 1:
        ranks[-1] = []
    return ranks


def loss_of(module: torch.nn.Module, batch: Batch) -> torch.Tensor:
    return loss_sum(module(**batch.inputs).logits, batch.labels)


def gradients(model: torch.nn.Module) -> Gradients:
    found: Gradients = {}
    for name, parameter in model.named_parameters():
        gradient: Any = parameter.grad
        if hasattr(gradient, "full_tensor"):
            gradient = gradient.full_tensor()
        found[name] = None if gradient is None else gradient.double().numpy().copy()
    return found


def reference(step: int, world_size: int, accumulation: int) -> Gradients:
    """Return the gradients of one process on all samples in float64."""
    model, ranks = toy(torch.float64), batches(step, world_size, accumulation)
    total = sum(len(batch) for rank_batches in ranks for batch in rank_batches)
    for rank_batches in ranks:
        for batch in rank_batches:
            (loss_of(model, batch) / total).backward()
    return gradients(model)


def run_step(model: Toy, sync: Synchroniser | None, ranks: Sequence[Sequence[Batch]]) -> Gradients:
    """Run this rank's part of a step, and return its gradients; without a synchroniser they are local."""
    rank_batches = ranks[dist.get_rank()]
    total = sum(len(batch) for share in ranks for batch in share)
    model.zero_grad(set_to_none=True)
    for position, batch in enumerate(rank_batches):
        if sync is None:
            (loss_of(model, batch) / total).backward()
            continue
        with sync.synchronise() if position == len(rank_batches) - 1 else sync.accumulate():
            (loss_of(sync.module, batch) / total).backward()
    if sync is not None:
        if not rank_batches and sync.needs_backward:
            with sync.synchronise():
                (loss_of(sync.module, pad([np.ones(4)], np.zeros(1, dtype=np.int64), 0, CPU)) * 0.0).backward()
        sync.wait()
    return gradients(model)


def distance(found: Gradients, expected: Gradients) -> float:
    """Return the relative L2 difference; a missing gradient counts as zero."""
    pairs = [(found[k] if found[k] is not None else 0.0, e) for k, e in expected.items() if e is not None]
    return float(np.sqrt(sum(np.sum((f - e) ** 2) for f, e in pairs) / sum(np.sum(e**2) for _, e in pairs)))


def make(kind: str, model: Toy, **options: Any) -> Synchroniser:
    if kind == "fsdp":  # fsdp takes only contiguous parameters
        model.turned.data = model.turned.data.contiguous()
    return SYNCS[kind](model, Clock(CPU), SyncConfig(kind=kind, bucket_mb=SMALL_MB, **options))
