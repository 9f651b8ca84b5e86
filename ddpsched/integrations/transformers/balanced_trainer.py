"""BalancedTrainerMixin: transformers' Trainer whose ranks run what a plan gives them, with the exact gradient."""

import logging
import math
import sys
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import torch

from ddpsched.decode import decode_json
from ddpsched.errors import ConfigError
from ddpsched.integrations.tested_versions import warn_of_version
from ddpsched.integrations.transformers.loss_rule import Rule, classes_of, count_labels, find_rule, without_labels
from ddpsched.integrations.transformers.microbatches import Microbatches
from ddpsched.integrations.transformers.trainer_plans import microbatches_of
from ddpsched.integrations.world_size import for_world_size
from ddpsched.records import write_json
from ddpsched.training.collate import Packing

if TYPE_CHECKING:
    from transformers import Trainer
else:
    Trainer = object

logger = logging.getLogger(__name__)

STATE = "ddpsched.json"  # of a checkpoint: what made its plans, and the position


def balance(trainer: Any, **balancing: Any) -> Any:
    """Let a Trainer that is made already run balanced steps; return it.

        trainer = ddpsched.integrations.transformers.balance(Trainer(model, args, train_dataset=data))
        trainer.train()

    ``balancing``: as of :class:`BalancedTrainerMixin`, which its class gets as another base. Raises ConfigError where
    it has that already, and for what is no Trainer.
    """
    from transformers import Trainer

    kind = type(trainer)
    if not isinstance(trainer, Trainer):
        raise ConfigError(f"balance: {kind.__name__} is no Trainer of transformers; give balance(Trainer(model, ...))")
    if isinstance(trainer, BalancedTrainerMixin):
        raise ConfigError(f"balance: {kind.__name__} is balanced already; call it once, or set its attribute balancing")
    trainer.__class__ = type(f"Balanced{kind.__name__}", (BalancedTrainerMixin, kind), {})
    trainer.balancing = balancing
    return trainer


class BalancedTrainerMixin(Trainer):  # type: ignore[misc] # transformers has no types
    """A base of a Trainer, before ``Trainer`` itself, that gives each rank what a policy assigns to it.

        class MyTrainer(BalancedTrainerMixin, Trainer):
            balancing = {"policy": "packed"}

    The global batch is per_device_train_batch_size x gradient_accumulation_steps x processes samples, as Trainer has
    it, and the gradient is that of their mean loss, or of the mean over their label tokens where the model divides by
    ``num_items_in_batch``. A rank runs up to gradient_accumulation_steps micro-batches. Evaluation, checkpoints and
    callbacks are Trainer's; a checkpoint resumes within an epoch, with another number of processes too.
    ``dataloader_drop_last`` leaves out a last step of fewer samples than the others; a rank that has none of it gets a
    stand-in otherwise.

    ``balancing``: arguments of the plans, all optional: ``policy`` ("balanced"), ``lengths`` (tokens of each sample;
    else ``ddpsched.lengths(train_dataset)``, or its column ``length_column_name``), ``order``, ``seed`` (Trainer's
    ``data_seed``), ``cost``, ``memory``, ``speeds``, ``global_batch`` (to be checked against Trainer's), as of
    StepLoader; and ``mean_loss``: "scale" the loss of a head that takes the mean of its batch, so that it is exact, or
    "refuse" it. With policy "packed" and one of transformers' collators, rows are packed by ``packed_collate``, and the
    model is changed by ``enable_packing``.

    Raises ConfigError for arguments of Trainer that contradict a plan, for a loss that is not a sum or a mean over
    samples or labels, and where a checkpoint is of other data or plans.
    """

    balancing: ClassVar[Mapping[str, Any]] = {}

    _tr_loss: torch.Tensor  # Trainer's
    _microbatches: Microbatches | None = None
    _rule: Rule | None = None  # None: not tried yet
    _resumed_from: str | None = None
    _classes: frozenset[float] | None = None  # labels that were tried
    _factors: deque[float] | None = None  # of the micro-batches of the step that runs

    def __init_subclass__(cls, **more: Any) -> None:
        """Raise ConfigError where Trainer comes before this base, so that its batches would stay as they are."""
        super().__init_subclass__(**more)
        before = cls.__mro__[: cls.__mro__.index(BalancedTrainerMixin)]
        if any(base.__name__ == "Trainer" and base.__module__.startswith("transformers.") for base in before):
            first = cls.__bases__[0].__name__
            raise ConfigError(
                f"{cls.__name__}({first}, BalancedTrainerMixin) would leave {first}'s batches as they are; write class "
                f"{cls.__name__}(BalancedTrainerMixin, {first})"
            )

    @property
    def has_samples(self) -> bool:
        """Whether this rank has samples in the step that runs; else it runs a stand-in, times zero."""
        return self._microbatches is not None and bool(self._microbatches.counts)

    def get_train_dataloader(self) -> Any:
        warn_of_version("transformers")
        loader = self._microbatches = microbatches_of(self, self.balancing)
        self._rule = None
        state = None if self._resumed_from is None else Path(self._resumed_from, STATE)
        if state is not None and not state.is_file():
            logger.warning(
                "%s is missing: the checkpoint is of a Trainer without a plan, so steps before it had other samples; "
                "as many steps are left out of this epoch's plan", state,
            )  # fmt: skip
        elif state is not None and not self.args.ignore_data_skip:
            try:
                read = decode_json(state.read_bytes())
            except ValueError as error:
                raise ConfigError(f"{state}: {error}; resume from another checkpoint") from None
            try:
                loader.load_state_dict(for_world_size(read, self.args.world_size))
            except ConfigError as error:
                raise ConfigError(f"{state}: {error}") from None
        return loader

    def _inner_training_loop(self, *args: Any, **more: Any) -> Any:
        self._resumed_from = more.get("resume_from_checkpoint")
        return super()._inner_training_loop(*args, **more)

    def get_batch_samples(self, epoch_iterator: Iterator[Any], num_batches: int, device: Any) -> Any:
        loader = self._microbatches
        if loader is None:
            raise ConfigError(
                f"{type(self).__name__}: its get_train_dataloader is not BalancedTrainerMixin's, so its batches are "
                "not planned; leave the method out"
            )
        if self._factors:
            raise ConfigError(
                f"{type(self).__name__}: its training_step does not come to BalancedTrainerMixin's, so the last step "
                "was not scaled; call super().training_step(model, inputs, num_items_in_batch) in it"
            )
        batches = list(islice(epoch_iterator, num_batches))
        if not batches:  # the epoch has ended, on all ranks
            return [], None
        if self._rule is None:
            self._rule = self._found_rule(loader)
        real, share, counts = [batch for batch in batches if batch], loader.steps.step, loader.counts
        assert share is not None
        self._try_new_classes(loader, real)
        if self._rule == "step":
            items = self._get_num_items_in_batch(real if counts else [without_labels(real[0])], device)
            self._factors = deque([float(bool(counts))] * len(real))
            return batches, items
        if self._rule == "labels":
            counts = [count_labels(self, batch) for batch in real] if counts else []
            scale = share.token_scale(sum(counts))
        else:
            scale = share.sum_scale
        self._factors = deque([scale * count for count in counts] or [0.0])
        return batches, None

    def training_step(self, model: Any, inputs: Any, num_items_in_batch: Any = None) -> torch.Tensor:
        if not inputs:  # this rank has fewer micro-batches than others
            return torch.zeros((), device=self.args.device)
        assert self._factors is not None, "get_batch_samples came before"
        factor = self._factors.popleft()
        self.current_gradient_accumulation_steps = 1  # by which Trainer divides a mean
        with _scaled(self.accelerator, factor) as passes:
            loss: torch.Tensor = super().training_step(model, inputs, num_items_in_batch)
        if not passes:
            raise ConfigError(
                f"{type(self).__name__}: its training_step calls loss.backward(), which nothing can scale; call "
                "self.accelerator.backward(loss)"
            )
        return factor * loss

    def _prepare_input(self, data: Any) -> Any:
        return data.to(self.args.device) if isinstance(data, Packing) else super()._prepare_input(data)

    def floating_point_ops(self, inputs: Any) -> int:
        return super().floating_point_ops(inputs) if inputs else 0

    def _track_num_input_tokens(self, inputs: Any) -> None:
        if inputs:
            super()._track_num_input_tokens(inputs)

    def _try_new_classes(self, loader: Microbatches, batches: list[Any]) -> None:
        """Try the loss on a batch with a class that was not among those tried before; some losses weigh classes."""
        for batch, ids in zip(batches, loader.ids, strict=False):
            if self._classes is not None and len(ids) > 1 and not classes_of(batch) <= self._classes:
                self._classes |= find_rule(self, loader.steps, ids)[1]

    def _found_rule(self, loader: Microbatches) -> Rule:
        """Return how the loss weighs samples; all ranks try the same. Raises ConfigError where it is refused."""
        rule, classes = find_rule(self, loader.steps)
        self._classes = frozenset(classes)
        if rule == "step":
            return rule
        name = type(self.model).__name__
        if self.balancing.get("mean_loss", "scale") == "refuse":
            raise ConfigError(
                f"{name}: its loss is the mean over the {rule} of a batch, and mean_loss = 'refuse'; give Trainer "
                "compute_loss_func=ddpsched.summed_cross_entropy, or mean_loss='scale'"
            )
        if self.is_world_process_zero():
            logger.warning(
                "%s: its loss is the mean over the %s of a batch, whatever num_items_in_batch is; it is scaled by the "
                "batch's share of the step, so that the gradient is exact (mean_loss='scale')", name, rule,
            )  # fmt: skip
        return rule

    def set_initial_training_values(self, args: Any, dataloader: Any) -> Any:
        values = super().set_initial_training_values(args, dataloader)
        loader = self._microbatches
        if loader is None or not loader.steps.plan_source.policy.varies:
            return values
        epochs, _, *middle, max_steps = values
        if args.max_steps > 0:
            epochs, reached = 0, 0
            while reached < max_steps:
                epochs, reached = epochs + 1, reached + loader.num_steps(epochs)
        else:
            whole = int(args.num_train_epochs)
            part = math.ceil((args.num_train_epochs - whole) * loader.num_steps(whole))
            max_steps = sum(map(loader.num_steps, range(whole))) + part
        return (epochs, values[1], *middle, max_steps)

    def _init_training_state(self, *args: Any, **more: Any) -> tuple[int, int]:
        epochs, items = super()._init_training_state(*args, **more)
        loader = self._microbatches
        if loader is None or not loader.steps.plan_source.policy.varies:
            return epochs, items
        epoch, steps = 0, self.state.global_step
        while steps >= loader.num_steps(epoch):
            epoch, steps = epoch + 1, steps - loader.num_steps(epoch)
        return epoch, 0 if self.args.ignore_data_skip else steps * loader.per_step

    def _run_epoch(self, *args: Any, **more: Any) -> None:
        loader = self._microbatches
        if loader is not None and loader.steps.plan_source.policy.varies:  # each epoch has its own number of steps
            steps = loader.num_steps(more["epoch"])
            more |= {"num_update_steps_per_epoch": steps, "steps_in_epoch": steps * loader.per_step}
        with _skipped_by_loader():
            super()._run_epoch(*args, **more)

    def _finalize_training(self, *args: Any, **more: Any) -> Any:
        # of the steps since the last log it is a rank's share of the loss, which Trainer would take for the mean
        self._tr_loss = self.accelerator.reduce(self._tr_loss, "mean")
        return super()._finalize_training(*args, **more)

    def _save_checkpoint(self, model: Any, trial: Any) -> None:
        super()._save_checkpoint(model, trial)
        if self._microbatches is not None and self.args.should_save:
            folder = Path(self._get_output_dir(trial=trial), f"checkpoint-{self.state.global_step}")
            write_json(folder / STATE, self._microbatches.steps.state_dict())


@contextmanager
def _scaled(accelerator: Any, factor: float) -> Iterator[list[float]]:
    """Multiply what is passed to ``accelerator.backward`` by ``factor``; yield the list of factors that were used."""
    backward: Callable[..., None] = accelerator.backward
    passes: list[float] = []

    def scaled(loss: Any, **options: Any) -> None:
        passes.append(factor)
        backward(loss if factor == 1.0 else factor * loss, **options)

    accelerator.backward = scaled
    try:
        yield passes
    finally:
        del accelerator.backward


@contextmanager
def _skipped_by_loader() -> Iterator[None]:
    """Let Microbatches skip what was trained before: accelerate's function would build a DataLoader of their parts."""
    module: Any = sys.modules["transformers.trainer"]
    skip: Callable[..., Any] = module.skip_first_batches

    def skip_first_batches(loader: Any, num_batches: int = 0) -> Any:
        return loader.skip(num_batches) if isinstance(loader, Microbatches) else skip(loader, num_batches)

    module.skip_first_batches = skip_first_batches
    try:
        yield
    finally:
        module.skip_first_batches = skip
