"""The times of runs against another's: what ``ddpsched runs compare`` prints."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from analysis.load import Study, is_run, load_run, load_study
from analysis.ratios import AA, baseline_of, compare, judged, refusal
from analysis.settings import Setting, settings
from analysis.tables import plain
from ddpsched.decode import shorter
from ddpsched.errors import DataError

LONGEST = 300  # characters of a reason in a note


def compared(baseline: Path, others: Sequence[Path] = (), seed: int = 0) -> list[dict[str, Any]]:
    """Return for each setting the ratios of the arms of ``others`` to that of ``baseline``, with verdicts.

    Other seeds of these arms and the A/A run of their setting are read as well, from the same study: an interval needs
    several launches, and a verdict the noise between two equal arms. Without ``others``, all arms of a study against
    its baseline. ``seed``: of the intervals' resampling.

    Settings of a study without a baseline, or with one arm alone, are left out, and so are runs that are not finished;
    the last table's notes name them.

    Raises DataError where a folder cannot be read, where runs are not comparable (of other data, another order or
    other work), or where no setting of a study can be compared.
    """
    studies = _around([baseline, *others])
    found = settings([run for study in studies for run in study.runs])
    left_out, unfinished = list[str](), _unfinished(studies)
    if not others and not is_run(baseline):
        reasons = [(setting, _no_comparison(setting)) for setting in found]
        left_out = [f"not compared, {why}: {setting.label}" for setting, why in reasons if why]
        found = [setting for setting, why in reasons if not why]
        if not found:
            also = f" ({'; '.join(unfinished)})" if unfinished else ""
            raise DataError(f"{baseline}: {'; '.join(left_out)}; name a run to compare with{also}")
        chosen = [(setting, str(baseline_of(setting)), list(setting.arms)) for setting in found]
    else:
        setting, first = _arm_of(baseline, found)
        wanted = [_arm_of(folder, found) for folder in others] or [(setting, arm) for arm in setting.arms]
        for folder, (other, arm) in zip(others, wanted, strict=False):
            if other is not setting:
                labels = f"{shorter(other.label, 300)}; {shorter(setting.label, 300)}"
                raise DataError(f"{folder} and {baseline} did other work ({labels}): not compared")
            _check(setting, arm, first)
        chosen = [(setting, first, [label for _, label in wanted])]
    rows = judged([setting for setting, *_ in chosen], "step_s", seed, [first for _, first, _ in chosen])
    rng = np.random.default_rng(seed)
    tables: list[dict[str, Any]] = []
    for (setting, first, arms), steps in zip(chosen, rows, strict=True):
        shown = [row for row in steps if row["arm"] in (*arms, AA)]
        compute = [compare(setting, row["arm"], first, "max_compute_s", rng).row() for row in shown]
        again = baseline_of(setting)
        if AA in setting.arms and again != first:  # the floor is there, whichever arm is compared with
            floor = judged([setting], "step_s", seed)[0]  # one run's setting: it is the page
            shown.append(
                next({**row, "arm": f"{AA} ({again})", "baseline": first} for row in floor if row["arm"] == AA)
            )
        table = {"label": setting.label, "baseline": first, "arms": [{"arm": row["arm"]} for row in shown]}
        tables.append({**table, "ratios": plain([*shown, *compute]), "notes": []})
    tables[-1]["notes"] += [*left_out, *unfinished]
    return tables


def _no_comparison(setting: Setting) -> str:
    """Return why the arms of a setting are not compared with each other; empty where they are."""
    if len(setting.arms) == 1:
        return f"{next(iter(setting.arms))} is the only arm"
    return "" if baseline_of(setting) else "no arm is the baseline"


def _unfinished(studies: Sequence[Study]) -> list[str]:
    """Return a note on each run that is left out."""
    return [
        f"left out: {study.path.name}/{name}: {shorter(why, LONGEST)}"
        for study in studies
        for name, why in study.left_out.items()
    ]


def _around(folders: Sequence[Path]) -> list[Study]:
    """Return the studies that these folders are, or lie in. Raises DataError for a run that is not finished."""
    studies = dict[Path, Study]()
    for folder in folders:
        if not folder.is_dir():
            raise DataError(f"{folder}: no such folder; give a run's, outputs/STUDY/RUN, or a study's, outputs/STUDY")
        if is_run(folder):
            try:
                load_run(folder)
            except DataError as error:
                raise DataError(f"{folder}: {error}") from None
        path = (folder.parent if is_run(folder) else folder).resolve()
        studies[path] = load_study(path)
    return list(studies.values())


def _arm_of(folder: Path, found: Sequence[Setting]) -> tuple[Setting, str]:
    """Return the setting and the arm of a run."""
    if not is_run(folder):
        raise DataError(f"{folder} is no run: give runs to compare, outputs/STUDY/RUN, or one study alone")
    place = folder.resolve()
    return next(
        (setting, arm)
        for setting in found
        for arm, runs in setting.arms.items()
        if any(run.path.resolve() == place for run in runs)
    )


def _check(setting: Setting, arm: str, first: str) -> None:
    by_seed = {run.seed: run for run in setting.arms[first]}
    couples = [(run, by_seed[run.seed]) for run in setting.arms[arm] if run.seed in by_seed]
    if not couples:
        raise DataError(f"{arm} and {first} share no seed: not compared; run both in one launch")
    for mine, other in couples:
        if (why := refusal(mine, other)) is not None:
            own = any("loop" in run.environment for run in (mine, other))
            remedy = (
                "loops of your own run one after another, and the machine drifts meanwhile; `ddpsched analyse "
                f"{mine.path.parent}` draws both, without a verdict; `ddpsched sweep` measures policies in turn"
                if own
                else "run them in turn, in one study"
            )
            raise DataError(f"{mine.path} and {other.path} are not compared: {shorter(why)}; {remedy}")
