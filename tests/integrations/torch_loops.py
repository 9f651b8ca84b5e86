"""A model, data, and torch's own loops over ddpsched's loaders, whose every step is noted."""

from collections.abc import Callable
from contextlib import nullcontext
from itertools import islice
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader

from ddpsched import BatchSampler, StepLoader, micro_batches, scaled

SIZE, BATCH, EPOCHS = 49, 16, 2
LENGTHS = np.random.default_rng(3).integers(2, 30, SIZE)


class Sentences:
    def __len__(self) -> int:
        return SIZE

    def __getitem__(self, id: int) -> dict[str, Any]:
        tokens = torch.from_numpy(np.random.default_rng([7, id]).integers(1, 50, LENGTHS[id]))
        return {"ids": id, "tokens": tokens, "labels": int(tokens[0]) % 2}


def collate(samples: list[dict[str, Any]]) -> dict[str, torch.Tensor]:
    longest = max(len(each["tokens"]) for each in samples)  # fails on an empty list, as most collate functions do
    padded = [F.pad(each["tokens"], (0, longest - len(each["tokens"]))) for each in samples]
    batch = {name: torch.tensor([each[name] for each in samples]) for name in ("ids", "labels")}
    return {**batch, "tokens": torch.stack(padded)}


class Model(torch.nn.Module):
    """Predicts the first token's parity from the mean of embeddings without padding; notes the ids it sees."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.embedding, self.head = torch.nn.Embedding(50, 8), torch.nn.Linear(8, 2)
        self.seen: list[int] = []
        self.double()

    def forward(self, ids: torch.Tensor, tokens: torch.Tensor, labels: Any = None) -> dict[str, torch.Tensor]:
        self.seen += ids.tolist()
        real = (tokens > 0)[..., None]
        return {"logits": self.head((self.embedding(tokens).tanh() * real).sum(1) / real.sum(1))}


def flat_gradient(model: torch.nn.Module) -> np.ndarray:
    gradients = [p.grad for p in model.parameters() if p.grad is not None]
    whole = [each.full_tensor() if isinstance(each, DTensor) else each for each in gradients]
    return torch.cat([each.reshape(-1) for each in whole]).numpy().copy()


Steps = list[tuple[list[int], np.ndarray]]  # each step's weighted samples, and the optimizer's gradient


def sampler(policy: str = "balanced", **more: Any) -> BatchSampler:
    return BatchSampler(LENGTHS, global_batch=BATCH, policy=policy, seed=8, **more)


def plain(made: BatchSampler, workers: int = 0) -> Any:
    return DataLoader(Sentences(), batch_sampler=made, collate_fn=collate, num_workers=workers)


class Loop:
    """torch's loop: DDP, the summed loss times the scale, one optimizer step a batch."""

    def __init__(self, wrap: Callable[[Any], Any] = DistributedDataParallel) -> None:
        self.inner = Model()
        self.model: Any = wrap(self.inner)
        self.optimizer, self.steps = torch.optim.SGD(self.model.parameters(), lr=0.5), Steps()

    def step(self, batches: list[dict[str, torch.Tensor]], scale: float, means: bool = False) -> None:
        self.inner.seen.clear()
        for number, batch in enumerate(batches):
            with self.model.no_sync() if number + 1 < len(batches) else nullcontext():
                logits = self.model(batch["ids"], batch["tokens"])["logits"]
                loss = F.cross_entropy(logits, batch["labels"], reduction="mean" if means else "sum")
                (loss if means else scale * loss).backward()
        self.end(scale)

    def end(self, scale: float) -> None:
        self.steps.append((list(self.inner.seen) if scale else [], flat_gradient(self.inner)))
        self.optimizer.step()
        self.optimizer.zero_grad()

    def run(self, loader: Any, means: bool = False, most: int | None = None) -> Any:
        """Run one iteration, or its first steps."""
        steps = scaled(loader)
        for batch, scale in islice(steps, most):
            self.step([batch], scale, means)
        return steps


def torch_loop(policy: str, workers: int = 0, means: bool = False, **more: Any) -> Steps:
    loop, loader = Loop(), plain(sampler(policy, **more), workers)
    for _ in range(EPOCHS):
        loop.run(loader, means)
    return loop.steps


def resumed(stateful: bool) -> Steps:
    """Break off after every step of the first epoch, the last one included, and resume with new objects."""
    loop, state = Loop(), None
    for _ in range(-(-SIZE // BATCH)):
        made = sampler("minmax")
        loader = stateful_loader(made) if stateful else plain(made)
        if state is not None:
            (loader if stateful else scaled(loader)).load_state_dict(state)
        steps = loop.run(loader, most=1)
        state = (loader if stateful else steps).state_dict()
    loop.run(loader)  # runs nothing at the epoch's end, or else the next epoch
    if len(loop.steps) == -(-SIZE // BATCH):
        loop.run(loader)
    return loop.steps


def stateful_loader(made: BatchSampler) -> Any:
    from torchdata.stateful_dataloader import StatefulDataLoader

    return StatefulDataLoader(Sentences(), batch_sampler=made, collate_fn=collate)


def micro_batched(wrap: Callable[[Any], Any] = DistributedDataParallel) -> Steps:
    """Run several micro-batches a step, of which ranks have different numbers."""
    loop = Loop(wrap)
    loader = several()
    for _ in range(EPOCHS):
        for batches, scale in scaled(loader):
            loop.inner.seen.clear()
            for batch in micro_batches(loop.model, batches):
                (scale * summed(loop.model, batch)).backward()
            loop.end(scale)
    assert loader.uneven
    return loop.steps


def sharded() -> Steps:
    return micro_batched(fully_shard)


class Several(StepLoader):
    """A StepLoader that notes whether ranks ever had different numbers of micro-batches."""

    uneven = False

    def __iter__(self) -> Any:
        for batches in super().__iter__():
            assert self.plan is not None
            self.uneven |= len({len(rank) for rank in self.plan.ranks}) > 1
            yield batches


def several() -> Several:
    policy = {"kind": "balanced", "max_microbatches": 2}
    return Several(Sentences(), LENGTHS, policy=policy, global_batch=BATCH, seed=8, collate_fn=collate)


def summed(model: Any, batch: dict[str, torch.Tensor]) -> torch.Tensor:
    return F.cross_entropy(model(batch["ids"], batch["tokens"])["logits"], batch["labels"], reduction="sum")


def step_loader() -> Steps:
    loop, policy = Loop(), {"kind": "balanced", "max_microbatches": 2}
    loader = StepLoader(Sentences(), LENGTHS, policy=policy, global_batch=BATCH, seed=8, collate_fn=collate)
    for _ in range(EPOCHS):
        for batches, scale in scaled(loader):
            loop.step(batches or [loader.stand_in()], scale)
    return loop.steps
