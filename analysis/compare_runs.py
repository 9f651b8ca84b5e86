"""The times of runs against another's: what ``ddpsched runs compare`` prints."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from analysis.load import Run, Study, is_run, load_run, load_study
from analysis.ratios import AA, ANOTHER, COMPUTED, baseline_of, compare, judged, refusal
from analysis.settings import Setting, couples, settings, work
from analysis.tables import plain
from ddpsched.decode import shorter, shown
from ddpsched.errors import DataError
from ddpsched.launcher_log import never_began
from ddpsched.run_folder import read_status

MOST_KEYS = 3  # of a config that a message names
LONGEST = 300  # characters of a reason in a note
SIMULATED = "times of simulated runs are computed: their ratios have no interval, and no verdict"


def compared(baseline: Path, others: Sequence[Path] = (), seed: int = 0) -> list[dict[str, Any]]:
    """Return for each setting the ratios of the arms of ``others`` to that of ``baseline``, with verdicts.

    Other seeds of these arms and the A/A run of their setting are read as well, from the same study: an interval needs
    several launches, and a verdict the noise between two equal arms. Without ``others``, all arms of a study against
    its baseline. ``seed``: of the intervals' resampling.

    Times of simulated runs are computed: their ratios have no intervals, which a note says.
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
        setting, first, run = _arm_of(baseline, found)
        wanted = [_arm_of(folder, found) for folder in others]
        for folder, (other, arm, theirs) in zip(others, wanted, strict=True):
            if other is not setting:
                raise DataError(f"{folder} and {baseline} did other work: {_difference(theirs, run)}")
            _check(setting, arm, first)
        if not others and len(setting.arms) == 1:
            raise DataError(f"{baseline}: {_no_comparison(setting)} of its study; name a run to compare with")
        chosen = [(setting, first, [arm for _, arm, _ in wanted] or list(setting.arms))]
    rows = judged([setting for setting, *_ in chosen], "step_s", seed, [first for _, first, _ in chosen])
    rng = np.random.default_rng(seed)
    tables: list[dict[str, Any]] = []
    for (setting, first, arms), steps in zip(chosen, rows, strict=True):
        kept = [row for row in steps if row["arm"] in (*arms, AA)]
        compute = [compare(setting, row["arm"], first, "max_compute_s", rng).row() for row in kept]
        again = baseline_of(setting)
        if AA in setting.arms and again != first:  # the floor is there, whichever arm is compared with
            floor = judged([setting], "step_s", seed)[0]  # one run's setting: it is the page
            kept.append(next({**row, "arm": f"{AA} ({again})", "baseline": first} for row in floor if row["arm"] == AA))
        table = {"label": setting.label, "baseline": first, "arms": [{"arm": row["arm"]} for row in kept]}
        notes = [SIMULATED] if setting.runs[0].mode == "simulated" else []
        tables.append({**table, "ratios": plain([*kept, *compute]), "notes": notes})
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
    for folder in filter(is_run, folders):
        _check_done(folder)
    for folder in folders:
        if not folder.is_dir():
            raise DataError(f"{folder}: no such folder; give a run's, outputs/STUDY/RUN, or a study's, outputs/STUDY")
        if is_run(folder):
            try:
                load_run(folder)
            except DataError as error:
                raise DataError(str(error) if str(folder) in str(error) else f"{folder}: {error}") from None
        # of a link, the study in which the run itself lies
        path = folder.resolve().parent if is_run(folder) else folder.resolve()
        studies[path] = load_study(path)
    return list(studies.values())


def _check_done(folder: Path) -> None:
    """Raise DataError, with what to do, where a run that is named is not done."""
    status = read_status(folder)
    if status["state"] == "running":
        remedy = f"wait for its end (ddpsched watch {folder}), or name another run"
        raise DataError(f"{folder} is running: only runs that are done are compared; {remedy}")
    why = never_began(folder) if status["state"] == "absent" else f"failed: {status.get('reason')}"
    if status["state"] in ("absent", "failed") and why:
        raise DataError(f"{folder}: {why}; run it again, or name another run")


def _arm_of(folder: Path, found: Sequence[Setting]) -> tuple[Setting, str, Run]:
    """Return the setting and the arm of a folder's run, and the run."""
    if not is_run(folder):
        raise DataError(f"{folder} is no run: give runs to compare, outputs/STUDY/RUN, or one study alone")
    place = folder.resolve()
    for setting in found:
        for arm, runs in setting.arms.items():
            for run in runs:
                if run.path.resolve() == place:
                    return setting, arm, run
    raise AssertionError(f"{folder} was read with its study")


def _difference(mine: Run, other: Run) -> str:
    """Return what two runs of two settings do not share, the first keys with both values, and what to do."""
    ours, theirs = (
        {"device": run.device, **work(run.config), "content of data": run.content, "seed": None}
        for run in (mine, other)
    )
    differing = [key for key in ours | theirs if ours.get(key) != theirs.get(key)]
    keys = sorted(differing, key=lambda key: key == "steps")[:MOST_KEYS]  # seeds may differ in them
    values = ", ".join(f"{key} = {shown(ours.get(key))} and {shown(theirs.get(key))}" for key in keys)
    return f"{values}; not compared: run both with the same {', '.join(keys)}, in one study"


def _check(setting: Setting, arm: str, first: str) -> None:
    both = couples(setting.arms[arm], setting.arms[first])
    if not both:
        raise DataError(f"{arm} and {first} share no seed: not compared; run both in one launch")
    for mine, other in both:
        why = refusal(mine, other)
        if why is not None and why != COMPUTED:
            raise DataError(
                f"{mine.path} and {other.path} are not compared: {shorter(why)}; {_remedy(mine, other, why)}"
            )


def _remedy(mine: Run, other: Run, why: str) -> str:
    if why.startswith(ANOTHER):
        return "run both on the same data, in the same order"
    if any("loop" in run.environment for run in (mine, other)):
        return (
            "loops of your own run one after another, and the machine drifts meanwhile; `ddpsched analyse "
            f"{mine.path.parent}` draws both, without a verdict; `ddpsched sweep` measures policies in turn"
        )
    return "run them in turn, in one study"
