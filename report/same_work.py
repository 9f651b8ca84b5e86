"""Whether a study that ran again did the work of the frozen one, so that their verdicts can be compared."""

from pathlib import Path
from typing import Any

from analysis.load import Run
from analysis.settings import work
from ddpsched.decode import shown
from ddpsched.errors import DataError
from report.results import Results

SPELLED = ("data.path", "data.name", "data.subset", "data.tokenizer", "model.name")  # what they name lies elsewhere
VARIED = ("seed", "steps", "epochs")  # of launches, of which there may be more or fewer
RECORDED = ("content of data", "content of tokenizer", "samples", "parameters")  # as the run found them
MOST_KEYS = 3  # that a message names


def check_same_work(frozen: Results, fresh: Results, folder: Path) -> None:
    """Raise DataError where a setting of ``fresh``, read from ``folder``, is none of the frozen study's.

    Both have the same data and model, by their content and size where both recorded them, ranks, global batch and
    training.
    """
    known = [each.setting.runs[0] for each in frozen.measured]
    for run in (each.setting.runs[0] for each in fresh.measured):
        if differing := min((_differing(run, other) for other in known), key=len):
            values = ", ".join(f"{key} = {shown(now)} there and {shown(then)} here" for key, now, then in differing)
            raise DataError(f"{folder} did other work than the frozen study: {values}; run it with the frozen values")


def check_whole(frozen: Results, fresh: Results, folder: Path) -> None:
    """Raise DataError where arms of the frozen study, or steps of its seeds, are not in ``fresh``."""
    for what, of in (("arms", _arms), ("seeds and steps", _steps)):
        if missing := of(frozen) - of(fresh):
            named = ", ".join(sorted(missing))
            raise DataError(f"{folder}: {what} of the frozen study are not there ({named}); run it whole to freeze it")


def _arms(results: Results) -> set[str]:
    return {arm for each in results.measured for arm in each.setting.arms}


def _steps(results: Results) -> set[str]:
    runs = (run for each in results.measured for run in each.setting.runs)
    return {f"seed {run.seed}: {run.config.get('steps')}" for run in runs}


def _differing(mine: Run, frozen: Run) -> list[tuple[str, Any, Any]]:
    """Return the first keys in which two runs did other work, with both values."""
    now, then = _work(mine), _work(frozen)
    keys = [key for key in now | then if now.get(key) != then.get(key)]
    keys = [key for key in keys if key not in RECORDED or _comparable(now[key], then[key])]
    return [(key, now.get(key), then.get(key)) for key in keys][:MOST_KEYS]


def _comparable(now: Any, then: Any) -> bool:
    """Return whether both are known, and told in the same way: a file and a data set of the hub have other digests."""
    kinds = {str(each).rpartition(" ")[0].partition(" ")[0] for each in (now, then)}
    return None not in (now, then) and len(kinds) == 1


def _work(run: Run) -> dict[str, Any]:
    environment, told = run.environment, work(run.config)
    contents = environment.get("contents") or {}
    return {key: value for key, value in told.items() if key not in (*SPELLED, *VARIED)} | {
        "content of data": contents.get("data"),
        "content of tokenizer": contents.get("tokenizer"),
        "samples": environment.get("num_samples"),
        "parameters": environment.get("num_parameters"),
    }
