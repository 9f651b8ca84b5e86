"""The comparison of policies in the report: tables, figures, text and conclusions follow the runs."""

import re
from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest
from synthetic import write_arm, write_run

from report import build as build_module
from report import compared, compared_words
from report.build import build, finished, main
from report.render import markdown
from report.reproduce import main as reproduce
from report.results import Results, all_conclusions, collect, filled, read

BUDGET = {"policy.max_tokens_for_batch": 256}
ARMS: dict[str, tuple[str, dict[str, Any], float]] = {
    "static": ("static", {}, 1.0),
    "static (length_grouped)": ("static", {"order.kind": "length_grouped"}, 1.0),
    "balanced": ("balanced", {}, 1.0),
    "pool (prefer_first)": ("pool", BUDGET | {"policy.strategy": "prefer_first"}, 4.0),
    "pool (packed)": ("pool", BUDGET | {"policy.sequence_packing": True}, 0.5),
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Write a comparison in two settings, and a study beside it."""
    root = tmp_path_factory.mktemp("outputs")
    for number, (policy, options, slower) in enumerate(ARMS.values()):
        for mode, size in (("distributed", 2), ("virtual", 4)):
            write_arm(
                root / "policies",
                policy,
                name=f"run{number}-{mode}",
                aa=not number,
                mode=mode,
                world_size=size,
                slower=slower,
                options=options,
                steps=40,
            )
    write_run(root / "study", "static", steps=20)
    write_run(root / "study", "balanced", steps=20)
    return root


@pytest.fixture(scope="module")
def results(folder: Path) -> Results:
    return collect([folder / "study", folder / "policies"])


def section(text: str) -> str:
    return text.split("## Policies compared")[1].split("## Discussion")[0]


def test_the_section_has_a_table_a_figure_and_words_for_each_setting(results: Results, tmp_path: Path) -> None:
    page = build(results, tmp_path)
    text = section(page.with_suffix(".md").read_text())
    assert re.findall(r"^### (.*)$", text, re.M) == [
        "embedded, G = 4, virtual", "embedded, G = 2, distributed", "What holds",
    ]  # fmt: skip
    figures = re.findall(r"!\[[^\]]*\]\(([^)]*)\)", text)
    assert len(figures) == 2
    assert all((tmp_path / figure).exists() for figure in figures)
    assert page.read_text().count('src="data:image/png;base64,') == 2 + 5
    assert text.count("| pool (packed) |") == 1 + 2 * 4 + 1  # described, four tables a setting, what holds
    assert "Most real tokens a second are trained by pool (packed)" in text
    assert "slower: pool (prefer\\_first)" in text
    assert re.search(r"The arms static, [^.]*balanced[^.]* train the same samples in the same steps", text)
    assert not re.search(r"\b(None|nan|Undefined)\b", text)
    assert {setting["slug"] for setting in results.settings} == {"study-distributed-g2-b32"}, "it is no study"


def results_arms(results: Results) -> list[str]:
    return [row["arm"] for row in results.comparison[0]["arms"]]


def test_what_holds(results: Results) -> None:
    found = compared.conclusions(results.comparison)
    assert len(found) == 2 * 4 * len(compared.CLAIMS)
    table = compared.tally(found)
    counts = {arm: dict(zip(compared.CLAIMS, each, strict=True)) for arm, each in table.items()}
    assert list(counts) == [arm for arm in results_arms(results) if arm not in ("static", "A/A")]
    assert counts["balanced"]["faster"] == (2, 2)
    assert counts["balanced"]["less padding"] == (2, 2)
    assert counts["pool (prefer_first)"]["faster"] == (0, 2)
    assert counts["pool (packed)"]["lower loss in equal time"][0] > 0
    assert counts["pool (prefer_first)"]["lower loss in equal time"] == (0, 2)
    assert counts["static (length_grouped)"]["dev loss kept"] == (2, 2)
    assert all_conclusions(results)[-len(found) :] == found


def without_launches(folder: Path) -> Path:
    """Write arms that followed one another, so that their times are not compared."""
    for number, (policy, options, slower) in enumerate(ARMS.values()):
        given: dict[str, Any] = {"slower": slower, "options": options, "steps": 40}
        write_run(folder / "policies", policy, name=f"run{number}", environment={"launch": None}, **given)
    return folder / "policies"


def test_nothing_is_concluded_from_times_of_runs_that_did_not_run_in_turn(results: Results, tmp_path: Path) -> None:
    apart = collect([without_launches(tmp_path)])
    assert [setting["in_turn"] for setting in (*results.comparison, *apart.comparison)] == [True, True, False]
    known = [dict(zip(compared.CLAIMS, each, strict=True)) for each in told(apart).values()]
    assert [each["lower loss in equal time"] for each in known] == [(0, 0)] * 4
    assert [each["faster"] for each in known] == [(0, 0)] * 4
    assert [each["dev loss kept"][1] for each in known] == [1] * 4
    text, in_turn = (section(markdown(each, "figures")) for each in (apart, results))
    why = "A dash under *faster* or *lower loss in equal time*: the arms did not run in turn"
    assert (text.count(why), in_turn.count(why)) == (1, 0)
    assert re.search(r"\b\d+ of 16 that can be judged hold", text)
    assert not re.search(r"After the same [\d.]+ m?s,", text)
    assert re.search(r"After the same [\d.]+ m?s,", in_turn)
    old = {key: value for key, value in apart.comparison[0].items() if key != "in_turn"}
    assert not compared.in_turn(old), "results from before are of runs that followed one another"


def told(results: Results) -> dict[str, list[tuple[int, int]]]:
    return compared.tally(compared.conclusions(results.comparison))


def test_p99_stands_beside_p95_where_it_was_measured(results: Results) -> None:
    assert markdown(results, "figures").count("| P95 | P99 |") == 3
    old = deepcopy(results)
    for row in (row for setting in (*old.comparison, *old.settings) for row in setting["arms"]):
        assert row["step_p95_s"] <= row.pop("step_p99_s")
    assert "P99" not in markdown(old, "figures")


def test_same_bytes_from_frozen_results(results: Results, tmp_path: Path) -> None:
    first = build(results, tmp_path / "a")
    again = build(read(tmp_path / "a" / "results"), tmp_path / "b")
    assert again.read_bytes() == first.read_bytes()
    for name in ("comparison.json", "conclusions.json"):
        assert (tmp_path / "b/results" / name).read_bytes() == (tmp_path / "a/results" / name).read_bytes()
    build(collect([]), tmp_path / "b")
    assert not (tmp_path / "b" / "results" / "comparison.json").exists()


def test_without_the_comparison_it_says_what_to_run(folder: Path) -> None:
    text = markdown(collect([folder / "study"]), "figures")
    assert "python -m experiments.sweep experiments/policies.toml" in section(text)
    assert "### What holds" not in text


def test_parts_that_nobody_ran_are_as_they_are_frozen(folder: Path, results: Results) -> None:
    alone = filled(collect([folder / "policies"]), results)
    assert (alone.settings, alone.comparison) == (results.settings, results.comparison)
    assert alone.figures.keys() == results.figures.keys()
    other = filled(collect([folder / "study"]), results)
    assert other.comparison == results.comparison
    assert other.figures.keys() == results.figures.keys()


def test_commands_find_and_freeze_it(
    folder: Path, results: Results, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert [path.name for path in finished(folder)] == ["study", "policies"]
    build(results, tmp_path)
    monkeypatch.setattr(build_module, "FROZEN", tmp_path / "results")
    assert main([str(folder / "policies"), "--output", str(tmp_path / "again")]) == 0
    assert (tmp_path / "again" / "report.html").read_bytes() == (tmp_path / "report.html").read_bytes()
    where = ["--frozen", str(tmp_path / "results"), "--output", str(tmp_path / "fresh")]
    assert reproduce(["--compare", str(folder / "policies"), *where]) == 0
    assert "did not hold: 0, not shown: 0, new: 0" in capsys.readouterr().out
    assert "### What holds" in (tmp_path / "fresh" / "report.md").read_text()


def test_numbers_that_are_missing_are_no_obstacle(tmp_path: Path) -> None:
    nulls = ("compute_s", "step_s", "loss", "squared_tokens")
    for policy in ("static", "balanced"):
        folder = write_run(tmp_path / "policies", policy, steps=4, drop=nulls)
        (folder / "evaluations.jsonl").unlink()
    found = collect([tmp_path / "policies"])
    text = section(markdown(found, "figures"))
    assert "No arm was evaluated." in text
    assert "Speeds are not compared: not measured." in text
    assert "cannot be held against static's" in text
    assert not re.search(r"\b(None|nan|Undefined)\b", text)
    holds = {c["id"].partition("@")[0]: c["holds"] for c in compared.conclusions(found.comparison)}
    assert holds["balanced: faster"] is None
    assert holds["balanced: less padding"] is True
    assert compared.tally(compared.conclusions(found.comparison))["balanced"][:2] == [(0, 0), (1, 1)]
    write_run(tmp_path / "policies2", "balanced", steps=4)
    alone = collect([tmp_path / "policies2"])
    assert compared.conclusions(alone.comparison) == []
    assert "no static arm" in compared_words.speed(alone.comparison[0])
    assert markdown(alone, "figures")
