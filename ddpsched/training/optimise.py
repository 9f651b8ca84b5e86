"""The optimizer's step: clip, AdamW, learning rate. The same on every rank."""

import math
import warnings

import torch
from torch.distributed.tensor import DTensor
from torch.optim.lr_scheduler import LambdaLR

from ddpsched.config import LrConfig, TrainConfig
from ddpsched.training.variable_lr import VariableBatchSizeLR, linear_warmup


class Optimiser:
    """AdamW over a model's parameters with gradient clipping and a warm-up schedule.

    Biases and normalisation weights (one-dimensional parameters) are not decayed.

    ``lr``: how the schedule's rate follows the size of a step. ``global_batch``: the
    size that the rate is meant for where ``lr.reference`` names none, in samples.
    Raises ValueError where a rule is asked for and neither is given.
    """

    def __init__(
        self,
        model: torch.nn.Module,
        config: TrainConfig,
        total_steps: int,
        lr: LrConfig | None = None,
        global_batch: int | None = None,
    ) -> None:
        self._config, self._lr = config, lr or LrConfig()
        self._keeps_memory = False
        self._parameters = [p for p in model.parameters() if p.requires_grad]
        groups = [
            {"params": [p for p in self._parameters if p.ndim > 1], "weight_decay": config.weight_decay},
            {"params": [p for p in self._parameters if p.ndim <= 1], "weight_decay": 0.0},
        ]
        self._adamw = torch.optim.AdamW(groups, lr=0.0, fused=True)
        self._allocate()
        self._reference = self._lr.reference or global_batch
        if self._lr.kind != "fixed" and self._reference is None:
            raise ValueError(f"lr.kind = {self._lr.kind!r} needs lr.reference, or the global batch")
        self.schedule(total_steps)

    def schedule(self, total_steps: int, done: int = 0) -> None:
        """Begin the schedule anew, over ``total_steps``: how many there are may depend on what memory allows.

        ``done``: steps of it that an earlier process has done.
        """
        for group in self._adamw.param_groups:
            group["initial_lr"] = group["lr"] = self._config.learning_rate
        base = LambdaLR(self._adamw, linear_warmup(total_steps, self._config.warmup), last_epoch=done - 1)
        self._schedule: LambdaLR | VariableBatchSizeLR = base
        if self._lr.kind != "fixed":
            assert self._reference is not None
            self._schedule = VariableBatchSizeLR(base, self._reference, self._lr.kind)

    def _allocate(self) -> None:
        """Allocate Adam's two numbers per parameter, so that a device too small fails before the first step.

        A step at rate 0 on zero gradients does so and changes nothing; its count is set back.
        """
        for parameter in self._parameters:
            parameter.grad = torch.zeros_like(parameter)
        self.try_step()

    def try_step(self) -> None:
        """Clip and step at rate 0 on the gradients that are there, which must be zeros; nothing is changed."""
        rates = [group["lr"] for group in self._adamw.param_groups]
        for group in self._adamw.param_groups:
            group["lr"] = 0.0
        self.gradient_norm()
        self._adamw.step()
        for group, rate in zip(self._adamw.param_groups, rates, strict=True):
            group["lr"] = rate
        for state in self._adamw.state.values():
            state["step"].zero_()
        self.clear()

    @property
    def torch_optimizer(self) -> torch.optim.Optimizer:
        """Torch's optimizer, with its moments."""
        return self._adamw

    def gradient_norm(self) -> torch.Tensor:
        """Clip the gradient to an L2 norm of ``max_grad_norm`` in place; return its norm before that."""
        norm = torch.nn.utils.clip_grad_norm_(self._parameters, self._config.max_grad_norm)
        return norm.full_tensor() if isinstance(norm, DTensor) else norm

    def skip(self) -> None:
        """Leave the weights as they are: drop the gradient, and let the schedule advance."""
        with warnings.catch_warnings():  # torch takes a schedule that advances before the first step for a mistake
            warnings.filterwarnings("ignore", "Detected call of `lr_scheduler.step", UserWarning)
            self._schedule.step()
        self.clear()

    def step(self, size: float | None = None) -> float:
        """Apply the gradient, advance the schedule, clear the gradient; return the rate that was used.

        ``size``: of this step over all ranks, in ``lr.per``'s unit, samples or tokens. A fixed rate ignores it; a
        rule raises ValueError without it, before anything has changed.
        """
        if isinstance(self._schedule, VariableBatchSizeLR):
            if size is None:
                raise ValueError(f"lr.kind = {self._lr.kind!r} needs the size of each step, in {self._lr.per}")
            self._schedule.scale(size)
        rate = float(self._schedule.get_last_lr()[0])
        assert math.isfinite(rate)
        self._adamw.step()
        self._schedule.step()
        self.clear()
        return rate

    def keep_memory(self, keep: bool) -> None:
        """Let gradients have memory of their own from now on, into which backward adds; or not.

        Else a backward that writes the first gradient hands over its own output, and that of a recorded CUDA graph is
        overwritten by the graph's next run: the sum over micro-batches or virtual ranks would be wrong.
        """
        self._keeps_memory = keep
        for parameter in self._parameters:
            parameter.grad = torch.zeros_like(parameter) if keep else None

    def clear(self) -> None:
        """Set gradients to None, so that the next backward writes instead of adding; to 0 where memory is kept."""
        self._adamw.zero_grad(set_to_none=not self._keeps_memory)
