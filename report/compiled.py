"""Sentences and cells on compiled models, from the frozen tables of experiments.benchmarks.compiled."""

from collections.abc import Mapping, Sequence
from typing import Any

from analysis.compiled import DYNAMIC, EAGER, NOT_TOLD_APART, STATIC
from report.wording import ABSENT, duration, interval, listed, number, signed

Study = Mapping[str, Any]  # "model" and "launches", each with its facts and rows
Row = Mapping[str, Any]

HEADINGS = (
    "policy", "arm", "compiling", "within steps", "computed / real", "step / static eager", "/ own eager", "/ dynamic",
    "break-even",
)  # fmt: skip


def cells(row: Row) -> list[str]:
    """Return a row of the table, a cell for each of ``HEADINGS``."""
    policy = f"{row['policy']}: {row['chosen']}" if row["chosen"] else row["policy"]
    names = [policy, f"N = {row['shapes']}" if row["kind"] == STATIC else row["kind"]]
    if row["failed"]:
        return [*names, *[ABSENT] * (len(HEADINGS) - 3), f"failed: {row['failed']}"]
    return [
        *names,
        "" if row["compile_s"] is None else duration(row["compile_s"]),
        str(row["num_recompiled"]) if row["num_programs"] else "",
        number(row["computed_per_real"], 3),
        interval(row["to_static"]),
        _ratio(row["to_eager"]),
        _ratio(row["to_dynamic"]),
        even(row),
    ]


def even(row: Row) -> str:
    """Return after how many steps compiling has paid for itself, of two digits as times are, or why it never does.

    >>> even({"step_is": "faster", "break_even_steps": 1234.4}), even({"step_is": "slower"}), even({"step_is": None})
    ('1,200 steps', 'never', '')
    """
    if row["step_is"] == "faster":
        rounded = float(f"{row['break_even_steps']:.2g}")
        return f"{rounded:,.0f} steps"
    return {None: "", "slower": "never"}.get(row["step_is"], NOT_TOLD_APART)


def _ratio(ratio: Mapping[str, float] | None) -> str:
    return "" if ratio is None else number(ratio["ratio"], 3)


def measured_on(study: Study) -> str:
    """Return on what the launches were measured, a clause for each way there is."""
    ways: dict[str, list[str]] = {}
    for launch in study["launches"]:
        machine = launch["machine"]
        way = (
            f"{launch['backend']}, {launch['world_size']} virtual ranks, B = {launch['global_batch']}, "
            f"{launch['num_steps']} steps, {machine['cpu']}, {machine['cores']} cores, torch {machine['torch']}, "
            f"{launch['date']}"
        )
        ways.setdefault(way, []).append(launch["policy"])
    if len(ways) == 1:
        return next(iter(ways))
    return "; ".join(f"{listed(policies)}: {way}" for way, policies in ways.items())


def pays(study: Study) -> str:
    """Return sentences on whether compiling pays, after how many steps, and what it takes."""
    # policy auto may have taken the eager model
    rows = [row for row in _rows(study) if row["step_is"] is not None and row["compile_s"] is not None]
    if not rows:
        return "No compiled arm has ended, so nothing says whether compiling pays."
    devices = listed(sorted({launch["machine"]["cpu"] for launch in study["launches"]}))
    policies = [str(launch["policy"]) for launch in study["launches"]]
    measured = (
        f"{devices}, in {'one launch' if len(set(policies)) == len(policies) else 'several launches'} of each policy"
    )
    faster = [row for row in rows if row["step_is"] == "faster"]
    if faster:
        best = min(faster, key=lambda row: float(row["break_even_steps"]))
        text = (
            f"On {measured}, compiling shortens the step of {len(faster)} of {len(rows)} compiled arms, against the "
            f"eager model with the same policy: {listed([_name(row) for row in faster])}. The first to have paid for "
            f"its compiling is {_name(best)}, {number(best['to_eager']['ratio'], 3)} of the eager step, after "
            f"{even(best)}."
        )
    else:
        best = min(rows, key=lambda row: float(row["to_eager"]["ratio"]))
        text = (
            f"On {measured}, compiling does not pay: none of {len(rows)} compiled arms has a shorter step than the "
            f"eager model with the same policy, beyond what A/A shows. Nearest is {_name(best)} with "
            f"{number(best['to_eager']['ratio'], 3)} of it."
        )
    seconds = [row["compile_s"] for row in rows]
    starts = [launch["start_s"] for launch in study["launches"]]
    return (
        f"{text} Compiling takes {duration(min(seconds))} to {duration(max(seconds))}, the compiler's start "
        f"({duration(min(starts))} to {duration(max(starts))}) included."
    )


def padding(study: Study) -> str:
    """Return sentences on how many more tokens are computed on the menus, and on policies that chose no compiled model.

    Nothing where there is neither.
    """
    parts, stayed = [], list[str]()
    for launch in study["launches"]:
        own = [row for row in launch["rows"] if row["policy"] == launch["policy"] and not row["failed"]]
        eager = next((row for row in own if row["kind"] == EAGER), None)
        menus = [row for row in own if row["kind"] == STATIC and row["num_programs"]]
        arms = [row for row in own if row["kind"] in (DYNAMIC, STATIC)]
        if arms and not any(row["num_programs"] for row in arms):
            stayed.append(launch["policy"])
        if eager is not None and menus:
            changes = [
                f"{signed(row['computed_per_real'] / eager['computed_per_real'] - 1)} (N = {row['shapes']})"
                for row in menus
            ]
            parts.append(f"{listed(changes)} with {launch['policy']}")
    found = [f"Tokens computed on the menus, against the eager model: {'; '.join(parts)}."] if parts else []
    if stayed:
        found.append(f"{listed(stayed)} took the eager model in each of its arms, so these differ by noise alone.")
    return " ".join(found)


def _rows(study: Study) -> Sequence[Row]:
    """Return the compiled arms of all launches."""
    return [row for launch in study["launches"] for row in launch["rows"] if row["kind"] in (DYNAMIC, STATIC)]


def _name(row: Row) -> str:
    return f"{row['policy']} (N = {row['shapes']})" if row["kind"] == STATIC else f"{row['policy']} ({row['kind']})"
