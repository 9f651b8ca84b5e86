"""Sentences on frozen studies that were run again."""

from collections.abc import Mapping, Sequence
from typing import Any

from markupsafe import Markup

from analysis.settings import AA
from report.results import Measured, Results, collect
from report.sentences import NAMED, code
from report.wording import interval, listed, number, percent, processor

ENOUGH = 0.95  # of a study's verdicts on what was measured


def repeats_of(study: str, reproduced: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """Return the repeats of a study that have the throughputs of its arms."""
    return [each for each in reproduced if each["study"] == study and each.get("throughputs")]


def measured_again(study: str, results: Results) -> list[Measured]:
    """Return the settings of a study's repeats whose records were kept."""
    return collect([each["records"] for each in repeats_of(study, results.reproduced) if each.get("records")]).measured


def elsewhere(study: str, results: Results) -> list[Mapping[str, Any]]:
    """Return the first of these repeats that ran on another device than what is frozen; none where none did."""
    here = {m.table["device"] for m in results.of(study)}
    return [each for each in repeats_of(study, results.reproduced) if not here & {*each["devices"]}][:1]


def again(repeat: Mapping[str, Any]) -> Markup:
    """Return the throughput over static's of the arms that the abstract names, and of A/A, in a repeat."""
    rows = [row for row in repeat["throughputs"] if row["arm"] in (*NAMED, AA)]
    return Markup(listed([f"{row['arm'] if row['arm'] == AA else code(row['arm'])} {interval(row)}" for row in rows]))


def in_short(repeat: Mapping[str, Any]) -> Markup:
    """Return these throughputs alone, in the order of the abstract, with the arms' names."""
    ratios = {row["arm"]: row["ratio"] for row in repeat["throughputs"]}
    return Markup(listed([f"{number(ratios[arm])} with {code(arm)}" for arm in NAMED if arm in ratios]))


def verdicts_again(reproduced: Sequence[Mapping[str, Any]], measured: Sequence[Measured]) -> str:
    """Return how many frozen verdicts fell the same in the repeats, of each study and in all, and which did not.

    A repeat whose runs were others, which ``otherwise`` names, is told beside them and not counted.
    """
    every, reproduced = reproduced, _counted(reproduced)
    apart = [
        f" Not counted, as its runs were others ({each['otherwise']}): {each['study']}, {each['timed_same']} of "
        f"{each['timed']} by a clock, and {each['words_same']} of {each['words']} of faster and slower."
        for each in every
        if "otherwise" in each
    ]
    if apart and reproduced:
        same, timed = (sum(each[name] for each in every) for name in ("timed_same", "timed"))
        apart.append(
            f" With {'it' if len(apart) == 1 else 'them'} {same} of {timed} are the same, {percent(same / timed)}."
        )
    if not reproduced:
        return "".join(apart).strip()
    frozen_on = {m.study: processor(str(m.table["device"])) for m in measured}
    counts: dict[str, list[str]] = {}
    for each in reproduced:
        devices = listed([processor(device) for device in each["devices"]])
        of = f"{each['study']} ({frozen_on.get(each['study'], '?')}, then {devices})"
        counts.setdefault(of, []).append(f"{each['timed_same']} of {each['timed']}")
    parts = [f"{' and '.join(found)} of {of}" for of, found in counts.items()]
    same, timed, words_same, words, computed_same, computed, undecided = (
        sum(each[name] for each in reproduced)
        for name in ("timed_same", "timed", "words_same", "words", "computed_same", "computed", "undecided")
    )
    below = dict.fromkeys(each["study"] for each in reproduced if each["timed_same"] < ENOUGH * each["timed"])
    alone = f", of {listed(list(below))} alone less than {percent(ENOUGH, 0)}" if below else ""
    return (
        f"Of verdicts on what a clock measured the same fell in {', '.join(parts)}; in all {same} of {timed}, "
        f"{percent(same / timed)}{alone}. Of faster and slower on step times {words_same} of {words} were the same, "
        f"and {computed_same} of {computed} that no clock has a say in. The appendix names those that fell otherwise. "
        f"{undecided} were undecided when they were frozen, and do not count.{_by_means(reproduced)}{''.join(apart)}"
        f"{_recorded(every)}"
    )


def _recorded(reproduced: Sequence[Mapping[str, Any]]) -> str:
    """Return of how many repeats the records are there, from which the numbers follow, and of which they are not."""
    bare = [each["study"] for each in reproduced if not each.get("records")]
    kept = len(reproduced) - len(bare)
    if not kept:
        return ""
    others = f" Of the others ({listed(sorted(set(bare)))}) the outcome alone was kept." if bare else ""
    return f" The records of {kept} of these {len(reproduced)} repeats are frozen, too.{others}"


def _by_means(reproduced: Sequence[Mapping[str, Any]]) -> str:
    """Return what the repeats gave that came before the rule on waits for plans."""
    before = [(each["study"], each["by_means"]) for each in reproduced if "by_means" in each]
    if not before:
        return ""
    parts = listed([f"{found['timed_same']} of {found['timed']} of {study}" for study, found in before])
    every = [each.get("by_means", each) for each in _counted(reproduced)]
    same, timed = (sum(each[name] for each in every) for name in ("timed_same", "timed"))
    return (
        " That a wait for plans is undecided where its interval holds the threshold is a rule made after "
        f"{listed([study for study, _ in before])} had first been run again: by the mean alone, as it was before, "
        f"{parts} were the same; with the later repeats, by the rule as it is, {same} of {timed}, "
        f"{percent(same / timed)}."
    )


def _counted(reproduced: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    return [each for each in reproduced if "otherwise" not in each]


def how_many(reproduced: Sequence[Mapping[str, Any]], measured: Sequence[Measured]) -> str:
    """Return how many of the studies were run again, and which."""
    again, studies = ({each["study"] for each in _counted(reproduced)}, {each.study for each in measured})
    named = f" ({listed(sorted(again))})" if again else ""
    return f"{len(again)} of {len(studies)} studies were run again{named}."
