"""Faults planted on purpose: a certificate that cannot fail says nothing."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Literal, get_args

import numpy as np

from ddpsched.config import RunConfig
from ddpsched.errors import ConfigError
from ddpsched.exchange import Rows
from ddpsched.plan import Microbatch, StepPlan

Fault = Literal["no_scale", "repeated_id", "missing_id", "stale_plan", "missing_collective"]
FAULTS: tuple[Fault, ...] = get_args(Fault)
OF_ALL_RANKS: tuple[Fault, ...] = ("repeated_id", "missing_id")


def named_fault(name: str | None, config: RunConfig, num_samples: int | None = None) -> Fault | None:
    """The fault of this name. Raises ConfigError where there is none, or this run cannot have it."""
    fault = next((each for each in FAULTS if each == name), None)
    if fault is None:
        if name is None:
            return None
        raise ConfigError(f"no fault is called {name!r}; there are: {', '.join(FAULTS)}")
    if fault not in OF_ALL_RANKS and (config.executor.kind != "distributed" or config.world_size == 1):
        raise ConfigError(f"{fault} makes ranks differ; use executor.kind=distributed and world_size of 2 or more")
    if num_samples is not None and num_samples <= config.global_batch:
        raise ConfigError(
            f"{fault} needs an earlier step, but {num_samples} samples with global_batch = {config.global_batch} "
            "make one; lower global_batch"
        )
    return fault


def planted(epoch: Sequence[StepPlan], fault: Fault | None, at: int, rank: int) -> list[StepPlan]:
    """The plans as ``rank`` gets them. A wrong list of samples is the same on all ranks; a stale plan is the last's."""
    plans = list(epoch)
    if fault == "repeated_id":
        plans[at] = _changed(plans[at], int(plans[at - 1].ids[0]))
    elif fault == "missing_id":
        plans[at] = _changed(plans[at], None)
    elif fault == "stale_plan" and rank == plans[at].world_size - 1:
        plans[at] = plans[at - 1]
    return plans


def _changed(plan: StepPlan, instead: int | None) -> StepPlan:
    """The plan with ``instead`` in the place of the first sample of its largest rank, or without that sample."""
    largest = int(plan.counts.argmax())
    first, *rest = plan.ranks[largest]
    ids = first.ids[1:] if instead is None else np.concatenate(([instead], first.ids[1:]))
    kept = (Microbatch(ids, first.packed),) if len(ids) else ()
    ranks = (*plan.ranks[:largest], (*kept, *rest), *plan.ranks[largest + 1 :])
    return replace(plan, ranks=ranks)


class Absent:
    """An exchange whose rank stays away from the next vote, and takes its own vote for everybody's."""

    def __init__(self, exchange: Any, world_size: int) -> None:
        self._exchange, self._world_size, self._away = exchange, world_size, True

    def __getattr__(self, name: str) -> Any:
        return getattr(self._exchange, name)

    def vote(self, rows: Rows) -> Rows:
        if not self._away:
            return self._exchange.vote(rows)
        self._away = False
        return np.repeat(rows, self._world_size, axis=0)


def take_own_mean(model: Any, counts: Sequence[int], rank: int) -> Any:
    """From now on, until ``remove()`` of what is returned: this rank takes the mean over its own samples, or label
    tokens, as a loss with ``reduction="mean"`` does, and ranks are averaged. ``counts``: of them on each rank.
    """
    factor = sum(counts) / (len(counts) * max(1, counts[rank]))

    def scale(module: Any, args: Any, output: Any) -> None:
        if output.logits.requires_grad:
            output.logits.register_hook(lambda gradient: gradient * factor)

    return model.register_forward_hook(scale)
