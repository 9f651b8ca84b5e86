"""Sentences and cells on compiled models, from the frozen tables of experiments.benchmarks.compiled."""

from collections.abc import Mapping, Sequence
from typing import Any

from analysis.compiled import DYNAMIC, EAGER, STATIC
from report.wording import ABSENT, duration, interval, listed, number, signed

Study = Mapping[str, Any]  # "model" and "policies", each with its facts and rows
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
        "" if row["kind"] == EAGER else interval(row["to_eager"]),
        _ratio(row["to_dynamic"]),
        even(row),
    ]


def even(row: Row) -> str:
    """Return after how many steps compiling has paid for itself, of two digits as times are, or why it never does.

    Of the A/A pair it is the verdict.

    >>> even({"step_is": "faster", "break_even_steps": {"steps": 1234.4, "low": 1051.0, "high": 2345.0}})
    '1,200 steps (1,100 to 2,300)'
    >>> even({"step_is": "slower"}), even({"step_is": None})
    ('never', '')
    """
    if row["step_is"] == "faster":
        steps, low, high = (f"{float(f'{each:.2g}'):,.0f}" for each in row["break_even_steps"].values())
        return f"{steps} steps ({low} to {high})"
    return "never" if row["step_is"] == "slower" else row["step_is"] or ""


def _ratio(ratio: Mapping[str, float] | None) -> str:
    return "" if ratio is None else number(ratio["ratio"], 3)


def measured_on(study: Study) -> str:
    """Return on what the policies were measured, a clause for each way there is."""
    ways: dict[str, list[str]] = {}
    for each in study["policies"]:
        machine = each["machine"]
        way = (
            f"{each['backend']}, {each['world_size']} virtual ranks, B = {each['global_batch']}, "
            f"launches: {each['num_launches']} of {each['num_steps']} steps, {machine['cpu']}, "
            f"{machine['cores']} cores, torch {machine['torch']}, {each['date']}"
        )
        ways.setdefault(way, []).append(each["policy"])
    if len(ways) == 1:
        return next(iter(ways))
    return "; ".join(f"{listed(policies)}: {way}" for way, policies in ways.items())


def pays(study: Study) -> str:
    """Return sentences on whether compiling pays, after how many steps, and what it takes."""
    # policy auto may have taken the eager model
    rows = [row for row in _rows(study) if row["step_is"] is not None and row["compile_s"] is not None]
    if not rows:
        return "No compiled arm has ended, so nothing says whether compiling pays."
    devices = listed(sorted({each["machine"]["cpu"] for each in study["policies"]}))
    faster = [row for row in rows if row["step_is"] == "faster"]
    if faster:
        best = min(faster, key=lambda row: float(row["break_even_steps"]["steps"]))
        text = (
            f"On {devices}, compiling shortens the step of {len(faster)} of {len(rows)} compiled arms, against the "
            f"eager model with the same policy: {listed([_name(row) for row in faster])}. The first to have paid for "
            f"its compiling is {_name(best)}, {number(best['to_eager']['ratio'], 3)} of the eager step, after "
            f"{even(best)}."
        )
    else:
        best = min(rows, key=lambda row: float(row["to_eager"]["ratio"]))
        text = (
            f"On {devices}, compiling does not pay: none of {len(rows)} compiled arms has a shorter step than the "
            f"eager model with the same policy, beyond what A/A shows. Nearest is {_name(best)} with "
            f"{number(best['to_eager']['ratio'], 3)} of it."
        )
    seconds = [row["compile_s"] for row in rows]
    starts = [each["start_s"] for each in study["policies"]]
    return (
        f"{text} Compiling takes {duration(min(seconds))} to {duration(max(seconds))}, the compiler's start "
        f"({duration(min(starts))} to {duration(max(starts))}) included."
    )


def padding(study: Study) -> str:
    """Return sentences on how many more tokens are computed on the menus, and on policies that chose no compiled model.

    Nothing where there is neither.
    """
    parts, stayed = [], list[str]()
    for each in study["policies"]:
        policy = str(each["policy"])
        own = [row for row in each["rows"] if row["policy"] == policy and not row["failed"]]
        eager = next((row for row in own if row["kind"] == EAGER), None)
        menus = [row for row in own if row["kind"] == STATIC and row["num_programs"]]
        arms = [row for row in own if row["kind"] in (DYNAMIC, STATIC)]
        if arms and not any(row["num_programs"] for row in arms):
            stayed.append(policy)
        if eager is not None and menus:
            changes = [
                f"{signed(row['computed_per_real'] / eager['computed_per_real'] - 1)} (N = {row['shapes']})"
                for row in menus
            ]
            parts.append(f"{listed(changes)} with {policy}")
    found = [f"Tokens computed on the menus, against the eager model: {'; '.join(parts)}."] if parts else []
    if stayed:
        found.append(f"{listed(stayed)} took the eager model in each of its arms, so these differ by noise alone.")
    return " ".join(found)


def _rows(study: Study) -> Sequence[Row]:
    """Return the compiled arms of all policies."""
    return [row for each in study["policies"] for row in each["rows"] if row["kind"] in (DYNAMIC, STATIC)]


def _name(row: Row) -> str:
    return f"{row['policy']} (N = {row['shapes']})" if row["kind"] == STATIC else f"{row['policy']} ({row['kind']})"
