"""The figures of the report and of its appendix, as PNGs by file name."""

from collections.abc import Iterator, Sequence

import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from analysis.draw import lowest_seed, png
from analysis.draw_compiled import draw_compiled
from analysis.draw_shift import draw_shift
from analysis.draw_speeds import draw_speeds
from analysis.draw_step_blocks import draw_step_blocks
from analysis.draw_step_parts import IN_PERCENT, draw_step_parts
from analysis.draw_tradeoffs import draw_tradeoffs
from analysis.figures import draw_outline
from analysis.settings import AA
from analysis.speed_up import draw_speed_up
from analysis.speeds import speeds
from analysis.step_parts import PARTS, WHOLE, undivided
from analysis.style import STRONGEST
from analysis.tradeoffs import tradeoffs
from ddpsched.data.embedded.length_histogram import sst2_lengths
from experiments.planned import TYPICAL, one_step
from report.computed import measured_speed_ups
from report.measures import peak, tracking
from report.results import Measured, Results
from report.shift import LAWS, calibrations, named
from report.wording import listed, processor

VIRTUAL, FURTHER, GLOO = "virtual", "rivals", ("gloo-peer", "gloo-counts", "gloo-batches")  # studies
ON_VIRTUAL, ON_GLOO = "four virtual ranks", "four gloo processes on two cores"
ON_FURTHER = "four virtual ranks, launches of their own"
FITS = 0.9  # r of the baseline's costs and compute times, from which on a line tells what of compute is fixed
TRAINERS_OPTION = {"length_grouped": "group_by_length"}  # a peer's name, as transformers' Trainer calls it
NAMED = {
    "static", "minmax", "balanced", "packed", "token_budget", "bins", "pool", "length_grouped", "batch_rebalance",
    "deepspeed", "verl", "online_dynamic_batching", "lhotse", "cosmos_rl", "axolotl", "llama_factory", "fairseq",
    "flattening", "padded to the longest",
}  # of the plans in the figure of tradeoffs: ours, and the best known of others  # fmt: skip


def of_paper(results: Results) -> dict[str, bytes]:
    """Return the report's own figures; those of studies that are not there are left out."""
    return {f"{name}.png": png(figure) for name, figure in _paper(results)}


def of_appendix(results: Results) -> dict[str, bytes]:
    """Return the page of five figures of each setting, and the step times of compiled models."""
    found = {outline_file(each): png(_outline(each)) for each in results.measured if _has_outline(each)}
    for study in results.compiled:
        found[compiled_file(study)] = png(draw_compiled(study["policies"], f"{study['model']}, compiled"))
    return found


def _has_outline(measured: Measured) -> bool:
    return measured.table["mode"] != "simulated" and measured.is_timed


def outline_file(measured: Measured) -> str:
    """Return the file name of a setting's five figures."""
    return f"{measured.table['slug']}-outline.png"


def compiled_file(study: dict[str, object]) -> str:
    """Return the file name of a compiled model's step times."""
    return f"compiled-{str(study['model']).rpartition('/')[2]}.png"


def _paper(results: Results) -> Iterator[tuple[str, Figure]]:
    lengths = sst2_lengths(32, np.random.default_rng(TYPICAL))
    yield "step-blocks", draw_step_blocks(one_step(lengths))
    rivals = results.of(FURTHER)
    panels = {ON_VIRTUAL: results.of(VIRTUAL), ON_FURTHER: rivals, ON_GLOO: results.of(*GLOO)}
    panels = {f"{words}, {_processors(found)}": found for words, found in panels.items() if found}
    if panels:
        joined = {heading: _joined_speeds(found) for heading, found in panels.items()}
        yield "first", draw_speeds(dict(list(joined.items())[:1]))  # the README's
        yield "speeds", draw_speeds(joined)
    if parts := {heading: _joined_parts(found) for heading, found in panels.items() if found != rivals}:
        yield "step-parts", draw_step_parts(parts, unit=IN_PERCENT)
    for measured in results.of(VIRTUAL):
        memory = results.of("memory")
        yield "outline", _outline(measured, memory[0] if memory else None, results.of(*GLOO))
        found = _with_memory(tradeoffs(measured.setting, measured.table), memory)
        planned = _planned(results) if results.planned_epoch and memory else None
        yield "tradeoffs", draw_tradeoffs(found, planned=planned)
    if results.what_if:
        rings = [row for row in measured_speed_ups(results) if row["device"] == results.what_if["device"]]
        yield "scaling", draw_speed_up(results.what_if["rows"], "", rings)
    for measured in results.of("shift"):
        yield "shift", _shift(measured)


def _processors(found: Sequence[Measured]) -> str:
    return listed(list(dict.fromkeys(processor(str(each.table["device"])) for each in found)))


def _joined_speeds(found: Sequence[Measured]) -> pd.DataFrame:
    """Return the arms of several studies as one table, each over the baseline of its own launches.

    The baseline is there once, and the A/A pair that is farthest apart. Rates of different launches are not compared,
    so they are left out where there are several studies.
    """
    tables = [speeds(each.table) for each in found]
    table = pd.concat(tables, ignore_index=True)
    if len(tables) > 1:
        table["samples_per_s"] = np.nan
    pairs = table[table["arm"] == AA]
    apart = pairs[["low", "high"]].apply(lambda row: max(1 / row["low"], row["high"]), axis=1)
    arms = _as_elsewhere(table[table["arm"] != AA].drop_duplicates("arm"))
    return pd.concat([arms, pairs.loc[[apart.idxmax()]]] if len(pairs) else [arms], ignore_index=True)


def _joined_parts(found: Sequence[Measured]) -> pd.DataFrame:
    """Return the parts of the arms of several studies, each over the baseline's step in its own launches."""
    tables = []
    for each in found:
        parts = each.parts
        if (tracking(each, each.table["baseline"])["ratio"] or 0) < FITS:
            parts = undivided(parts)
        base = parts.loc[parts["arm"] == each.table["baseline"], "step_s"].iloc[0]
        names = [name for name in (WHOLE, *PARTS, "step_s") if name in parts]
        tables.append(parts.assign(**(parts[names] / base)))
    return _as_elsewhere(pd.concat(tables, ignore_index=True).drop_duplicates("arm")).fillna({WHOLE: 0.0})


def _as_elsewhere(arms: pd.DataFrame) -> pd.DataFrame:
    """Return the arms with the strongest batching of others behind static, where a study of all arms has it."""
    places = arms["arm"].map({"static": 0, STRONGEST: 1}).fillna(2)
    return arms.iloc[np.argsort(places, kind="stable")].reset_index(drop=True)


def _with_memory(found: pd.DataFrame, memory: Sequence[Measured]) -> pd.DataFrame:
    """Return the arms with their peaks in processes of their own, where these were measured.

    An interval is that of the ratio to the baseline's peak, times it.
    """
    peaks = {row["arm"]: row["memory_max_bytes"] for each in memory for row in each.table["arms"]}
    if not peaks:
        return found
    base = {arm: peaks[each.table["baseline"]] for each in memory for arm in peaks}
    ratios = {arm: peak(each, arm) for each in memory for arm in peaks}
    ends = {
        f"peak_{end}": found["arm"].map(lambda arm, end=end: _times(base.get(arm), ratios.get(arm, {}).get(end)))
        for end in ("low", "high")
    }
    return found.assign(peak_bytes=found["arm"].map(peaks).astype("float64"), **ends)


def _times(value: float | None, ratio: float | None) -> float:
    return float("nan") if value is None or ratio is None else value * ratio


def _planned(results: Results) -> pd.DataFrame:
    """Return the arms of an epoch's plans: their speed is how much less their slowest ranks compute than static's."""
    rows = [
        (TRAINERS_OPTION.get(row.arm, row.arm), 1 / row.times_static, row.order_bias, row.arm in NAMED)
        for row in results.planned_epoch
        if row.times_static and row.order_bias is not None
    ]
    table = pd.DataFrame(rows, columns=["arm", "speed", "order_bias", "named"])
    return table.assign(low=np.nan, high=np.nan)


def _outline(measured: Measured, memory: Measured | None = None, processes: Sequence[Measured] = ()) -> Figure:
    """Return the five figures of the first seed.

    ``memory``: of the study that has a process for each arm, the mean over its seeds. ``processes``: studies whose
    ranks are processes, of which an arm is shown once.
    """
    if memory is None and measured.apart:
        memory = measured
    peaks = None if memory is None else _mean_over_seeds(memory)
    real = {arm: steps for each in reversed(processes) for arm, steps in _first_seed(each).items()}
    return draw_outline(_first_seed(measured), memory=peaks, processes=real)


def _mean_over_seeds(measured: Measured) -> dict[str, pd.DataFrame]:
    return {
        arm: pd.concat([run.steps for run in runs]).groupby(level=0).mean(numeric_only=True)
        for arm, runs in measured.setting.arms.items()
        if arm != AA
    }


def _first_seed(measured: Measured) -> dict[str, pd.DataFrame]:
    shown = {arm: run.steps for arm, run in lowest_seed(measured.setting).items()}
    return {named(arm): steps for arm, steps in shown.items()} if calibrations(measured) else shown


def _shift(measured: Measured) -> Figure:
    tables = [table.reset_index().assign(arm=arm) for arm, table in _first_seed(measured).items()]
    return draw_shift(pd.concat(tables), [(steps.start, law) for law, steps in LAWS.items()])
