"""Whether a study that runs again does the work of the frozen one, so that their verdicts can be compared."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from analysis.load import Run
from analysis.settings import flatten
from ddpsched.decode import shown
from ddpsched.errors import DataError
from report.results import Results

# what these name lies elsewhere
SPELLED = ("data.path", "data.name", "data.subset", "data.tokenizer", "model.name")
CALLED = ("name", "study", "outputs", "log")
VARIED = ("seed", "steps", "epochs")  # of launches, of which there may be more or fewer
RECORDED = ("content of data", "content of tokenizer", "samples", "parameters")  # as the run found them
MOST = 3  # keys or runs that a message names

Work = Mapping[str, Any]  # a run's config by dotted keys, and what it recorded


def check_planned(frozen: Results, planned: Sequence[dict[str, Any]], file: str, whole: bool) -> None:
    """Raise DataError where a study, before it runs, is to do other work, as far as the configs of its runs tell.

    ``whole``: whether all runs of the frozen study have to be in it, too.
    """
    mine = [_told(config) for config in planned]
    if values := _differing(mine, [_told(run.config) for run in _runs(frozen)]):
        raise DataError(
            f"{file} would do other work than the frozen study: {values}; give the frozen values, or freeze "
            "it again where its file has changed since"
        )
    if whole:
        _check_whole(frozen, mine, file)


def check_same_work(frozen: Results, fresh: Results, folder: Path) -> None:
    """Raise DataError where a run of ``fresh``, read from ``folder``, did the work of none of the frozen study's.

    Both have the same config, but for seeds, steps and where data and models lie, and the same data and model by their
    content and size where both recorded them.
    """
    if values := _differing(*([_work(run) for run in _runs(each)] for each in (fresh, frozen))):
        raise DataError(f"{folder} did other work than the frozen study: {values}; run it with the frozen values")


def check_whole(frozen: Results, fresh: Results, folder: Path) -> None:
    """Raise DataError where a run of the frozen study, of its arm, seed and steps, is not in ``fresh``."""
    _check_whole(frozen, [_told(run.config) for run in _runs(fresh)], str(folder))


def _check_whole(frozen: Results, fresh: Sequence[Work], where: str) -> None:
    there, missing = list(fresh), list[str]()
    for run in _runs(frozen):
        if (told := _told(run.config)) in there:
            there.remove(told)
        else:
            missing.append(run.name)
    if missing:
        named = ", ".join(missing[:MOST]) + (f" and {len(missing) - MOST} more" if len(missing) > MOST else "")
        raise DataError(f"{where}: runs of the frozen study are not there ({named}); run it whole to freeze it")


def _runs(results: Results) -> list[Run]:
    return [run for each in results.measured for run in each.setting.runs]


def _differing(now: Sequence[Work], then: Sequence[Work]) -> str:
    """Return the first keys in which one of ``now`` is none of ``then``, with both values; "" where each is one."""
    for mine in now:
        keys, other = min(((_keys(mine, each), each) for each in then), key=lambda found: len(found[0]))
        if keys:
            values = [f"{key} = {shown(mine.get(key))} (frozen: {shown(other.get(key))})" for key in keys[:MOST]]
            return ", ".join(values)
    return ""


def _keys(now: Work, then: Work) -> list[str]:
    keys = [key for key in {**now, **then} if key not in VARIED and now.get(key) != then.get(key)]
    return [key for key in keys if key not in RECORDED or _comparable(now.get(key), then.get(key))]


def _comparable(now: Any, then: Any) -> bool:
    """Return whether both are known, and told in the same way: a file and a data set of the hub have other digests."""
    kinds = {str(each).rpartition(" ")[0].partition(" ")[0] for each in (now, then)}
    return None not in (now, then) and len(kinds) == 1


def _told(config: dict[str, Any]) -> Work:
    """Return what a config tells of the work; of a calibration's path its name, by which arms are told apart."""
    told = {key: value for key, value in flatten(config).items() if key not in (*SPELLED, *CALLED)}
    return told | {key: Path(path).name for key, path in told.items() if key == "cost.path"}


def _work(run: Run) -> Work:
    environment = run.environment
    contents = environment.get("contents") or {}
    return {
        **_told(run.config),
        "content of data": run.content,
        "content of tokenizer": contents.get("tokenizer"),
        "samples": environment.get("num_samples"),
        "parameters": environment.get("num_parameters"),
    }
