"""Means over steps and ranks: compute, waiting, padding, loss, throughput.

What was not measured is null in records, and None here.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ddpsched.records import StepRecord

# columns of records that a summary is made of
COLUMNS = (
    "step", "epoch", "rank", "num_samples", "global_batch", "num_tokens", "padded_tokens", "num_targets",
    "compute_s", "wait_s", "step_s", "unix_s", "loss", "lr", "grad_norm", "peak_memory_bytes",
)  # fmt: skip
Arrays = Mapping[str, Any]  # of COLUMNS, one value a record, missing ones as NaN


@dataclass(frozen=True)
class RankSummary:
    """The means of one rank over the steps."""

    rank: int
    num_steps: int
    num_samples: float  # b_g, a step
    num_tokens: float
    compute_s: float | None
    wait_s: float | None
    step_s: float | None
    loss: float | None
    peak_memory_bytes: float | None  # the largest


@dataclass(frozen=True)
class Summary:
    """The means of all ranks over the steps. ``last``: the last step."""

    num_steps: int
    last: int
    epoch: int
    loss: float | None
    lr: float | None
    grad_norm: float | None
    global_batch: float
    step_s: float | None  # of the slowest rank
    max_over_mean_compute: float | None
    padding: float  # share of the padded tokens
    waiting: float | None  # share of all ranks' time
    samples_per_s: float | None
    tokens_per_s: float | None  # real ones
    pace: float | None  # steps a second by the machine's clock, evaluations and checkpoints included
    ranks: tuple[RankSummary, ...]


def arrays_of(records: Sequence[StepRecord]) -> Arrays:
    """Return the columns of records. ``loss_there``: whether each has a loss, which may itself be NaN."""
    columns = {
        name: np.array([np.nan if (value := getattr(each, name)) is None else value for each in records], dtype=float)
        for name in COLUMNS
    }
    return columns | {"loss_there": np.array([each.loss is not None for each in records])}


def summarise(arrays: Arrays, by_tokens: bool, with_ranks: bool = True) -> Summary:
    """Return the summary of at least one record.

    ``by_tokens``: losses are means over label tokens, not samples. ``with_ranks``: those of each rank as well.
    """
    steps, of_step = np.unique(arrays["step"], return_inverse=True)
    ranks, of_rank = np.unique(arrays["rank"], return_inverse=True)
    by_targets = by_tokens and not np.isnan(arrays["num_targets"]).any()
    weights = np.where(arrays["loss_there"], arrays["num_targets" if by_targets else "num_samples"], 0.0)
    losses = np.where(weights > 0, arrays["loss"], 0.0) * weights  # NaN stays: it is what the run has come to
    step_s, compute_s = _largest(arrays["step_s"], of_step, len(steps)), arrays["compute_s"]
    with np.errstate(invalid="ignore", divide="ignore"):  # no compute at all: no ratio
        ratio = _largest(compute_s, of_step, len(steps)) / _means(compute_s, of_step, len(steps))
    padded, total_s = arrays["padded_tokens"].sum(), np.nansum(step_s)
    waited, there = np.nansum(arrays["wait_s"]), ~np.isnan(arrays["wait_s"])
    all_s = arrays["step_s"][there].sum()
    last = arrays["step"] == steps[-1]
    return Summary(
        num_steps=len(steps), last=int(steps[-1]), epoch=int(arrays["epoch"][last].max()),
        loss=_ratio(losses.sum(), weights.sum()), lr=_mean(arrays["lr"][last]),
        grad_norm=_mean(arrays["grad_norm"][last]),
        global_batch=float(_means(arrays["global_batch"], of_step, len(steps)).mean()),
        step_s=_mean(step_s), max_over_mean_compute=_mean(ratio[np.isfinite(ratio)]),
        padding=1 - float(arrays["num_tokens"].sum() / padded) if padded else 0.0,
        waiting=_ratio(waited, all_s), samples_per_s=_ratio(arrays["num_samples"].sum(), total_s),
        tokens_per_s=_ratio(arrays["num_tokens"].sum(), total_s),
        pace=_pace(arrays["unix_s"], of_step, len(steps)),
        ranks=tuple(
            _rank(int(rank), {name: column[of_rank == place] for name, column in arrays.items()},
                  _ratio(losses[of_rank == place].sum(), weights[of_rank == place].sum()))
            for place, rank in enumerate(ranks if with_ranks else ())
        ),
    )  # fmt: skip


def _rank(rank: int, own: Arrays, loss: float | None) -> RankSummary:
    peak = own["peak_memory_bytes"]
    return RankSummary(
        rank, len(own["step"]), float(own["num_samples"].mean()), float(own["num_tokens"].mean()),
        _mean(own["compute_s"]), _mean(own["wait_s"]), _mean(own["step_s"]), loss,
        None if np.isnan(peak).all() else float(np.nanmax(peak)),
    )  # fmt: skip


def _pace(unix_s: Any, of_step: Any, num_steps: int) -> float | None:
    """Return steps a second, by the moments at which they began; None where these are not known."""
    began = -_largest(-unix_s, of_step, num_steps)
    return _ratio(num_steps - 1, float(began[-1] - began[0])) if num_steps > 1 else None


def _largest(values: Any, groups: Any, number: int) -> Any:
    """Return the largest value of each group; NaN where one is missing."""
    found = np.full(number, -np.inf)
    with np.errstate(invalid="ignore"):
        np.maximum.at(found, groups, values)
    return found


def _means(values: Any, groups: Any, number: int) -> Any:
    return np.bincount(groups, values, number) / np.bincount(groups, minlength=number)


def _mean(values: Any) -> float | None:
    """Return the mean of the values that are there; None where there is none."""
    there = values[~np.isnan(values)]
    return float(there.mean()) if len(there) else None


def _ratio(value: Any, over: Any) -> float | None:
    """Return a ratio; None where nothing was measured to divide by."""
    return float(value / over) if over > 0 else None
