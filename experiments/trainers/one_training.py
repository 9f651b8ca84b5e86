"""A Trainer of an arm, and what it lets others see: micro-batches, gradients and the ends of steps."""

import gc
import tempfile
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from itertools import islice
from typing import Any

from experiments.trainers.arms import ODB, Arm
from experiments.trainers.setting import PER_DEVICE, Rows, Setting, padded

LEARNING_RATE = 2e-4


@dataclass(frozen=True)
class Training:
    """A training: at most ``max_steps`` optimizer steps of an arm.

    ``seed``: of the order; ``weights``: of the model's. ``skip``: steps of the epoch that are left out first, of
    Trainer's own samplers. ``exact``: whether the loss is mended where it is not ddpsched's.
    """

    arm: str
    max_steps: int
    seed: int
    weights: int = 0
    skip: int = 0
    exact: bool = True


@dataclass(frozen=True)
class Watch:
    """Functions that are called in a training.

    ``batch``: with each micro-batch, before it runs; ``gradient``: with the model, before the optimizer; ``step``: with
    the model after each step, and returns whether to end.
    """

    batch: Callable[[dict[str, Any]], None]
    step: Callable[[Any], bool]
    gradient: Callable[[Any], None] = lambda model: None


def train(setting: Setting, arm: Arm, training: Training, rows: Rows, watch: Watch) -> str:
    """Train; return what policy auto took, or nothing for other arms."""
    try:
        return _train(setting, arm, training, rows, watch)
    finally:  # a Trainer refers to itself, and keeps its model and the processes of its loader until it is collected
        gc.collect()


def _train(setting: Setting, arm: Arm, training: Training, rows: Rows, watch: Watch) -> str:
    from transformers import TrainingArguments

    import ddpsched
    from ddpsched.integrations.transformers import balance
    from experiments.trainers import odb_loader

    model = setting.build_model(training.weights)
    if arm.packs and not arm.policy:
        ddpsched.enable_packing(model)
    arguments: dict[str, Any] = {
        "per_device_train_batch_size": PER_DEVICE // arm.microbatches,
        "gradient_accumulation_steps": arm.microbatches,
        **arm.arguments,
    }
    if training.arm == ODB:
        arguments |= odb_loader.ARGUMENTS
    with tempfile.TemporaryDirectory() as folder:
        args = TrainingArguments(
            folder, max_steps=training.max_steps, use_cpu=True, seed=training.seed, learning_rate=LEARNING_RATE,
            lr_scheduler_type="constant", max_grad_norm=0.0, report_to=[], save_strategy="no", logging_strategy="no",
            disable_tqdm=True, dataloader_pin_memory=False, **arguments,
        )  # fmt: skip
        mended = ddpsched.summed_cross_entropy if training.exact and not arm.policy else None
        collate = ddpsched.packed_collate if arm.packs else padded
        trainer = _trainer_class(training.skip, watch)(
            model, args, collate, rows, callbacks=[_callback(model, watch)], compute_loss_func=mended
        )
        if arm.policy:
            balance(trainer, policy=arm.policy, **({"cost": setting.cost} if arm.policy == "auto" else {}))
        elif training.arm == ODB:
            assert setting.odb_tokens is not None, "fixed_values finds it where this arm runs"
            odb_loader.enable(trainer, setting.odb_tokens, training.seed, training.exact)
        trainer.train()
    return _named(trainer._microbatches.steps.plan_source.taken) if arm.policy == "auto" else ""


def _named(taken: Mapping[str, Any]) -> str:
    most = taken.get("max_microbatches", 1)
    return str(taken["kind"]) if most == 1 else f"{taken['kind']}, M = {most}"


def _trainer_class(skip: int, watch: Watch) -> Any:
    from transformers import Trainer

    class Watched(Trainer):
        """A Trainer that begins later in its epoch, and shows what it runs."""

        to_skip = skip

        def get_batch_samples(self, epoch_iterator: Any, *words: Any) -> Any:
            deque(islice(epoch_iterator, self.to_skip), maxlen=0)
            self.to_skip = 0
            return super().get_batch_samples(epoch_iterator, *words)

        def training_step(self, model: Any, inputs: Any, *words: Any) -> Any:
            if getattr(self, "has_samples", True):  # else a stand-in, times zero
                watch.batch(inputs)
            return super().training_step(model, inputs, *words)

    return Watched


def _callback(model: Any, watch: Watch) -> Any:
    from transformers import TrainerCallback

    class Callback(TrainerCallback):
        def on_pre_optimizer_step(self, *_: Any, **__: Any) -> None:
            watch.gradient(model)

        def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
            control.should_training_stop = control.should_training_stop or watch.step(model)

    return Callback()
