"""Arms of a compiled model beside eager ones that took turns with them: a row for each, from its run's records.

A program that an arm needs may be there already: models of one process share those of equal shapes. Its seconds are
then those of the arm that made it, so that each arm counts what it would take alone.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd

WARM_UP = 0.1  # of the steps
EAGER, AGAIN, DYNAMIC, STATIC = "eager", "eager again", "dynamic", "static"  # kinds of arms
NOT_TOLD_APART = "not told apart from A/A"
Times = npt.NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class Arm:
    """An arm of a launch. ``environment``: of its run; ``records``: None where ``failed`` says why there are none."""

    policy: str
    kind: str
    shapes: int | None = None
    failed: str | None = None
    records: pd.DataFrame | None = None
    environment: Mapping[str, Any] = field(default_factory=dict)

    @property
    def name(self) -> str:
        """The policy and the kind, with N of a menu."""
        return f"{self.policy}, N = {self.shapes}" if self.kind == STATIC else f"{self.policy} {self.kind}"


def rows(arms: Sequence[Arm], start_s: float = 0.0) -> list[dict[str, Any]]:
    """Return a row for each arm, in seconds, steps and ratios; null where there is nothing to compare with.

    ``start_s``: for the compiler's start, which each run that compiles pays once. Ratios are of mean steps without the
    first tenth, with the middle half of the ratios of single steps. ``to_static`` is over the eager model with policy
    static, ``to_eager`` over the eager model with the arm's policy, ``to_dynamic`` over the dynamic one. An arm
    ``step_is`` faster or slower than its policy's eager model where ``to_eager`` lies outside :func:`noise_band`.
    ``break_even_steps`` = compile_s / (mean eager step − mean step), where it is faster.
    """
    times = {arm.name: step_times(arm.records) for arm in arms if arm.records is not None}
    made: dict[tuple[Any, ...], float] = {}
    found = [_row(arm, times, start_s, made) for arm in arms]
    low, high = noise_band(found)
    for row in found:
        if row["kind"] not in (DYNAMIC, STATIC) or row["to_eager"] is None:
            continue
        ratio = row["to_eager"]["ratio"]
        row["step_is"] = "faster" if ratio < low else "slower" if ratio > high else NOT_TOLD_APART
        if row["step_is"] == "faster":
            row["break_even_steps"] = row["compile_s"] / (row["step_s"] / ratio - row["step_s"])
    return found


def noise_band(rows: Sequence[Mapping[str, Any]]) -> tuple[float, float]:
    """Return the lower and upper end of A/A: 1, its ratio of means and the middle half of single steps lie within."""
    pair = next((row["to_static"] for row in rows if row["kind"] == AGAIN), None)
    seen = [1.0, *(pair.values() if pair else ())]
    return min(seen), max(seen)


def step_times(records: pd.DataFrame) -> Times:
    """Return the seconds of each step, (steps,)."""
    return records.groupby("step")["step_s"].max().to_numpy()


def _row(arm: Arm, times: Mapping[str, Times], start_s: float, made: dict[tuple[Any, ...], float]) -> dict[str, Any]:
    row: dict[str, Any] = {
        "policy": arm.policy, "kind": arm.kind, "shapes": arm.shapes, "failed": arm.failed, "chosen": None,
        "num_programs": None, "compile_s": None, "num_recompiled": None, "computed_per_real": None, "step_s": None,
        "to_static": None, "to_eager": None, "to_dynamic": None, "step_is": None, "break_even_steps": None,
    }  # fmt: skip
    if arm.records is None:
        return row
    programs = arm.environment.get("compile", {}).get("programs", [])
    for program in programs:
        key = arm.kind, program["rows"], program["length"]
        if program["parts"] or key not in made:
            made[key] = program["seconds"]
    own, base = times[arm.name], times.get(Arm("static", EAGER).name)
    own_eager, dynamic = times.get(Arm(arm.policy, EAGER).name), times.get(Arm(arm.policy, DYNAMIC).name)
    return row | {
        "chosen": arm.environment.get("auto", {}).get("chosen"),
        "num_programs": len(programs),
        "compile_s": start_s + sum(made[arm.kind, each["rows"], each["length"]] for each in programs)
        if programs
        else None,
        "num_recompiled": int(arm.records["recompiled"].notna().sum()),
        "computed_per_real": float(arm.records["padded_tokens"].sum() / arm.records["num_tokens"].sum()),
        "step_s": float(_counted(own).mean()),
        "to_static": _ratio(own, base),
        "to_eager": _ratio(own, own_eager),
        "to_dynamic": _ratio(own, dynamic if arm.kind in (DYNAMIC, STATIC) else None),
    }


def _counted(times: Times) -> Times:
    return times[int(len(times) * WARM_UP) :]


def _ratio(times: Times, base: Times | None) -> dict[str, float] | None:
    """Return the ratio of means, and the middle half of the ratios of single steps, as far as both go."""
    if base is None:
        return None
    steps, warm = min(len(times), len(base)), int(len(times) * WARM_UP)  # menus may change how many steps there are
    low, high = np.percentile(times[warm:steps] / base[warm:steps], (25, 75))
    return {"ratio": float(_counted(times).mean() / _counted(base).mean()), "low": float(low), "high": float(high)}
