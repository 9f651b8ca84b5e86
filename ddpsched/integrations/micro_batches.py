"""micro_batches: one step's batches, with gradients reduced over ranks in the last one's backward pass alone."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from typing import Any

from ddpsched.errors import ConfigError
from ddpsched.integrations.agreement import process_group


def micro_batches(model: Any, batches: Sequence[Any]) -> Iterator[Any]:
    """Yield each of a step's batches; ``model`` reduces its gradients in the backward pass of the last one.

        for batches, scale in ddpsched.scaled(step_loader):
            for batch in ddpsched.micro_batches(model, batches):
                (scale * summed_loss(model, batch)).backward()
            optimizer.step()
            optimizer.zero_grad()

    Ranks may have different numbers of batches, each at least one. ``model``: what DistributedDataParallel or
    ``fully_shard`` returned, or ``torch.compile`` of it; with one process any module. A sharded model's weights are
    gathered in the first forward pass of a step and stay whole until the last backward pass, as ranks that gathered
    them in every micro-batch would wait for each other in vain.

    Raises ConfigError for a model that reduces gradients in another way, where there are several processes.
    """
    reduces = _switch(model)
    try:
        for number, batch in enumerate(batches):
            reduces(number + 1 == len(batches))
            yield batch
    finally:
        reduces(True)


class _Ddp:
    """The switch of ``DistributedDataParallel.no_sync``, for the passes to come."""

    def __init__(self, model: Any) -> None:
        self._model = model

    def __call__(self, last: bool) -> None:
        self._model.require_backward_grad_sync = last


class _Sharded:
    """The same for a model of ``fully_shard``."""

    def __init__(self, model: Any) -> None:
        self._model = model
        model.set_reshard_after_forward(False)

    def __call__(self, last: bool) -> None:
        self._model.set_requires_gradient_sync(last)
        self._model.set_reshard_after_backward(last)
        self._model.set_is_last_backward(last)


def _switch(model: Any) -> Any:
    model = getattr(model, "_orig_mod", model)  # of torch.compile
    if hasattr(model, "require_backward_grad_sync"):
        return _Ddp(model)
    fsdp = sys.modules.get("torch.distributed.fsdp")
    if fsdp is not None and isinstance(model, getattr(fsdp, "FSDPModule", ())):
        return _Sharded(model)
    group = process_group()
    if group is not None and group.get_world_size() > 1:
        raise ConfigError(
            f"micro_batches: {type(model).__name__} is neither DistributedDataParallel nor of fully_shard, so when it "
            "reduces gradients is not known; wrap the model in one of them, and give what that returned"
        )
    return lambda last: None
