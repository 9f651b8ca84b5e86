"""Lightning's Trainer: the batches of a step with their scale, and checks of what would make them wrong."""

import sys
from collections.abc import Callable
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
    ``val_loader``: what ``val_dataloader`` returns, with Lightning's own sampler. Checkpoints hold the position. With a
    StepLoader the module sets ``automatic_optimization = False``, the batch is a list, and a step is

        for batch in ddpsched.micro_batches(self.trainer.strategy.model, batches):
            self.manual_backward(scale * summed_loss(self.model, batch))
        optimizer.step()
        optimizer.zero_grad()

    Raises ConfigError as ``fit`` begins where Lightning would divide losses or gradients once more.
    """

    def __init__(self, loader: Any, val_loader: Any = None, count: Callable[[Any], Any] | None = None) -> None:
        super().__init__()
        self._loader, self._count, self._val_loader = loader, count, val_loader
        self._steps: Scaled | None = None

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

    def train_dataloader(self) -> Scaled:
        if self._steps is None:
            loader = self._loader
            self._steps = loader.steps if isinstance(loader, BalancedLoader) else scaled(loader, self._count)
        return self._steps

    def val_dataloader(self) -> Any:
        return [] if self._val_loader is None else self._val_loader
