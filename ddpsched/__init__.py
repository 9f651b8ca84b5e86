"""ddpsched: which rank runs which samples, decided step by step, with the gradient kept exact."""

from importlib import import_module
from typing import Any

__version__ = "0.1.0"

_LAZY = {
    "BatchSampler": "ddpsched.integrations.batch_sampler",
    "PoolStream": "ddpsched.integrations.pool_stream",
    "StepLoader": "ddpsched.integrations.step_loader",
    "StepPlan": "ddpsched.plan",
    "VariableBatchSizeLR": "ddpsched.training.variable_lr",
    "World": "ddpsched.world",
    "assert_gradient_exact": "ddpsched.certify.steps",
    "scaled": "ddpsched.integrations.scaled",
    "solve": "ddpsched.planning.solvers",
}
__all__ = [
    "BatchSampler",
    "PoolStream",
    "StepLoader",
    "StepPlan",
    "VariableBatchSizeLR",
    "World",
    "assert_gradient_exact",
    "scaled",
    "solve",
]


def __getattr__(name: str) -> Any:
    """Public names load on first use, so that ``import ddpsched`` costs nothing."""
    if name in _LAZY:
        return getattr(import_module(_LAZY[name]), name)
    raise AttributeError(f"module 'ddpsched' has no attribute {name!r}")
