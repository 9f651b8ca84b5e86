"""Policy auto against the best of its candidates: the launches of experiments.benchmarks.auto, and what follows."""

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from report.measures import ratio_over_launches
from report.wording import duration, interval, percent

HEADINGS = (
    "model, data, ranks", "B", "steps", "launches", "taken", "its time", "fastest measured", "taken / fastest", "A/A",
    "worst prediction", "in their bands", "first call", "choosing",
)  # fmt: skip
Launch = Mapping[str, Any]


def outcome(launches: Sequence[Launch]) -> dict[str, Any]:
    """Return what a setting's row says, of the launches of ``ddpsched advise`` in it; times are over static's.

    ``taken``, ``to_fastest`` and ``again``: ratios over launches, as ``{"ratio", "low", "high"}``. *Fastest* is the
    candidate with the smallest mean over launches, ``best``, so chance makes ``to_fastest`` larger, not smaller.
    """
    times = [_times(each) for each in launches]
    taken = np.array([each[launch["chosen"]] for each, launch in zip(times, launches, strict=True)])
    names = [name for name in times[0] if all(name in each for each in times)]
    best = min(names, key=lambda name: math.prod(each[name] for each in times))
    fastest = np.array([each[best] for each in times])
    again = np.array([_measured(each)["static again"]["ratio"] for each in launches])
    worst, error = max(_errors(launches), key=lambda named: abs(named[1]))
    return {
        "chosen": Counter(each["chosen"] for each in launches), "best": best,
        "taken": ratio_over_launches(np.log(taken)),
        "least": ratio_over_launches(np.log(fastest)), "to_fastest": ratio_over_launches(np.log(taken / fastest)),
        "again": ratio_over_launches(np.log(again)), "worst": worst, "error": error,
    }  # fmt: skip


def _measured(launch: Launch) -> dict[str, Mapping[str, Any]]:
    return {each["name"]: each for each in launch["measured"]}


def _times(launch: Launch) -> dict[str, float]:
    """Return each candidate's measured time; of candidates with the same plans one alone was measured, for all."""
    measured = {name: each for name, each in _measured(launch).items() if name != "static again"}
    predicted = {each["name"]: each["ratio"] for each in launch["ranking"]}
    alike = {name: min(measured, key=lambda other: abs(predicted[other] - predicted[name])) for name in predicted}
    return {name: 1.0 if name == "static" else measured[other]["ratio"] for name, other in alike.items()}


def _errors(launches: Sequence[Launch]) -> list[tuple[str, float]]:
    """Return predicted / measured - 1 of each candidate that was measured, in each launch, with its name."""
    predicted = [each for launch in launches for each in launch["measured"] if each["predicted"] is not None]
    return [(each["name"], each["predicted"] / each["ratio"] - 1) for each in predicted]


def cells(setting: Mapping[str, Any]) -> list[str]:
    """Return the cells of a setting; times are over static's."""
    launches = setting["launches"]
    row = outcome(launches)
    menu = "" if setting["shapes"] is None else f", N = {setting['shapes']}"
    chosen = row["chosen"].most_common()
    first = sorted(each["first_s"] for each in launches)
    return [
        f"{setting['model']}, {setting['data']}, {setting['world_size']} {setting['ranks']}{menu}",
        str(setting["global_batch"]), str(setting["steps"]), str(len(launches)),
        chosen[0][0] if len(chosen) == 1 else "; ".join(f"{name} in {count}" for name, count in chosen),
        interval(row["taken"], 3), f"{row['best']} {row['least']['ratio']:.3f}", interval(row["to_fastest"], 3),
        interval(row["again"], 3), f"{row['error']:+.1%} ({row['worst']})", in_bands([setting]),
        " to ".join(dict.fromkeys([duration(first[0]), duration(first[-1])])),
        percent(max(each["choosing"] for each in launches), 2),
    ]  # fmt: skip


def in_bands(settings: Sequence[Mapping[str, Any]]) -> str:
    """Return how many measured ratios lie in the 95 % band of their prediction, of all that were predicted."""
    inside = [
        abs(each["predicted"] / each["ratio"] - 1) <= band[each["name"]]
        for setting in settings
        for launch in setting["launches"]
        for band in [{each["name"]: each["band"] for each in launch["ranking"]}]
        for each in launch["measured"]
        if each["predicted"] is not None
    ]
    return f"{sum(inside)} of {len(inside)}"


def summary(settings: Sequence[Mapping[str, Any]]) -> str:
    """Return in words how close what was taken is to the fastest, for settings of several launches alone."""
    several = [outcome(each["launches"])["to_fastest"] for each in settings if len(each["launches"]) > 1]
    words = []
    if several:
        furthest, apart = max(each["ratio"] for each in several) - 1, sum(each["low"] > 1 for each in several)
        words.append(
            f"Over launches, what was taken is at most {percent(furthest, 1)} slower than the fastest, and told apart"
            f" from it in {apart} of {len(several)} settings."
        )
    if len(several) < len(settings):
        words.append("Settings with one launch have no interval, and nothing is concluded from them.")
    return " ".join(words)
