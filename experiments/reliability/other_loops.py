"""Other people's loops over a balanced loader: from the start or a checkpoint, to a step; the samples of each step.

Each takes where it begins and ends and a folder for its checkpoint, and returns this rank's samples of each step.
"""

import json
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler

from ddpsched import StepLoader, balanced, micro_batches, scaled
from ddpsched.data.embedded.length_histogram import sst2_lengths

SIZE, BATCH, EPOCHS, RANKS = 75, 8, 3, 2  # the last step of an epoch has three samples
LENGTHS = sst2_lengths(SIZE, np.random.default_rng(0))
Steps = list[list[int]]


@dataclass(frozen=True)
class Task:
    """A loop's beginning and end: checkpoint at ``stop`` (None: run to the end), beginning at ``resumed`` (None: 0)."""

    folder: Path
    workers: int
    stop: int | None = None
    resumed: int | None = None

    def state(self, step: int) -> Path:
        """Return this rank's file of a loader's state after so many steps."""
        return self.folder / f"{step}-{dist.get_rank()}.json"


class Numbers:
    """Samples that are their numbers, as long as LENGTHS says."""

    def __len__(self) -> int:
        return SIZE

    def __getitem__(self, id: int) -> dict[str, Any]:
        return {"x": torch.full((2,), float(id)), "labels": torch.tensor(id % 2)}


class Model(torch.nn.Module):
    """A classifier that notes which samples it sees while it trains."""

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.seen = torch.nn.Linear(2, 2), list[int]()

    def forward(self, x: torch.Tensor, labels: torch.Tensor) -> dict[str, torch.Tensor]:
        if self.training:
            self.seen += x[:, 0].int().tolist()
        return {"loss": torch.nn.functional.cross_entropy(self.layer(x / SIZE), labels)}


def loader(task: Task, sampled: bool = True) -> Any:
    """Return the loader that a loop begins with: a DataLoader that is balanced."""
    data: Any = Numbers()
    sampler: Any = DistributedSampler(data) if sampled else None
    plain = DataLoader(
        data, BATCH // RANKS, sampler=sampler, shuffle=None if sampled else True, num_workers=task.workers
    )
    return balanced(plain, LENGTHS)


def torch_loop(task: Task) -> Steps:
    """Run torch's loop, whose state is a file of JSON."""
    made = loader(task)
    return _by_hand(task, made, lambda: ([batch] for batch in made), lambda: made.scale)


def step_loader(task: Task) -> Steps:
    """Run torch's loop over several micro-batches a step."""
    policy = {"kind": "balanced", "max_microbatches": 2}
    made = scaled(StepLoader(Numbers(), LENGTHS, policy=policy, global_batch=BATCH, num_workers=task.workers))
    scale = [0.0]

    def batches() -> Any:
        for micros, scale[0] in made:
            yield micros

    return _by_hand(task, made, batches, lambda: scale[0])


def _by_hand(task: Task, steps: Any, batches: Callable[[], Any], scale: Callable[[], float]) -> Steps:
    model = Model()
    ddp, found = DistributedDataParallel(model), Steps()
    if task.resumed is not None:
        steps.load_state_dict(json.loads(task.state(task.resumed).read_text()))
    total = EPOCHS * -(-SIZE // BATCH) - (task.resumed or 0)
    while len(found) < total:
        for micros in batches():
            for batch in micro_batches(ddp, micros):
                (scale() * ddp(**batch)["loss"]).backward()
            found.append(_taken(model, scale()))
            if task.stop is not None and len(found) == task.stop:
                task.state(task.stop).write_text(json.dumps(steps.state_dict()))
                return found
    return found


def _taken(model: Model, scale: float) -> list[int]:
    seen, model.seen = model.seen, []
    return seen if scale else []


def trainer(task: Task) -> Steps:
    """Run transformers' Trainer."""
    from transformers import Trainer, TrainerCallback, TrainingArguments

    from ddpsched.integrations.transformers import balance

    model, found = Model(), Steps()

    class Notes(TrainerCallback):
        def on_train_begin(self, *_: Any, **__: Any) -> None:
            model.seen.clear()

        def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
            found.append(_taken(model, ours._microbatches.steps.step.weight))
            control.should_save = control.should_training_stop = state.global_step == task.stop

    arguments = TrainingArguments(
        str(task.folder), num_train_epochs=EPOCHS, per_device_train_batch_size=BATCH // RANKS, use_cpu=True,
        report_to=[], save_strategy="no", logging_strategy="no", disable_tqdm=True, dataloader_pin_memory=False,
        dataloader_num_workers=task.workers,
    )  # fmt: skip
    ours: Any = balance(Trainer(model, arguments, train_dataset=Numbers(), callbacks=[Notes()]), lengths=LENGTHS)
    ours.train(resume_from_checkpoint=None if task.resumed is None else str(task.folder / f"checkpoint-{task.resumed}"))
    return found


def accelerate(task: Task) -> Steps:
    """Run accelerate's loop, whose state is in its own checkpoint."""
    from accelerate import Accelerator

    from ddpsched.integrations.accelerate import prepare

    accelerator, model, found = Accelerator(cpu=True), Model(), Steps()
    ddp, optimizer = accelerator.prepare(model, torch.optim.SGD(model.parameters(), lr=0.1))
    made = prepare(accelerator, loader(task, sampled=False))
    if task.resumed is not None:
        accelerator.load_state(str(task.folder / str(task.resumed)))
    total = EPOCHS * -(-SIZE // BATCH) - (task.resumed or 0)
    while len(found) < total:
        for batch in made:
            accelerator.backward(made.scale * ddp(**batch)["loss"])
            optimizer.step()
            optimizer.zero_grad()
            found.append(_taken(model, made.scale))
            if task.stop is not None and len(found) == task.stop:
                accelerator.save_state(str(task.folder / str(task.stop)))
                return found
    return found


def lightning(task: Task) -> Steps:
    """Run Lightning's Trainer, whose checkpoint holds the state."""
    import pytorch_lightning as pl

    from ddpsched.integrations.lightning import BalancedData

    found = Steps()

    class Module(pl.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.model = Model()

        def training_step(self, step: Any, number: int) -> Any:
            batch, self.scale = step
            return self.scale * self.model(**batch)["loss"]

        def on_before_optimizer_step(self, optimizer: Any) -> None:
            found.append(_taken(self.model, self.scale))

        def on_train_batch_end(self, *_: Any) -> None:
            if self.trainer.global_step == task.stop:
                self.trainer.save_checkpoint(task.folder / f"{task.stop}.ckpt")

        def configure_optimizers(self) -> Any:
            return torch.optim.SGD(self.parameters(), lr=0.1)

    fit = pl.Trainer(
        accelerator="cpu", devices=RANKS, strategy="ddp", max_epochs=EPOCHS, max_steps=task.stop or -1, logger=False,
        enable_progress_bar=False, enable_model_summary=False, enable_checkpointing=False,
        default_root_dir=tempfile.gettempdir(),
    )  # fmt: skip
    fit.fit(
        Module(), BalancedData(loader(task)),
        ckpt_path=None if task.resumed is None else str(task.folder / f"{task.resumed}.ckpt"),
    )  # fmt: skip
    return found


LOOPS: dict[str, Callable[[Task], Steps]] = {
    "torch": torch_loop, "StepLoader": step_loader, "Trainer": trainer, "accelerate": accelerate,
    "Lightning": lightning,
}  # fmt: skip
