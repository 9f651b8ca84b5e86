"""The report: its text follows its numbers, its page is self-contained, its conclusions can be checked."""

import base64
import hashlib
import re
from pathlib import Path
from typing import Any

import pytest
from synthetic import write_arm, write_run

from analysis.freeze import portable
from report import build as build_module
from report import front
from report.build import build, finished, main
from report.conclusions import conclusions
from report.render import as_text, markdown
from report.reproduce import compare
from report.reproduce import main as reproduce
from report.results import Results, collect, read
from report.wording import change, learning, outcome

ARMS = ("static", "minmax", "balanced")
HEADINGS = [
    "Abstract", "Introduction", "Problem formulation", "Solution", "Loss scaling", "Out-of-memory control", "Set-up",
    "Results", "Policies compared", "Compiled models", "On a GPU", "Reliability", "Discussion", "Conclusion",
    "References",
]  # fmt: skip


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Write a study with two settings, and one from the lengths alone."""
    root = tmp_path_factory.mktemp("outputs")
    for policy in ARMS:
        write_arm(root / "study", policy, aa=policy == "static")
        write_arm(root / "study", policy, aa=policy == "static", mode="virtual", world_size=4, steps=20)
        write_run(root / "yardstick", policy, mode="simulated", world_size=4)
    return root


@pytest.fixture(scope="module")
def results(folder: Path) -> Results:
    return collect([folder / "study", folder / "yardstick"])


@pytest.fixture(scope="module")
def page(results: Results, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build(results, tmp_path_factory.mktemp("report"))


def test_every_section_table_and_figure_is_there(results: Results, page: Path) -> None:
    text = page.with_suffix(".md").read_text()
    assert re.findall(r"^## (.*)$", text, re.M) == HEADINGS
    for name in ("Proxy mismatch", "Scheduler overhead", "Shift of the length distribution", "From the lengths alone"):
        assert f"### {name}" in text
    figures = re.findall(r"!\[[^\]]*\]\(([^)]*)\)", text)
    assert len(figures) == 2 * 5  # the two measured settings
    assert all((page.parent / figure).exists() for figure in figures)
    yardstick = results.settings[2]["arms"][0]["yardstick"]
    assert f"{yardstick:.2f} (static)" in text
    assert not re.search(r"\b(None|nan|Undefined)\b", text)


def test_page_stands_alone(page: Path) -> None:
    html = page.read_text()
    assert html.count('src="data:image/png;base64,') == 10
    assert not re.search(r'src="(?!data:)', html)
    assert not re.search(r"<(link|iframe|object)\b|url\(|@import", html)
    assert not re.search(r"<[^>]*\sstyle=", html)
    allowed = []
    for tag in ("style", "script"):
        (content,) = re.findall(rf"<{tag}>(.*?)</{tag}>", html, re.S)
        allowed.append(base64.b64encode(hashlib.sha256(content.encode()).digest()).decode())
    policy = "default-src 'none'; img-src data:; style-src 'sha256-{}'; script-src 'sha256-{}'; base-uri 'none'"
    assert f'content="{policy.format(*allowed)};' in html
    outside = re.findall(r'href="([^"]*)"', html)
    assert outside
    references = html.index("References</h2>")
    assert all(html.index(f'href="{link}"') > references for link in outside)


def test_same_results_same_bytes_and_frozen_results_too(
    folder: Path, results: Results, page: Path, tmp_path: Path
) -> None:
    again = build(read(page.parent / "results"), tmp_path)
    for name in ("report.html", "report.md", "report.pdf", "results/tables.json", "results/conclusions.json"):
        assert (tmp_path / name).read_bytes() == (page.parent / name).read_bytes(), name
    assert again.read_bytes() == page.read_bytes()
    redrawn = collect([folder / "study"]).figures
    assert redrawn.items() <= results.figures.items()


def test_hostile_text_stays_text(tmp_path: Path) -> None:
    hostile = (
        "<script>alert(1)</script> | ![x](http://example.com/x.png) **b** `c` [l](javascript:x)\n\n# h /home/me/set"
    )
    for policy in ARMS[:2]:
        write_run(tmp_path / "study", policy, steps=8, environment={"data": hostile, "device": "<img src=x> $x_{$"})
    html = build(collect([tmp_path / "study"]), tmp_path / "report").read_text()
    assert (
        "&lt;script&gt;alert(1)&lt;/script&gt; | ![x](http://example.com/x.png) **b** `c` [l](javascript:x) # h me/set"
        in html
    )
    assert re.findall(r"<script[^>]*>\s*(\S*)", html) == ['"use']
    assert "<img src=x" not in html
    assert "/home/me" not in html


def test_words_follow_the_numbers(tmp_path: Path) -> None:
    for slower, word in ((1.0, "makes the step shorter by"), (3.0, "makes the step longer by")):
        study = tmp_path / str(slower) / "study"
        write_arm(study, "static", steps=30, aa=True)
        write_arm(study, "minmax", steps=30, slower=slower)
        found = collect([study])
        text = markdown(found, "figures")
        assert f"minmax {word}" in text
        held = {c["id"].partition("@")[0]: c["holds"] for c in conclusions(found.settings)}
        assert held["minmax-compute"] is (slower == 1.0)
        assert held["minmax-padded"] is True


@pytest.mark.parametrize(
    ("row", "expected"),
    [
        ({"ratio": 0.9, "low": 0.85, "high": 0.95}, "shorter by 10.0 % (95 % interval 5.0 % to 15.0 %)"),
        ({"ratio": 1.2, "low": 1.1, "high": 1.3}, "longer by 20.0 % (95 % interval 10.0 % to 30.0 %)"),
        ({"ratio": 0.99, "low": 0.97, "high": 1.01}, "not measurably different"),
        ({"ratio": 1.5, "low": None, "high": None}, "longer by 50.0 % (no interval: too few steps"),
        ({}, "not measured"),
    ],
)
def test_change(row: dict[str, Any], expected: str) -> None:
    assert change(row).startswith(expected)


def test_other_phrases() -> None:
    assert "not told apart" in outcome({"ratio": 1.0, "low": 0.9, "high": 1.1})
    assert "cannot be judged" in outcome({"ratio": 1.5, "reason": "not run in turn"})
    arms = [
        {"arm": "static", "dev_accuracy": 0.5, "dev_majority": 0.51},
        {"arm": "x", "dev_accuracy": 0.6, "dev_majority": 0.5},
    ]
    assert "not above the majority: static" in learning(arms)
    assert str(as_text("a|b_c\n# d")) == r"a\|b\_c # d"
    assert as_text(3) == 3


def test_portable_leaves_addresses() -> None:
    assert portable(["/data/x/y.tsv", "https://a.org/b/c", "a/b"]) == ["x/y.tsv", "https://a.org/b/c", "a/b"]


def test_nulls_and_lone_arms_are_no_obstacle(tmp_path: Path) -> None:
    nulls = ("compute_s", "step_s", "wait_s", "peak_memory_bytes", "predicted_cost", "plan_wait_s", "loss", "offer_s")
    write_run(tmp_path / "study", "minmax", steps=4, drop=nulls)
    text = markdown(found := collect([tmp_path / "study"]), "figures")
    assert "there is no arm beside" not in text
    assert "is not measured" in text
    assert {c["holds"] for c in conclusions(found.settings) if c["id"].startswith("minmax-wait")} == {None}
    write_run(tmp_path / "other", "static", steps=2)
    assert "there is no arm beside" in markdown(collect([tmp_path / "other"]), "figures")


def test_window_without_choice_is_said(tmp_path: Path) -> None:
    write_run(tmp_path / "study", "minmax", steps=4, prefetch=16)
    assert "no choice but equal counts" in markdown(collect([tmp_path / "study"]), "figures")


def test_unfinished_runs_are_named(tmp_path: Path) -> None:
    write_run(tmp_path / "study", "static", steps=4)
    write_run(tmp_path / "study", "minmax", steps=4, state="failed")
    assert "study/minmax-distributed-g2-s0 (failed: it was stopped)" in markdown(collect([tmp_path / "study"]), "f")
    assert finished(tmp_path) == []
    write_run(tmp_path / "yardstick", "static", steps=4, mode="simulated")
    assert finished(tmp_path) == []  # a yardstick alone is no report
    write_run(tmp_path / "study-done", "static", steps=4)
    assert [path.name for path in finished(tmp_path)] == ["study-done", "yardstick"]


def test_command(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert main([str(folder / "study"), "--output", str(tmp_path)]) == 0
    assert capsys.readouterr().out.strip() == str(tmp_path / "report.html")
    assert main([str(tmp_path / "nothing")]) == 1
    assert "no finished run" in capsys.readouterr().err
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(build_module, "FROZEN", tmp_path / "absent")
    assert main([]) == 1
    assert "no frozen results" in capsys.readouterr().err
    monkeypatch.setattr(build_module, "FROZEN", tmp_path / "results")
    assert main([]) == 0
    assert (tmp_path / "outputs/paper/report.html").read_bytes() == (tmp_path / "report.html").read_bytes()


def claim(name: str, holds: bool | None) -> dict[str, Any]:
    return {"id": name, "setting": "s", "statement": name, "holds": holds, "value": 1.0, "threshold": 2.0}


def test_comparison() -> None:
    frozen = [
        claim("a", True),
        claim("b", True),
        claim("c", True),
        claim("d", True),
        claim("e", False),
        claim("f", None),
    ]
    fresh = [
        claim("a", True),
        claim("b", False),
        claim("c", None),
        claim("e", True),
        claim("f", None),
        claim("g", False),
    ]
    outcomes = {row["id"]: row["outcome"] for row in compare(frozen, fresh)}
    assert outcomes == {
        "a": "held", "b": "did not hold", "c": "not shown", "d": "not shown", "e": "holds now",
        "f": "still not shown", "g": "new",
    }  # fmt: skip


def test_reproduce_compares_a_finished_study(
    folder: Path, page: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    where = ["--frozen", str(page.parent / "results"), "--output", str(tmp_path / "fresh")]
    assert reproduce(["--compare", str(folder / "study"), *where]) == 0
    out = capsys.readouterr().out
    assert "did not hold: 0, not shown: 0, new: 0" in out
    assert str(tmp_path / "fresh" / "report.html") in out
    for policy in ARMS:
        write_arm(tmp_path / "study", policy, slower=1.0 if policy == "static" else 4.0, aa=policy == "static")
    assert reproduce(["--compare", str(tmp_path / "study"), *where]) == 1
    assert "did not hold" in capsys.readouterr().out
    assert reproduce(["--study", str(tmp_path / "absent.toml"), *where]) == 1
    assert "absent.toml" in capsys.readouterr().err
    assert reproduce(["--compare", str(folder / "study"), "--frozen", str(tmp_path)]) == 1
    assert "no frozen results" in capsys.readouterr().err


def test_the_readmes_table_is_that_of_the_frozen_results() -> None:
    root = Path(__file__).parents[2]
    results = read(root / "report" / "results")
    assert front.block(results) in (root / "README.md").read_text(encoding="utf-8")
    assert (root / "report" / "report.md").read_text(encoding="utf-8") == markdown(results, "results/figures")
