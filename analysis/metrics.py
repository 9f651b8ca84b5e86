"""Metrics of records: one row per step, one row per run, and ratios between arms.

Notation: step s of S, rank r of G; x_sr is a column of the records. Standard
deviations over ranks divide by G (the ranks are all there are, not a sample).
Times are seconds. Timing metrics leave out the first ``warmup_steps`` steps, in
which caches fill and memory is first allocated; token metrics keep all steps.
"""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import pandas as pd
from scipy import stats

Array = npt.NDArray[np.float64]

# Columns of ``per_step`` that are compared between arms.
TIMED = ("max_compute_s", "step_s", "std_compute_s")
COUNTED = ("max_padded_tokens", "std_padded_tokens")
# columns of the records that metrics of their timed steps need
WARM = ("step", "padded_tokens", "predicted_cost", "compute_s", "offer_s", "exchange_s", "solve_s", "vote_s")
LENGTHS = ["num_samples", "num_tokens"]


def warmup_steps(num_steps: int) -> int:
    """Return the number of steps left out of timing metrics: 5 of more than 50, else 1, but never all."""
    return 5 if num_steps > 50 else min(1, num_steps - 1)


def per_step(records: pd.DataFrame, loss_per: str = "num_targets") -> pd.DataFrame:
    """Return one row per step (the index): maxima, means, standard deviations and sums over ranks.

    ``step_s`` is the longest over ranks, as is ``plan_wait_s``: the slowest rank
    holds up the step. ``loss_per``: the column of the count that a rank's loss is the
    mean over; samples, where that is null. A column that no rank measured is NaN,
    and so is the spread of memory over virtual ranks: they take turns in one process,
    whose peak a later rank can only find raised.
    """
    ranks = records.groupby("step", sort=True)
    table = {
        "world_size": ranks["world_size"].first(),
        "num_samples": ranks["num_samples"].sum(),
        "num_tokens": ranks["num_tokens"].sum(),
        "padded_tokens": ranks["padded_tokens"].sum(),
    }
    for name in ("compute_s", "padded_tokens", "cpu_s", "peak_memory_bytes"):
        table[f"max_{name}"] = ranks[name].max()
        table[f"mean_{name}"] = ranks[name].mean()
        table[f"std_{name}"] = ranks[name].std(ddof=0)
    if "mode" in records and (records["mode"] == "virtual").all():
        table["std_peak_memory_bytes"] *= np.nan
    table["step_s"] = ranks["step_s"].max()
    table["std_step_s"] = ranks["step_s"].std(ddof=0)
    table["sum_step_s"] = ranks["step_s"].sum(min_count=1)
    table["sum_wait_s"] = ranks["wait_s"].sum(min_count=1)
    table["plan_wait_s"] = ranks["plan_wait_s"].max()
    table["unix_s"] = ranks["unix_s"].min()
    table["steal_s"] = ranks["steal_s"].max()  # of the whole machine, whichever rank read it
    table["squared_tokens"] = ranks["squared_tokens"].sum(min_count=1)
    table["epoch"] = ranks["epoch"].first()
    table["grad_norm"] = ranks["grad_norm"].first()  # of the whole step, the same on all ranks
    weight = records[loss_per].astype("float64").fillna(records["num_samples"])
    table["loss_weight"] = weight.groupby(records["step"]).sum()
    weighted = (records["loss"] * weight).groupby(records["step"]).sum(min_count=1)
    table["loss"] = weighted / table["loss_weight"]  # the mean over the global batch
    return pd.DataFrame(table)


def summarise(
    records: pd.DataFrame, evaluations: pd.DataFrame | None = None, steps: pd.DataFrame | None = None
) -> dict[str, float]:
    """Return all metrics of one run; what was not measured is NaN. ``steps``: ``per_step`` of it, if it is at hand."""
    steps = per_step(records) if steps is None else steps
    timed = steps.iloc[warmup_steps(len(steps)) :]
    warm = records.loc[records["step"].isin(timed.index), list(WARM)]
    rate = timed["num_samples"] / timed["step_s"]
    total_s = timed["step_s"].sum(min_count=1)
    row = {
        "num_steps": float(len(steps)),
        "warmup_steps": float(len(steps) - len(timed)),
        "batch_mean": steps["num_samples"].mean(),
        "max_compute_mean_s": timed["max_compute_s"].mean(),
        "max_compute_p95_s": float(timed["max_compute_s"].quantile(0.95)),
        "step_mean_s": timed["step_s"].mean(),
        "step_p95_s": float(timed["step_s"].quantile(0.95)),
        "step_p99_s": float(timed["step_s"].quantile(0.99)),
        "samples_per_s": timed["num_samples"].sum() / total_s,
        "tokens_per_s": timed["num_tokens"].sum() / total_s,
        "samples_per_s_cv": rate.std(ddof=0) / rate.mean(),
        "compute_std_s": timed["std_compute_s"].mean(),
        "padded_std_tokens": steps["std_padded_tokens"].mean(),
        "memory_std_bytes": timed["std_peak_memory_bytes"].mean(),
        "memory_max_bytes": steps["max_peak_memory_bytes"].max(),
        "max_cpu_mean_s": timed["max_cpu_s"].mean(),
        "wait_share": timed["sum_wait_s"].sum(min_count=1) / timed["sum_step_s"].sum(min_count=1),
        "compute_imbalance": (timed["max_compute_s"] / timed["mean_compute_s"]).mean(),
        "padded_imbalance": (steps["max_padded_tokens"] / steps["mean_padded_tokens"]).mean(),
        "yardstick": yardstick(steps),
        "padding_efficiency": steps["num_tokens"].sum() / steps["padded_tokens"].sum(),
    }
    return row | _planning(warm, timed) | _proxy(warm) | _lengths(records, steps) | _final(evaluations)


def yardstick(steps: pd.DataFrame) -> float:
    """Return sum_s max_r padded_sr / (sum_sr tokens_sr / G): 1.0 is no padding and perfect balance."""
    even = (steps["num_tokens"] / steps["world_size"]).sum()
    return float(steps["max_padded_tokens"].sum() / even) if even else float("nan")


def _planning(warm: pd.DataFrame, timed: pd.DataFrame) -> dict[str, float]:
    """Return the times that steps waited for plans, and those of planning itself."""
    return {
        "plan_wait_mean_s": timed["plan_wait_s"].mean(),
        "plan_wait_p95_s": float(timed["plan_wait_s"].quantile(0.95)),
        "plan_wait_share": timed["plan_wait_s"].sum(min_count=1) / timed["step_s"].sum(min_count=1),
        "offer_mean_s": warm["offer_s"].mean(),
        "exchange_mean_s": warm["exchange_s"].mean(),
        "solve_mean_s": warm["solve_s"].mean(),
        "vote_mean_s": warm["vote_s"].mean(),
    }


def _proxy(warm: pd.DataFrame) -> dict[str, float]:
    """Return how well the predicted cost stands for the measured compute time.

    ``heaviest_share``: share of steps whose slowest rank has the plan's largest
    predicted cost; a blind guess would be right in about 1/G of them.
    ``fixed_s`` and ``s_per_token``: least-squares line of compute time over padded
    tokens; arms on an equally fast machine have about the same.
    """
    both = warm.dropna(subset=["predicted_cost", "compute_s"])
    slowest = both.loc[both.groupby("step")["compute_s"].idxmax()].set_index("step")["predicted_cost"]
    heaviest = both.groupby("step")["predicted_cost"].max()
    fixed_s, s_per_token = line(warm["padded_tokens"].to_numpy(), warm["compute_s"].to_numpy())
    return {
        "fixed_s": fixed_s,
        "s_per_token": s_per_token,
        "cost_time_r": pearson(both["predicted_cost"].to_numpy(), both["compute_s"].to_numpy()),
        "heaviest_share": float((slowest == heaviest).mean()),
    }


def _lengths(records: pd.DataFrame, steps: pd.DataFrame) -> dict[str, float]:
    """Return how far a sample's length decides its step and the size of its micro-batch.

    ``length_drift``: mean length of the second half of the steps over the first
    half's, minus 1. ``count_length_r``: correlation of a rank's b_r with the
    mean length of its samples; negative where short samples are in larger shares.
    """
    first, second = steps.iloc[: len(steps) // 2], steps.iloc[len(steps) // 2 :]
    means = [half["num_tokens"].sum() / half["num_samples"].sum() for half in (first, second) if len(half)]
    busy = records.loc[records["num_samples"] > 0, LENGTHS]
    length = (busy["num_tokens"] / busy["num_samples"]).to_numpy()
    return {
        "mean_length": steps["num_tokens"].sum() / steps["num_samples"].sum(),
        "length_drift": means[1] / means[0] - 1 if len(means) == 2 else float("nan"),
        "count_length_r": pearson(busy["num_samples"].to_numpy(), length),
    }


def length_distances(
    records: pd.DataFrame, static: pd.DataFrame, steps: pd.DataFrame, static_steps: pd.DataFrame
) -> dict[str, float]:
    """Return Kolmogorov-Smirnov distances of mean lengths from static's, 0 (same) to 1.

    ``step_length_ks`` compares whole global batches, which make the gradient;
    ``rank_length_ks`` compares the single ranks' shares of them. ``steps``: ``per_step`` of the records.
    """

    def means(table: pd.DataFrame) -> Array:
        busy = table.loc[table["num_samples"] > 0, LENGTHS]
        return (busy["num_tokens"] / busy["num_samples"]).to_numpy(dtype=np.float64)

    whole, parts = (
        stats.ks_2samp(means(mine), means(other)) for mine, other in ((steps, static_steps), (records, static))
    )
    return {
        "step_length_ks": float(whole.statistic),
        "step_length_p": float(whole.pvalue),
        "rank_length_ks": float(parts.statistic),
    }


def _final(evaluations: pd.DataFrame | None) -> dict[str, float]:
    last = evaluations.iloc[-1] if evaluations is not None and len(evaluations) else pd.Series(dtype="float64")
    return {f"dev_{name}": float(last.get(name, np.nan)) for name in ("loss", "accuracy", "perplexity", "majority")}


def pearson(x: npt.ArrayLike, y: npt.ArrayLike) -> float:
    """Return Pearson's r of x and y, (n,) each; NaN where one of them does not vary."""
    a, b = np.asarray(x, dtype=np.float64), np.asarray(y, dtype=np.float64)
    if len(a) < 2 or np.ptp(a) == 0 or np.ptp(b) == 0:
        return float("nan")
    return float(np.corrcoef(a, b)[0, 1])


def line(x: npt.ArrayLike, y: npt.ArrayLike) -> tuple[float, float]:
    """Return the least-squares (intercept, slope) of y over x; NaN where x does not vary or y was not measured."""
    a, b = np.asarray(x, dtype=np.float64), np.asarray(y, dtype=np.float64)
    if len(a) < 2 or np.ptp(a) == 0 or not np.isfinite(b).all():
        return float("nan"), float("nan")
    slope, intercept = np.polyfit(a, b, 1)
    return float(intercept), float(slope)


def paired(mine: Sequence[pd.DataFrame], other: Sequence[pd.DataFrame], column: str) -> tuple[Array, Array]:
    """Return one column of two arms' step tables, seed by seed, over the steps that both have measured.

    Both sequences have one ``per_step`` table per seed, in the same order.
    """
    columns = [{"x": a[column], "y": b[column]} for a, b in zip(mine, other, strict=True)]
    pairs = [pd.concat(pair, axis=1, join="inner").dropna() for pair in columns]
    if column in TIMED:
        pairs = [pair.iloc[warmup_steps(len(pair)) :] if len(pair) else pair for pair in pairs]
    both = pd.concat(pairs)
    return both["x"].to_numpy(dtype=np.float64), both["y"].to_numpy(dtype=np.float64)


def ratio_of_means(x: Array, y: Array, rng: np.random.Generator) -> tuple[float, float, float]:
    """Return mean(x) / mean(y) with a paired BCa bootstrap interval, 95 %, over steps: (ratio, low, high).

    ``x``, ``y``: (steps,) each. Steps are drawn with replacement as pairs, so that what
    both arms share in a step (samples, noise of the machine) cancels. All NaN without data.
    """
    if not len(x) or not y.mean():
        return float("nan"), float("nan"), float("nan")
    ratio = float(x.mean() / y.mean())
    if len(x) < 3:
        return ratio, float("nan"), float("nan")
    if np.allclose(x, ratio * y, rtol=1e-12, atol=0):  # nothing to resample; BCa would divide 0 by 0
        return ratio, ratio, ratio
    with np.errstate(divide="ignore", invalid="ignore"):  # few steps, of which a draw may hold zeros alone
        result = stats.bootstrap(
            (x, y),
            lambda a, b, axis: a.mean(axis=axis) / b.mean(axis=axis),
            paired=True,
            method="BCa",
            n_resamples=2000,
            batch=200,  # bounds memory at 200 resamples of all steps
            rng=rng,
        )
    return ratio, float(result.confidence_interval.low), float(result.confidence_interval.high)
