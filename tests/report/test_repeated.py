"""Sentences on studies that were run again."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

from synthetic import write_arm

from report.repeated import again, elsewhere, how_many, in_short, measured_again, repeats_of, verdicts_again


def repeat(study: str, same: int, *others: str, **throughputs: float) -> dict[str, Any]:
    rows = [{"arm": arm, "ratio": ratio, "low": ratio - 0.1, "high": ratio + 0.1} for arm, ratio in throughputs.items()]
    return {
        "study": study, "devices": ["another"], "timed": 20, "timed_same": same, "words": 2, "words_same": 2,
        "computed": 3, "computed_same": 3, "undecided": 1, "others": list(others), "throughputs": rows,
    }  # fmt: skip


MEASURED: Any = [SimpleNamespace(study=name, table={"device": "a processor"}) for name in ("one", "two", "three")]


def test_throughputs_of_a_repeat() -> None:
    here, bare = repeat("one", 20, packed=2.0, balanced=1.5, minmax=1.2), repeat("two", 20)
    assert repeats_of("one", [here, bare]) == [here]
    assert repeats_of("two", [here, bare]) == []
    assert again(here) == "`packed` 2.00 (1.90 to 2.10) and `balanced` 1.50 (1.40 to 1.60)"
    assert in_short(here) == "1.50 with `balanced` and 2.00 with `packed`"


def test_verdicts_of_all_repeats() -> None:
    found = [repeat("one", 20), repeat("two", 18, "x lowers y (then yes, now no)")]
    said = verdicts_again(found, MEASURED)
    assert "the same fell in 20 of 20 of one (a processor, then another), 18 of 20 of two" in said
    assert "in all 38 of 40, 95.0 %, of two alone less than 95 %" in said
    assert "4 of 4 were the same, and 6 of 6 that no clock has a say in" in said
    assert verdicts_again([], MEASURED) == ""


def test_a_repeat_of_other_runs_is_not_counted() -> None:
    longer = repeat("three", 17) | {"otherwise": "20 steps, then 60"}
    told = (
        "Not counted, as its runs were others (20 steps, then 60): three, 17 of 20 by a clock, and 2 of 2 of faster "
        "and slower."
    )
    said = verdicts_again([repeat("one", 20), longer], MEASURED)
    assert "in all 20 of 20, 100.0 %." in said
    assert said.endswith(f" {told} With it 37 of 40 are the same, 92.5 %.")
    assert verdicts_again([longer], MEASURED) == told
    assert how_many([longer], MEASURED) == "0 of 3 studies were run again."


def test_what_the_rule_before_gave_is_told() -> None:
    found = [repeat("one", 20) | {"by_means": {"timed": 22, "timed_same": 19}}, repeat("two", 20)]
    said = verdicts_again(found, MEASURED)
    assert (
        "a rule made after one had first been run again: by the mean alone, as it was before, 19 of 22 of one were"
        in said
    )
    assert "rule" not in verdicts_again([repeat("two", 20)], MEASURED)


def test_how_many_were_run_again() -> None:
    assert how_many([repeat("one", 20), repeat("one", 19)], MEASURED) == "1 of 3 studies were run again (one)."
    assert how_many([], MEASURED) == "0 of 3 studies were run again."


def test_it_is_told_whose_records_are_kept() -> None:
    found = [repeat("one", 20) | {"records": "one-again"}, repeat("two", 20), repeat("two", 20)]
    told = " The records of 1 of these 3 repeats are frozen, too. Of the others (two) the outcome alone was kept."
    assert verdicts_again(found, MEASURED).endswith(told)
    assert verdicts_again(found[:1], MEASURED).endswith("1 of these 1 repeats are frozen, too.")
    assert "records" not in verdicts_again(found[1:], MEASURED)


def test_a_repeat_on_another_device_is_named_so() -> None:
    here, there = repeat("one", 20, balanced=1.5) | {"devices": ["a processor"]}, repeat("one", 20, balanced=1.6)
    results: Any = SimpleNamespace(of=lambda study: MEASURED[:1], reproduced=[here, there])
    assert elsewhere("one", results) == [there]
    results.reproduced = [here]
    assert elsewhere("one", results) == []


def test_a_repeat_is_measured_anew_from_its_records(tmp_path: Path) -> None:
    write_arm(tmp_path / "one", "static", aa=True)
    results: Any = SimpleNamespace(
        reproduced=[repeat("one", 20, balanced=1.5) | {"records": tmp_path / "one"}, repeat("one", 20, balanced=1.6)]
    )
    assert [list(each.setting.arms) for each in measured_again("one", results)] == [["static", "A/A"]]
    assert measured_again("two", results) == []
