"""Whether a study that runs again does the work of the frozen one, so that their verdicts can be compared."""

from collections.abc import Mapping, Sequence
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

Config = Mapping[str, Any]


def check_planned(frozen: Results, planned: Sequence[dict[str, Any]], file: str, whole: bool) -> None:
    """Raise DataError where a study, before it runs, is to do other work, as far as the configs of its runs tell.

    ``whole``: whether it is to have all seeds and steps of the frozen study, too.
    """
    if values := _differing([_told(each) for each in planned], [_told(run.config) for run in _firsts(frozen)]):
        raise DataError(f"{file} would do other work than the frozen study: {values}; leave these overrides out")
    if whole:
        _check_there("seeds and steps", _steps(_configs(frozen)), _steps(planned), file)


def check_same_work(frozen: Results, fresh: Results, folder: Path) -> None:
    """Raise DataError where a setting of ``fresh``, read from ``folder``, is none of the frozen study's.

    Both have the same data and model, by their content and size where both recorded them, ranks, global batch and
    training.
    """
    if values := _differing([_work(run) for run in _firsts(fresh)], [_work(run) for run in _firsts(frozen)]):
        raise DataError(f"{folder} did other work than the frozen study: {values}; run it with the frozen values")


def check_whole(frozen: Results, fresh: Results, folder: Path) -> None:
    """Raise DataError where arms of the frozen study, or steps of its seeds, are not in ``fresh``."""
    _check_there("arms", _arms(frozen), _arms(fresh), str(folder))
    _check_there("seeds and steps", _steps(_configs(frozen)), _steps(_configs(fresh)), str(folder))


def _check_there(what: str, wanted: set[str], there: set[str], where: str) -> None:
    if missing := wanted - there:
        named = ", ".join(sorted(missing))
        raise DataError(f"{where}: {what} of the frozen study are not there ({named}); run it whole to freeze it")


def _arms(results: Results) -> set[str]:
    return {arm for each in results.measured for arm in each.setting.arms}


def _steps(configs: Sequence[Config]) -> set[str]:
    return {f"seed {config['seed']}: {config.get('steps')}" for config in configs}


def _configs(results: Results) -> list[Config]:
    return [run.config for each in results.measured for run in each.setting.runs]


def _firsts(results: Results) -> list[Run]:
    return [each.setting.runs[0] for each in results.measured]


def _differing(now: Sequence[Config], then: Sequence[Config]) -> str:
    """Return the first keys in which one of ``now`` is none of ``then``, with both values; "" where each is one."""
    for mine in now:
        keys, other = min(((_keys(mine, each), each) for each in then), key=lambda found: len(found[0]))
        if keys:
            values = [f"{key} = {shown(mine.get(key))} (frozen: {shown(other.get(key))})" for key in keys[:MOST_KEYS]]
            return ", ".join(values)
    return ""


def _keys(now: Config, then: Config) -> list[str]:
    keys = [key for key in {**now, **then} if now.get(key) != then.get(key)]
    return [key for key in keys if key not in RECORDED or _comparable(now.get(key), then.get(key))]


def _comparable(now: Any, then: Any) -> bool:
    """Return whether both are known, and told in the same way: a file and a data set of the hub have other digests."""
    kinds = {str(each).rpartition(" ")[0].partition(" ")[0] for each in (now, then)}
    return None not in (now, then) and len(kinds) == 1


def _told(config: dict[str, Any]) -> dict[str, Any]:
    """Return what a config tells of the work."""
    return {key: value for key, value in work(config).items() if key not in (*SPELLED, *VARIED)}


def _work(run: Run) -> dict[str, Any]:
    environment = run.environment
    contents = environment.get("contents") or {}
    return _told(run.config) | {
        "content of data": contents.get("data"),
        "content of tokenizer": contents.get("tokenizer"),
        "samples": environment.get("num_samples"),
        "parameters": environment.get("num_parameters"),
    }
