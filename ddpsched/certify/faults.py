"""Faults that are planted on purpose, to show that a certificate can fail."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Literal, get_args

import numpy as np

from ddpsched.config import RunConfig
from ddpsched.errors import ConfigError
from ddpsched.exchange import Messages
from ddpsched.step_plan import Microbatch, StepPlan

Fault = Literal["no_scale", "repeated_id", "missing_id", "stale_plan", "missing_collective"]
FAULTS: tuple[Fault, ...] = get_args(Fault)
OF_ALL_RANKS: tuple[Fault, ...] = ("repeated_id", "missing_id")


def named_fault(name: str | None, config: RunConfig, num_samples: int | None = None) -> Fault | None:
    """Return the fault of this name. Raises ConfigError where there is none, or this run cannot have it."""
    if name is None:
        return None
    fault = next((each for each in FAULTS if each == name), None)
    if fault is None:
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
    """Return the plans as ``rank`` gets them, with the fault in step ``at``.

    A wrong list of samples is the same on all ranks; only the last rank gets a stale plan.
    """
    plans = list(epoch)
    if fault in OF_ALL_RANKS:  # change the first whole sample of the largest rank
        largest = int(plans[at].counts.argmax())
        micros = plans[at].ranks[largest]
        place = next(place for place, micro in enumerate(micros) if micro.part is None)
        first = micros[place]
        repeated = plans[at - 1].ids[: fault == "repeated_id"]
        ids = np.concatenate([repeated, first.ids[1:]])
        replaced = [Microbatch(ids, first.packed)] if len(ids) else []
        changed = (*micros[:place], *replaced, *micros[place + 1 :])
        ranks = plans[at].ranks
        plans[at] = replace(plans[at], ranks=(*ranks[:largest], changed, *ranks[largest + 1 :]))
    elif fault == "stale_plan" and rank == plans[at].world_size - 1:
        plans[at] = plans[at - 1]
    return plans


def skip_next_vote(exchange: Any, world_size: int) -> None:
    """Make this rank stay away from the next vote, and take its own vote for that of every rank."""
    vote = exchange.vote

    def skip(rows: Messages) -> Messages:
        exchange.vote = vote
        return np.repeat(rows, world_size, axis=0)

    exchange.vote = skip


def take_own_mean(model: Any, counts: Sequence[int], rank: int) -> Any:
    """Make this rank take the mean over its own samples or label tokens, until ``remove()`` of the returned handle.

    So does a loss with ``reduction="mean"`` while ranks are averaged. ``counts``: samples or tokens on each rank.
    """
    factor = sum(counts) / (len(counts) * max(1, counts[rank]))

    def scale(module: Any, args: Any, output: Any) -> None:
        if output.logits.requires_grad:
            output.logits.register_hook(lambda gradient: gradient * factor)

    return model.register_forward_hook(scale)
