"""Lightning's Trainer: the batches of a step with their scale, and checks of what would make them wrong."""

import sys
import warnings
from collections.abc import Callable, Iterator, Mapping
from importlib import import_module
from typing import Any

from ddpsched.errors import ConfigError
from ddpsched.integrations.balanced_loader import BalancedLoader
from ddpsched.integrations.scaled import Scaled, scaled
from ddpsched.integrations.step_loader import StepLoader
from ddpsched.integrations.tested_versions import warn_of_version

# Lightning has two packages of one content; a data module must be of the one that is in use
PACKAGES = ("lightning.pytorch", "pytorch_lightning")
PACKAGE = next((name for name in PACKAGES if name in sys.modules), PACKAGES[1])
LightningDataModule: Any = import_module(PACKAGE).LightningDataModule

STRATEGIES = ("DDPStrategy", "SingleDeviceStrategy", "ModelParallelStrategy")  # which average gradients, or need not


class BalancedData(LightningDataModule):  # type: ignore[misc] # of a package that is found at run time
    """A data module whose training batches are ``(batch, scale)``, for ``Trainer.fit(module, BalancedData(loader))``.

        def training_step(self, step, number):
            batch, scale = step
            return scale * summed_loss(self.model, batch)

    ``loader``: what ``ddpsched.balanced`` returned, or any that ``ddpsched.scaled`` takes, with its ``count``.
    ``val_loader``: what ``val_dataloader`` returns, with Lightning's own sampler. Checkpoints hold the position,
    wherever in an epoch they are saved. With a StepLoader the module sets ``automatic_optimization = False``, the
    batch is a list, and a step is

        for batch in ddpsched.micro_batches(self.trainer.strategy.model, batches):
            self.manual_backward(scale * summed_loss(self.model, batch))
        optimizer.step()
        optimizer.zero_grad()

    Raises ConfigError as ``fit`` begins where Lightning would divide losses or gradients once more.
    """

    def __init__(self, loader: Any, val_loader: Any = None, count: Callable[[Any], Any] | None = None) -> None:
        super().__init__()
        self._loader, self._count, self._val_loader = loader, count, val_loader
        self._made: Steps | None = None
        self._went_on = False

    def setup(self, stage: str) -> None:
        if stage != "fit":
            return
        warn_of_version(PACKAGE.partition(".")[0].replace("_", "-"))
        trainer: Any = self.trainer
        if trainer.accumulate_grad_batches != 1:
            raise ConfigError(
                f"Trainer(accumulate_grad_batches={trainer.accumulate_grad_batches}): Lightning would divide each loss "
                "by it, but a scale is exact already; leave it out, and give a StepLoader, whose policy may have "
                "several micro-batches"
            )
        strategy = type(trainer.strategy).__name__
        if strategy not in STRATEGIES:
            raise ConfigError(f"strategy {strategy} is not tested; use strategy='ddp'")
        several = isinstance(self._loader, StepLoader)
        if several and trainer.lightning_module.automatic_optimization:
            raise ConfigError(
                f"{type(trainer.lightning_module).__name__}: a StepLoader gives each step as a list of micro-batches, "
                "which automatic optimisation cannot run; set self.automatic_optimization = False and loop over "
                "ddpsched.micro_batches(self.trainer.strategy.model, batches), or give a DataLoader with a BatchSampler"
            )

        if not self._steps.has_plans:
            raise ConfigError(
                f"{type(self._loader).__name__}: a stream has no length, so Lightning fetches one step more than it "
                "trains, which a resumed run would lose; use torch's own loop, or a data set with samples by id"
            )
        if self._steps.varies:  # Lightning counts an epoch's steps when it asks for the loader
            trainer.reload_dataloaders_every_n_epochs = 1

    @property
    def _steps(self) -> "Steps":
        if self._made is None:
            loader = self._loader
            self._made = Steps(loader.steps if isinstance(loader, BalancedLoader) else scaled(loader, self._count))
        return self._made

    def train_dataloader(self) -> "Steps":
        if self.trainer.ckpt_path and not self._went_on:
            warnings.warn(
                f"{self.trainer.ckpt_path} holds no position of BalancedData, so its data begins with epoch 0; save "
                "checkpoints with BalancedData, or give weights alone",
                stacklevel=2,
            )
        if self._went_on and self._steps.varies:  # Lightning compares the steps of an epoch with those of the next
            progress: Any = self.trainer.fit_loop.epoch_loop.batch_progress
            if progress.is_last_batch:
                progress.current.completed = max(progress.current.completed, len(self._steps))
        return self._steps

    def state_dict(self) -> dict[str, Any]:
        """Return the position, which Lightning saves; it gives a loader's own back within an epoch alone."""
        return self._steps.state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue after the step of ``state``. Raises ConfigError where it is of another loader."""
        self._steps.load_state_dict(state)
        self._went_on = True

    def val_dataloader(self) -> Any:
        return [] if self._val_loader is None else self._val_loader


class Steps:
    """The steps as Lightning iterates them: by length, and never what is left of an epoch that is over."""

    def __init__(self, steps: Scaled) -> None:
        self._steps = steps

    @property
    def has_plans(self) -> bool:
        """Whether each step's plan is known here, which those of a stream are not."""
        return self._steps.has_plans

    @property
    def varies(self) -> bool:
        """Whether one epoch may have more steps than another."""
        return self._steps.plan_source.policy.varies

    def __len__(self) -> int:
        return len(self._steps)

    def __iter__(self) -> Iterator[tuple[Any, float]]:
        return iter(self._steps)

    def state_dict(self) -> dict[str, Any]:
        """Return the state after the step yielded last."""
        return self._steps.state_dict()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue after the step of ``state``; after an epoch's last one, with the next epoch."""
        self._steps.go_on(state)
        self._steps.leave_finished_epoch()
