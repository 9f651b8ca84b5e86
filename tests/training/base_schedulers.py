"""All of torch's schedulers as bases for ``VariableBatchSizeLR``, over an optimizer with two parameter groups."""

import random
from collections.abc import Callable

import torch
from torch.optim import lr_scheduler as schedulers
from torch.optim.lr_scheduler import LRScheduler

from ddpsched.training.variable_lr import VariableBatchSizeLR

STEPS, REFERENCE = 100, 8
RATES = (1e-3, 5e-2)  # one for each parameter group
SIZES = [random.Random(0).randint(1, 40) for _ in range(STEPS)]

Build = Callable[[torch.optim.Optimizer], LRScheduler]
BASES: dict[str, Build] = {
    "LambdaLR": lambda o: schedulers.LambdaLR(o, [lambda step: 1 / (1 + step), lambda step: 0.9**step]),
    "MultiplicativeLR": lambda o: schedulers.MultiplicativeLR(o, lambda step: 0.97),
    "StepLR": lambda o: schedulers.StepLR(o, 7, 0.5),
    "MultiStepLR": lambda o: schedulers.MultiStepLR(o, [5, 20], 0.5),
    "ConstantLR": lambda o: schedulers.ConstantLR(o, 0.5, 5),
    "LinearLR": lambda o: schedulers.LinearLR(o, 0.3, 1, 20),
    "ExponentialLR": lambda o: schedulers.ExponentialLR(o, 0.97),
    "PolynomialLR": lambda o: schedulers.PolynomialLR(o, 120, 2.0),
    "CosineAnnealingLR": lambda o: schedulers.CosineAnnealingLR(o, 30),
    "CosineAnnealingWarmRestarts": lambda o: schedulers.CosineAnnealingWarmRestarts(o, 10),
    "CyclicLR": lambda o: schedulers.CyclicLR(o, [1e-4, 1e-3], [1e-3, 1e-1], step_size_up=7),
    "OneCycleLR": lambda o: schedulers.OneCycleLR(o, [1e-2, 1e-1], total_steps=STEPS + 1),
    "SequentialLR": lambda o: schedulers.SequentialLR(
        o, [schedulers.LinearLR(o, 0.1, 1, 10), schedulers.ExponentialLR(o, 0.97)], [10]
    ),
    "ChainedScheduler": lambda o: schedulers.ChainedScheduler(
        [schedulers.ConstantLR(o, 0.5, 5), schedulers.ExponentialLR(o, 0.97)], optimizer=o
    ),
    "ReduceLROnPlateau": lambda o: schedulers.ReduceLROnPlateau(o, patience=2, factor=0.7, min_lr=[1e-5, 1e-3]),
}
# the next rate is made from the group's: a scaled one must not be there
RECURSIVE = ["MultiplicativeLR", "StepLR", "ExponentialLR", "SequentialLR", "ChainedScheduler", "ReduceLROnPlateau"]


def sgd(tensors: bool = False) -> torch.optim.Optimizer:
    torch.manual_seed(0)
    rates = [torch.tensor(rate, dtype=torch.float64) if tensors else rate for rate in RATES]
    groups = [{"params": [torch.nn.Parameter(torch.randn(3))], "lr": rate} for rate in rates]
    return torch.optim.SGD(groups, momentum=0.9)


def in_force(optimizer: torch.optim.Optimizer) -> list[tuple[float, float]]:
    """Return the rate and momentum of each group."""
    return [(float(group["lr"]), float(group["momentum"])) for group in optimizer.param_groups]


def plain() -> VariableBatchSizeLR:
    return VariableBatchSizeLR(BASES["ExponentialLR"](sgd()), REFERENCE)
