"""Whether a study that ran again did the work of the frozen one, so that their verdicts can be compared."""

from pathlib import Path
from typing import Any

from analysis.freeze import portable
from analysis.load import Run
from analysis.settings import work
from ddpsched.decode import shown
from ddpsched.errors import DataError
from report.results import Results

SPELLED = ("data.path", "data.tokenizer")  # the same file may lie elsewhere: its content is compared
VARIED = ("seed", "steps", "epochs")  # of launches, of which there may be more or fewer
MOST_KEYS = 3  # that a message names


def check_same_work(frozen: Results, fresh: Results, folder: Path) -> None:
    """Raise DataError where a setting of ``fresh``, read from ``folder``, is none of the frozen study's.

    Both have the same data, by content where both recorded it, model, ranks, global batch and training.
    """
    known = [each.setting.runs[0] for each in frozen.measured]
    for run in (each.setting.runs[0] for each in fresh.measured):
        differing = min((_differing(run, other) for other in known), key=len)
        if differing:
            values = ", ".join(f"{key} = {shown(now)} there and {shown(then)} here" for key, now, then in differing)
            raise DataError(f"{folder} did other work than the frozen study: {values}; run the study itself again")


def _differing(mine: Run, frozen: Run) -> list[tuple[str, Any, Any]]:
    """Return the first keys in which two runs did other work, with both values."""
    now, then = _work(mine), _work(frozen)
    unknown = {key for key in ("content of data", "samples") if None in (now[key], then[key])}
    keys = [key for key in now | then if key not in unknown and now.get(key) != then.get(key)]
    return [(key, now.get(key), then.get(key)) for key in keys][:MOST_KEYS]


def _work(run: Run) -> dict[str, Any]:
    told = {key: portable(value) for key, value in work(run.config).items() if key not in (*SPELLED, *VARIED)}
    return told | {"content of data": run.content, "samples": run.environment.get("num_samples")}
