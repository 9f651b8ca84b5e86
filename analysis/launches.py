"""When the launches of a setting ran, and whether their times can be compared."""

from collections.abc import Iterable

from analysis.load import Run
from analysis.settings import Setting

Span = tuple[str, str]  # when a launch began and ended, ISO 8601 in UTC
BESIDE = "its arms ran one after another, beside other launches"


def spans(runs: Iterable[Run]) -> list[Span]:
    """Return when each launch of these runs began and ended."""
    found = dict[str, Span]()
    for run in runs:
        begin, end = run.status.get("started") or "", run.status.get("finished") or ""
        name = run.launch.get("id") or run.name
        low, high = found.get(name, (begin, end))
        found[name] = min(low, begin), max(high, end)
    return list(found.values())


def most_at_once(setting: Setting) -> int:
    """Return how many launches of a setting's study ran at one time on a machine that ran some of the setting's.

    Machines are told apart by their boots, as far as runs recorded them.
    """
    machines: dict[str | None, list[Run]] = {run.status.get("boot"): [] for run in setting.runs}
    for run in (run for run in (*setting.runs, *setting.beside) if run.status.get("boot") in machines):
        machines[run.status.get("boot")].append(run)
    most = 0
    for boot, runs in machines.items():
        every, own = spans(runs), spans(run for run in setting.runs if run.status.get("boot") == boot)
        while_own = [at for at, _ in every if any(begin <= at < end for begin, end in own)]
        most = max(most, *(sum(begin <= at < end for begin, end in every) for at in while_own), 0)
    return most


def is_timed(setting: Setting) -> bool:
    """Return whether times of its arms may be compared.

    Arms that take turns, step by step, meet the same neighbours. Those that ran one after another did so only where no
    other launch of the study ran beside them. Simulated times are computed.
    """
    one_by_one = any(run.launch.get("how") == "processes" for run in setting.runs)
    return not one_by_one or setting.runs[0].mode == "simulated" or most_at_once(setting) < 2
