"""Arms of a compiled model beside eager ones that took turns with them: stored rows, and what follows from their steps.

A program that an arm needs may be there already: models of one process share those of equal shapes. Its seconds are
then those of the arm that made it, so that each arm counts what it would take alone.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pandas as pd

from analysis.stats import Pairs, Ratio, floor_verdicts, ratio, verdicts

WARM_UP = 0.1  # of the steps
EAGER, AGAIN, DYNAMIC, STATIC = "eager", "eager again", "dynamic", "static"  # kinds of arms
Row = dict[str, Any]
Key = tuple[str, str, int | None]


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


def rows(arms: Sequence[Arm], start_s: float = 0.0) -> list[Row]:
    """Return a row for each arm of a launch; null where it failed, and where nothing was compiled.

    ``start_s``: for the compiler's start, which each run that compiles pays once, and which ``compile_s`` includes.
    ``launches_s``: the seconds of all steps, as those of one launch.
    """
    made: dict[tuple[Any, ...], float] = {}
    return [_row(arm, start_s, made) for arm in arms]


def _row(arm: Arm, start_s: float, made: dict[tuple[Any, ...], float]) -> Row:
    row: Row = {
        "policy": arm.policy, "kind": arm.kind, "shapes": arm.shapes, "failed": arm.failed, "chosen": None,
        "num_programs": None, "compile_s": None, "num_recompiled": None, "computed_per_real": None, "launches_s": None,
    }  # fmt: skip
    if arm.records is None:
        return row
    programs = arm.environment.get("compile", {}).get("programs", [])
    for program in programs:
        key = arm.kind, program["rows"], program["length"]
        if program["parts"] or key not in made:
            made[key] = program["seconds"]
    seconds = sum(made[arm.kind, each["rows"], each["length"]] for each in programs)
    return row | {
        "chosen": arm.environment.get("auto", {}).get("chosen"),
        "num_programs": len(programs),
        "compile_s": start_s + seconds if programs else None,
        "num_recompiled": int(arm.records["recompiled"].notna().sum()),
        "computed_per_real": float(arm.records["padded_tokens"].sum() / arm.records["num_tokens"].sum()),
        "launches_s": [np.round(arm.records.groupby("step")["step_s"].max().to_numpy(), 6).tolist()],
    }


def joined(launches: Sequence[Sequence[Mapping[str, Any]]]) -> list[Row]:
    """Return the rows of several launches of the same arms as one row an arm.

    The seconds of compiling are the first launch's, which found nothing kept; what was compiled within steps is counted
    in all of them. An arm that failed in any launch has failed.
    """
    found = []
    for each in zip(*launches, strict=True):
        failed = next((row["failed"] for row in each if row["failed"]), None)
        if failed:
            name = {key: each[0][key] for key in ("policy", "kind", "shapes")}
            found.append(dict.fromkeys(each[0]) | name | {"failed": failed})
        else:
            within = sum(row["num_recompiled"] for row in each)
            steps = [seconds for row in each for seconds in row["launches_s"]]
            found.append({**each[0], "num_recompiled": within, "launches_s": steps})
    return found


def with_ratios(policies: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return a study's policies, each a mapping with ``rows``, with what follows from the seconds of their steps.

    ``step_s``: the mean over steps and launches, without the first tenth of the steps. Ratios of time are of the steps
    that both arms ran: ``to_static`` over the eager model with policy static, ``to_eager`` over the eager model with
    the arm's policy, ``to_dynamic`` over the dynamic one. ``step_is``: the verdict on ``to_eager`` beside the A/A pair
    of the same launches, all compiled arms of the study one family, and that on each A/A pair itself.
    ``break_even_steps`` = compile_s / (mean eager step − mean step), with its limits, where a compiled arm is faster.
    """
    found = [{**each, "rows": [_with_ratios(row, each["rows"]) for row in each["rows"]]} for each in policies]
    pairs = [(row, _floor(each["rows"])) for each in found for row in each["rows"] if _is_compiled(row)]
    again = [row for each in found for row in each["rows"] if row["kind"] == AGAIN and row["to_static"]]
    words = verdicts([(row["to_eager"], floor) for row, floor in pairs])
    for (row, _), word in zip(pairs, words, strict=True):
        row["step_is"] = word
        if word == "faster":
            row["break_even_steps"] = _break_even(row)
    for row, word in zip(again, floor_verdicts([each["to_static"] for each in again]), strict=True):
        row["step_is"] = word
    for row in (row for each in found for row in each["rows"]):
        row |= {name: row[name] and row[name].as_row() for name in ("to_static", "to_eager", "to_dynamic")}
    return found


def _is_compiled(row: Mapping[str, Any]) -> bool:
    return row["kind"] in (DYNAMIC, STATIC) and row["to_eager"] is not None


def _floor(rows: Sequence[Mapping[str, Any]]) -> Ratio:
    pair: Ratio | None = next((row["to_static"] for row in rows if row["kind"] == AGAIN), None)
    return pair or Ratio(math.nan, reason="it did not run")


def _with_ratios(row: Mapping[str, Any], rows: Sequence[Mapping[str, Any]]) -> Row:
    by_key: dict[Key, Mapping[str, Any]] = {(each["policy"], each["kind"], each["shapes"]): each for each in rows}
    compiled = row["kind"] in (DYNAMIC, STATIC)
    counted = [np.array(each[int(len(each) * WARM_UP) :]) for each in row["launches_s"] or ()]
    return {
        **row,
        "step_s": float(np.mean([each.mean() for each in counted])) if counted else None,
        "to_static": _ratio(row, by_key.get(("static", EAGER, None))),
        "to_eager": _ratio(row, by_key.get((row["policy"], EAGER, None))),
        "to_dynamic": _ratio(row, by_key.get((row["policy"], DYNAMIC, None))) if compiled else None,
        "step_is": None,
        "break_even_steps": None,
    }


def _ratio(row: Mapping[str, Any], base: Mapping[str, Any] | None) -> Ratio | None:
    if base is None or not row["launches_s"] or not base["launches_s"]:
        return None
    return ratio([*_pairs(row["launches_s"], base["launches_s"])], np.random.default_rng(0))


def _pairs(times: Sequence[Sequence[float]], base: Sequence[Sequence[float]]) -> Iterator[Pairs]:
    for own, other in zip(times, base, strict=True):
        steps = min(len(own), len(other))  # menus may change how many steps there are
        counted = slice(int(steps * WARM_UP), steps)
        yield Pairs(np.array(own[counted]), np.array(other[counted]))


def _break_even(row: Mapping[str, Any]) -> dict[str, float]:
    """Return the steps until compiling has paid, and their limits, from those of ``to_eager``."""
    over: Ratio = row["to_eager"]
    eager_s = row["step_s"] / over.value
    return {
        name: row["compile_s"] / eager_s / (1 - value)
        for name, value in (("steps", over.value), ("low", over.low), ("high", over.high))
    }
