"""Loops as people write them, on 2 and 4 real ranks: each optimizer's gradient is that of one process.

They are torch's loop with plain, working and resumed loaders, accelerate's, and transformers' Trainer. Ways to lose
samples under the last two are refused. The last steps are included: 49 samples in steps of 16 leave one for an epoch's
last step, so that every other rank has none.
"""

import multiprocessing
import tempfile
import warnings
from collections import Counter
from contextlib import nullcontext
from itertools import islice
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist
import torch.nn.functional as F
from ranks import run_ranks
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader

from ddpsched import BatchSampler, StepLoader, scaled
from ddpsched.integrations.losses import summed_cross_entropy
from ddpsched.local_ranks import join_group

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
    return torch.cat([p.grad.reshape(-1) for p in model.parameters() if p.grad is not None]).numpy().copy()


Steps = list[tuple[list[int], np.ndarray]]  # each step's weighted samples, and the optimizer's gradient


def sampler(policy: str = "balanced", **more: Any) -> BatchSampler:
    return BatchSampler(LENGTHS, global_batch=BATCH, policy=policy, seed=8, **more)


def plain(made: BatchSampler, workers: int = 0) -> Any:
    return DataLoader(Sentences(), batch_sampler=made, collate_fn=collate, num_workers=workers)


class Loop:
    """torch's loop: DDP, the summed loss times the scale, one optimizer step a batch."""

    def __init__(self) -> None:
        self.inner = Model()
        self.model = DistributedDataParallel(self.inner)
        self.optimizer, self.steps = torch.optim.SGD(self.model.parameters(), lr=0.5), Steps()

    def step(self, batches: list[dict[str, torch.Tensor]], scale: float, means: bool = False) -> None:
        self.inner.seen.clear()
        for number, batch in enumerate(batches):
            with self.model.no_sync() if number + 1 < len(batches) else nullcontext():
                logits = self.model(batch["ids"], batch["tokens"])["logits"]
                loss = F.cross_entropy(logits, batch["labels"], reduction="mean" if means else "sum")
                (loss if means else scale * loss).backward()
        self.steps.append((list(self.inner.seen) if scale else [], flat_gradient(self.model)))
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


def step_loader() -> Steps:
    loop, policy = Loop(), {"kind": "balanced", "max_microbatches": 2}
    loader = StepLoader(Sentences(), LENGTHS, policy=policy, global_batch=BATCH, seed=8, collate_fn=collate)
    for _ in range(EPOCHS):
        for batches, scale in scaled(loader):
            loop.step(batches or [loader.stand_in()], scale)
    return loop.steps


def accelerate() -> Steps:
    """Train with accelerate: model and optimizer are prepared, the loader is not."""
    from accelerate import Accelerator

    accelerator, loop = Accelerator(cpu=True), Loop()
    loop.model, loop.optimizer = accelerator.prepare(loop.inner, torch.optim.SGD(loop.inner.parameters(), lr=0.5))
    loader = plain(sampler())
    for _ in range(EPOCHS):
        for batch, scale in scaled(loader):
            loop.inner.seen.clear()
            logits = loop.model(batch["ids"], batch["tokens"])["logits"]
            accelerator.backward(scale * F.cross_entropy(logits, batch["labels"], reduction="sum"))
            loop.steps.append((list(loop.inner.seen) if scale else [], flat_gradient(loop.inner)))
            loop.optimizer.step()
            loop.optimizer.zero_grad()
    return loop.steps


def trainer(last: str, prepared: bool = False) -> Steps:
    """Train with transformers' Trainer and the unprepared loader.

    The Trainer counts the step's labels; nothing calls set_epoch.
    """
    from transformers import Trainer, TrainerCallback, TrainingArguments

    inner, steps = Model(), Steps()
    optimizer = torch.optim.SGD(inner.parameters(), lr=0.5)

    class Ours(Trainer):
        def get_train_dataloader(self) -> Any:
            loader = plain(sampler(last=last))
            return self.accelerator.prepare(loader) if prepared else loader

    class Notes(TrainerCallback):
        def on_pre_optimizer_step(self, *args: Any, **more: Any) -> None:
            steps.append((list(inner.seen), flat_gradient(inner)))
            inner.seen.clear()

    with tempfile.TemporaryDirectory() as folder:
        arguments = TrainingArguments(
            output_dir=folder, num_train_epochs=EPOCHS, max_grad_norm=0.0, use_cpu=True, report_to=[],
            save_strategy="no", logging_strategy="no", remove_unused_columns=False, disable_tqdm=True,
        )  # fmt: skip
        Ours(
            inner, arguments, train_dataset=Sentences(), compute_loss_func=summed_cross_entropy, callbacks=[Notes()],
            optimizers=(optimizer, torch.optim.lr_scheduler.ConstantLR(optimizer, 1.0)),
        ).train()  # fmt: skip
    return steps


def prepared_by_accelerate(even_batches: bool) -> str:
    from accelerate import Accelerator, DataLoaderConfiguration

    accelerator = Accelerator(cpu=True, dataloader_config=DataLoaderConfiguration(even_batches=even_batches))
    return refusal(lambda: next(iter(accelerator.prepare(plain(sampler())))))


def dispatched() -> str:
    from accelerate import Accelerator, DataLoaderConfiguration

    config = DataLoaderConfiguration(dispatch_batches=True)
    loader = Accelerator(cpu=True, dataloader_config=config).prepare(plain(sampler()))
    return refusal(lambda: next(iter(loader))) if dist.get_rank() == 0 else "rank 0 loads for all"


def refusal(work: Any) -> str:
    try:
        work()
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return "nothing was raised"


LOOPS: dict[str, Any] = {
    "balanced": lambda: torch_loop("balanced"),
    "static, with workers": lambda: torch_loop("static", workers=1),
    "minmax": lambda: torch_loop("minmax"),
    "last = join": lambda: torch_loop("balanced", last="join"),
    "last = drop": lambda: torch_loop("balanced", last="drop"),
    "resumed by its state": lambda: resumed(stateful=False),
    "resumed by StatefulDataLoader": lambda: resumed(stateful=True),
    "StepLoader": step_loader,
    "accelerate": accelerate,
    "Trainer": lambda: trainer("join"),
    "Trainer, dropped": lambda: trainer("drop"),
}
WRONG: dict[str, Any] = {
    "means": lambda: torch_loop("balanced", means=True),
    "Trainer, with stand-ins": lambda: trainer("smaller"),
}
REFUSED: dict[str, Any] = {
    "prepared": lambda: prepared_by_accelerate(False),
    "prepared, even batches": lambda: prepared_by_accelerate(True),
    "dispatched": dispatched,
    "Trainer": lambda: refusal(lambda: trainer("join", prepared=True)),
}


def all_loops() -> tuple[dict[str, Steps], dict[str, str], list[str]]:
    """Run every loop in one world; return the steps, the refusals and the warnings."""
    join_group()
    multiprocessing.current_process()._config["daemon"] = False  # type: ignore[attr-defined] # ranks may have workers
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        ran = {name: loop() for name, loop in {**LOOPS, **WRONG}.items()}
        refused = {name: loop() for name, loop in REFUSED.items()}
    dist.barrier()
    return ran, refused, [str(each.message) for each in warned if "stand-in" in str(each.message)]


Found = list[tuple[dict[str, Steps], dict[str, str], list[str]]]


@pytest.fixture(scope="module", params=[2, pytest.param(4, marks=pytest.mark.slow)])
def ran(request: pytest.FixtureRequest) -> Found:
    for package in ("accelerate", "torchdata"):
        pytest.importorskip(package)
    return run_ranks(all_loops, request.param, timeout_s=300)


def largest_error(ranks: list[Steps]) -> float:
    """Return the largest error against one process that takes the mean loss of each step's samples in one batch."""
    model = Model()
    optimizer, worst = torch.optim.SGD(model.parameters(), lr=0.5), 0.0
    for step in zip(*ranks, strict=True):
        for _, other in step[1:]:
            np.testing.assert_array_equal(step[0][1], other)
        batch = collate([Sentences()[id] for ids, _ in step for id in ids])
        F.cross_entropy(model(batch["ids"], batch["tokens"])["logits"], batch["labels"]).backward()
        expected = flat_gradient(model)
        worst = max(worst, float(np.linalg.norm(step[0][1] - expected) / np.linalg.norm(expected)))
        optimizer.step()
        optimizer.zero_grad()
    return worst


@pytest.mark.parametrize("name", LOOPS)
def test_the_gradient_is_that_of_one_process(ran: Found, name: str) -> None:
    """All samples also run once in each epoch, in another order in the second."""
    ranks = [loops[name] for loops, _, _ in ran]
    error = largest_error(ranks)
    print(f"{name}, {len(ranks)} ranks: largest relative error of a step {error:.1e}")
    assert error <= 1e-12
    steps = [sorted(id for ids, _ in step for id in ids) for step in zip(*ranks, strict=True)]
    half = len(steps) // EPOCHS
    left_out = 1 if "drop" in name else 0
    for epoch in (steps[:half], steps[half:]):
        counts = Counter(id for step in epoch for id in step)
        assert (len(counts), set(counts.values())) == (SIZE - left_out, {1})
    assert steps[:half] != steps[half:]
    assert len(steps) == 2 * (3 if "join" in name or "drop" in name or name == "Trainer" else 4)
    if name in ("balanced", "accelerate", "StepLoader"):
        assert any(not ids for ids, _ in ranks[0] + ranks[1]), "a rank without samples is among these"


def test_means_of_unequal_batches_are_not(ran: Found) -> None:
    assert largest_error([loops["means"] for loops, _, _ in ran]) > 1e-2


def test_a_loop_that_counts_stand_ins_is_warned(ran: Found) -> None:
    """The Trainer counts a stand-in as a sample of the step, as it cannot recognise it."""
    ids = [id for loops, _, _ in ran for step, _ in loops["Trainer, with stand-ins"] for id in step]
    assert len(ids) == EPOCHS * (SIZE + len(ran) - 1), "some samples count twice"
    warned = [each for _, _, words in ran for each in words]
    assert len(warned) >= EPOCHS
    assert all("gets sample" in each and "Trainer does, needs last='join' or last='drop'" in each for each in warned)


@pytest.mark.parametrize("name", REFUSED)
def test_a_loader_that_would_be_dealt_out_once_more_is_refused(ran: Found, name: str) -> None:
    for rank, (_, refused, _) in enumerate(ran):
        if name == "dispatched":
            expected = "DataLoaderDispatcher (dispatch_batches=True) has one" if rank == 0 else "rank 0 loads for all"
        else:
            expected = f"BatchSamplerShard gives each of {len(ran)} processes every {len(ran)}th list of it"
        assert expected in refused[name]
        if "rank 0 loads" not in expected:
            assert "Do not give its DataLoader to accelerator.prepare" in refused[name]
