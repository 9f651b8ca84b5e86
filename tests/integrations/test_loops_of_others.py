"""Loops as people write them, on 2 and 4 real ranks: each optimizer's gradient is that of one process.

They are torch's loop with plain, working and resumed loaders, fully_shard's, accelerate's, Lightning's, and
transformers' Trainer. Ways to lose samples under accelerate and Trainer are refused. The last steps are included: 49
samples in steps of 16 leave one for an epoch's last step, so that every other rank has none.
"""

import tempfile
import warnings
from collections import Counter
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist
import torch.nn.functional as F
from installed import SHARDS_ON_CPU
from ranks import run_ranks
from torch_loops import (
    EPOCHS,
    SIZE,
    Loop,
    Model,
    Sentences,
    Steps,
    collate,
    flat_gradient,
    micro_batched,
    plain,
    resumed,
    sampler,
    several,
    sharded,
    step_loader,
    summed,
    torch_loop,
)  # fmt: skip

from ddpsched import StepLoader, micro_batches, scaled
from ddpsched.integrations.accelerate import prepare
from ddpsched.integrations.losses import summed_cross_entropy
from ddpsched.local_ranks import join_group


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


def accelerate_prepared(make: Callable[[], Any], resume: bool = False) -> Steps:
    """Train with accelerate, two lines of which are ddpsched's; resume from its checkpoint after three steps."""
    from accelerate import Accelerator

    accelerator, loop = Accelerator(cpu=True), Loop(lambda model: model)
    loop.model, loop.optimizer = accelerator.prepare(loop.inner, torch.optim.SGD(loop.inner.parameters(), lr=0.5))
    steps = prepare(accelerator, make())
    for _ in range(EPOCHS):
        for batches, scale in steps:
            loop.inner.seen.clear()
            for batch in micro_batches(loop.model, batches if isinstance(batches, list) else [batches]):
                accelerator.backward(scale * summed(loop.model, batch))
            loop.end(scale)
            if resume and len(loop.steps) == 6:
                break
    if resume:
        with tempfile.TemporaryDirectory() if dist.get_rank() == 0 else nullcontext() as folder:
            folders = [folder]
            dist.broadcast_object_list(folders)
            accelerator.save_state(folders[0])
            again, rest = Accelerator(cpu=True), Loop(lambda model: model)
            rest.model, rest.optimizer = again.prepare(rest.inner, torch.optim.SGD(rest.inner.parameters(), lr=0.5))
            steps = prepare(again, make())
            again.load_state(folders[0])
            for batch, scale in steps:
                rest.inner.seen.clear()
                again.backward(scale * summed(rest.model, batch))
                rest.end(scale)
            dist.barrier()
        return loop.steps + rest.steps
    return loop.steps


def lightning(make: Callable[[], Any]) -> Steps:
    """Train with Lightning: automatically one batch a step, by hand several."""
    import os

    import pytorch_lightning as pl

    from ddpsched.integrations.lightning import BalancedData

    os.environ["TORCHELASTIC_RUN_ID"] = "test"  # so that Lightning takes the ranks that there are
    loader, steps = make(), Steps()

    class Module(pl.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.net, self.automatic_optimization = Model(), not isinstance(loader, StepLoader)

        def training_step(self, step: Any, number: int) -> Any:
            batch, self.weight = step
            self.net.seen.clear()
            if self.automatic_optimization:
                return self.weight * summed(self.net, batch)
            for each in micro_batches(self.trainer.strategy.model, batch):
                self.manual_backward(self.weight * summed(self.net, each))
            optimizer: Any = self.optimizers()
            optimizer.step()
            optimizer.zero_grad()
            return None

        def on_before_optimizer_step(self, optimizer: Any) -> None:
            steps.append((list(self.net.seen) if self.weight else [], flat_gradient(self.net)))

        def configure_optimizers(self) -> Any:
            return torch.optim.SGD(self.parameters(), lr=0.5)

    pl.Trainer(
        accelerator="cpu", devices=dist.get_world_size(), strategy="ddp", max_epochs=EPOCHS, logger=False,
        enable_progress_bar=False, enable_model_summary=False, enable_checkpointing=False,
    ).fit(Module(), BalancedData(loader))  # fmt: skip
    return steps


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
    "auto": lambda: torch_loop("auto", cost={"kind": "affine_quadratic", "beta": 1e-5}),
    "last = join": lambda: torch_loop("balanced", last="join"),
    "last = drop": lambda: torch_loop("balanced", last="drop"),
    "resumed by its state": lambda: resumed(stateful=False),
    "resumed by StatefulDataLoader": lambda: resumed(stateful=True),
    "StepLoader": step_loader,
    "micro_batches": micro_batched,
    "accelerate": accelerate,
    "accelerate, prepared": lambda: accelerate_prepared(lambda: plain(sampler())),
    "accelerate, resumed": lambda: accelerate_prepared(lambda: plain(sampler()), resume=True),
    "accelerate, several micro-batches": lambda: accelerate_prepared(several),
    **({"fully_shard": sharded} if SHARDS_ON_CPU else {}),
    "Lightning": lambda: lightning(lambda: plain(sampler())),
    "Lightning, several micro-batches": lambda: lightning(several),
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
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        ran = {name: loop() for name, loop in {**LOOPS, **WRONG}.items()}
        refused = {name: loop() for name, loop in REFUSED.items()}
    dist.barrier()
    return ran, refused, [str(each.message) for each in warned if "stand-in" in str(each.message)]


Found = list[tuple[dict[str, Steps], dict[str, str], list[str]]]


@pytest.fixture(scope="module", params=[2, pytest.param(4, marks=pytest.mark.slow)])
def ran(request: pytest.FixtureRequest) -> Found:
    for package in ("accelerate", "torchdata", "pytorch_lightning"):
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
