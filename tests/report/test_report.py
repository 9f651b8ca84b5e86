"""The report: its text follows its numbers, its pages are self-contained, its verdicts can be checked."""

import base64
import errno
import hashlib
import json
import os
import re
from pathlib import Path
from typing import Any

import pytest
from synthetic import SEEDS, write_arm, write_run, write_unequal, write_virtual

from analysis.freeze import freeze, portable
from analysis.load import load_study
from analysis.settings import AA
from analysis.step_parts import step_parts
from ddpsched.launcher_log import launcher_log
from report import build as build_module
from report.build import build, build_tables, main
from report.conclusions import conclusions
from report.measures import against, p95, peak, shares, speed, time, tracking, within
from report.render import as_text, report, tables
from report.results import Results, collect, read
from report.sentences import (
    arm_rows,
    memory_in_short,
    proxy_on_processes,
    signed_ratio,
    still_rising,
    tails,
    where_time_goes,
)
from report.wording import change, learning

HEADINGS = [
    "Abstract", "The problem", "Plans", "How it was measured", "What it buys", "What it costs",
    "In transformers' Trainer", "More ranks", "A slow link", "Lengths that change their law", "Ranks of unequal speed",
    "Limitations", "What would change our mind", "Claims and commands", "References",
]  # fmt: skip


@pytest.fixture(scope="module")
def frozen(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Freeze studies on virtual ranks and processes, with shifts and unequal ranks among them."""
    root = tmp_path_factory.mktemp("outputs")
    write_virtual(root / "virtual")
    for study, policy in (("gloo-counts", "minmax"), ("gloo-peer", "balanced")):
        write_arm(root / study, "static", aa=True, steps=20)
        write_arm(root / study, policy, steps=20)
    write_arm(root / "gloo-peer", "peer", options={"policy.peer": "batch_rebalance"}, steps=20)
    write_unequal(root / "unequal")
    write_arm(root / "shift", "static", aa=True)
    for calibration in ("short", "long"):
        options = {"cost.kind": "calibrated", "cost.path": f"{calibration}.json", "policy.max_microbatches": 4}
        write_arm(root / "shift", "balanced", f"balanced-{calibration}", options=options)
    for seed in SEEDS:
        for policy in ("static", "balanced", "packed"):
            launch = {"how": "processes", "id": f"seed {seed}", "margin": 0.02}
            write_run(root / "memory", policy, seed=seed, steps=20, environment={"launch": launch})
    results = root / "results"
    for study in ("virtual", "gloo-counts", "gloo-peer", "unequal", "shift", "memory"):
        freeze(load_study(root / study), results / "studies" / study)
    return results


@pytest.fixture(scope="module")
def results(frozen: Path) -> Results:
    return read(frozen)


@pytest.fixture(scope="module")
def page(results: Results, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build(results, tmp_path_factory.mktemp("report"))


def test_every_section_and_figure_is_there(page: Path) -> None:
    text = page.with_suffix(".md").read_text()
    assert re.findall(r"^## (.*)$", text, re.M) == HEADINGS
    figures = re.findall(r"!\[[^\]]*\]\(([^)]*)\)", text)
    assert [Path(figure).stem for figure in figures] == [
        "step-blocks", "speeds", "step-parts", "outline", "tradeoffs", "shift",
    ]  # fmt: skip
    assert all((page.parent / figure).exists() for figure in [*figures, "figures/first.png"])  # that of the README
    assert "On four processes, in the same launches, the throughput over `batch_rebalance` is: `balanced`" in text
    assert "Not measured in these results: `python -m experiments.what_if --calibration FILE --network FILE" in text
    assert not re.search(r"\b(None|nan|Undefined)\b", text)
    appendix = (page.parent / "appendix.md").read_text()
    assert re.findall(r"^## Study (.*)$", appendix, re.M) == [
        "gloo-counts", "gloo-peer", "memory", "shift", "unequal", "virtual",
    ]  # fmt: skip
    assert "No GPU was measured" in appendix
    assert all((page.parent / figure).exists() for figure in re.findall(r"!\[[^\]]*\]\(([^)]*)\)", appendix))
    assert not re.search(r"\b(None|nan|Undefined)\b", appendix)


def test_page_stands_alone(page: Path) -> None:
    html = page.read_text()
    assert html.count('src="data:image/png;base64,') == 6
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


def test_same_results_same_bytes(frozen: Path, tmp_path: Path) -> None:
    """A study read and built twice in one process; ``test_frozen`` has every section, built by another process."""
    first, second = (build(collect([frozen / "studies" / "gloo-counts"]), tmp_path / name).parent for name in "ab")
    names = [path.relative_to(first) for path in first.rglob("*.*")]
    assert {Path("report.pdf"), Path("appendix.html"), Path("figures/speeds.png")} <= set(names)
    for name in names:
        assert (second / name).read_bytes() == (first / name).read_bytes(), name


def test_numbers_of_a_setting(results: Results) -> None:
    (virtual,) = results.of("virtual")
    step = time(virtual, "balanced")
    assert step["verdict"] == "faster"
    assert speed(virtual, "balanced")["ratio"] == pytest.approx(1 / step["ratio"])
    assert speed(virtual, "balanced")["low"] == pytest.approx(1 / step["high"])
    assert p95(virtual, "balanced")["ratio"] < 1
    assert against(virtual, "balanced", "minmax")["ratio"] < 1
    assert against(virtual, "balanced", "bins") == {}
    assert 0.9 < tracking(virtual, "static")["low"] <= tracking(virtual, "static")["ratio"] <= 1
    parts = shares(virtual)
    assert sum(parts["static"].values()) == pytest.approx(1)
    took = step_parts(virtual.setting).set_index("arm")["step_s"]
    assert sum(parts["balanced"].values()) == pytest.approx(took["balanced"] / took["static"]), "of static's step"
    (memory,) = results.of("memory")
    assert peak(memory, "balanced")["low"] is not None
    (shift,) = results.of("shift")
    whole, part = time(shift, AA), within(shift, AA, range(20, 40))
    assert part["ratio"] == pytest.approx(whole["ratio"], rel=0.05)
    assert part["high"] - part["low"] > 0


def test_words_follow_the_numbers(tmp_path: Path) -> None:
    for slower, word in ((1.0, "not told apart from the 1.99"), (3.0, "below the 1.99")):
        found = collect([write_virtual(tmp_path / str(slower) / "virtual", slower)])
        (virtual,) = found.measured
        text = report(found, {})
        assert (f"(`balanced`) has {speed(virtual, 'balanced')['ratio']:.2f}" in text) is True
        assert f"{4 if slower == 1 else 2} of 4 arms are faster on virtual ranks" in text
        assert f"`balanced` is {word} of transformers' `batch_rebalance`" in text
        held = {c["id"].partition("@")[0]: c["holds"] for c in conclusions([virtual])}
        assert held["balanced-step"] is (slower == 1.0)
        assert held["balanced-padded"] is True


def test_sentences(results: Results) -> None:
    (virtual,) = results.of("virtual")
    (memory,), gloo = results.of("memory"), results.of("gloo-counts")
    ends = r"is ([\d.]+( to [\d.]+)? times that of equal splitting(, least)? with `.*`|not told apart from that of .*)"
    assert re.fullmatch(ends, memory_in_short(memory))
    assert re.match(r"Peaks of 20 steps are not final: from step 10 on they rose by [\d.]+ % \(`", still_rising(memory))
    r = tracking(gloo[0], "static")
    assert f"r is {r['ratio']:.2f} ({r['low']:.2f} to {r['high']:.2f}), and" in proxy_on_processes(gloo)
    assert f"{r['ratio']:.2f} (intervals from {r['low']:.2f} to {r['high']:.2f}), and" in proxy_on_processes(gloo * 2)
    assert "without either it would take" in where_time_goes(virtual)
    assert tails([virtual]).startswith("`batch_rebalance` ")
    assert tails([virtual]).endswith(f"; {tails([virtual], values=False)}")
    cells = arm_rows(virtual, None, results.of("gloo-counts"))
    assert {len(row) for row in cells} == {8}
    names = [row[0] for row in cells]
    assert len(set(names)) == len(names), "a row an arm, and one for A/A"
    assert names[-1] == AA
    assert signed_ratio({}) == "an unmeasured share"
    assert signed_ratio({"ratio": 1.5, "low": None}) == "+50.0 %"


def test_tables_of_any_study(tmp_path: Path) -> None:
    for policy in ("static", "minmax", "balanced"):
        write_run(tmp_path / "yardstick", policy, mode="simulated", world_size=4)
    write_arm(tmp_path / "mine", "static", aa=True, steps=20)
    write_arm(tmp_path / "mine", "balanced", steps=20)
    analysed = tmp_path / "report" / "figures" / "mine-1-step-time.png"
    analysed.parent.mkdir(parents=True)
    analysed.touch()
    page = build_tables(collect([tmp_path / "mine", tmp_path / "yardstick"]), tmp_path / "report")
    assert analysed.exists()  # the figures of the analysis are in the same folder
    text = page.with_suffix(".md").read_text()
    assert text.startswith("# mine, yardstick\n")
    assert "**balanced**: the longest compute time over ranks is shorter by" in text
    assert text.count("**Time.**") == 1  # simulated steps have no time
    assert "dev accuracies" in text
    assert "No GPU" not in text
    assert not re.search(r"\b(None|nan|Undefined)\b", text)


def test_hostile_text_stays_text(tmp_path: Path) -> None:
    hostile = (
        "<script>alert(1)</script> | ![x](http://example.com/x.png) **b** `c` [l](javascript:x)\n\n# h /home/me/set"
    )
    for policy in ("static", "minmax"):
        write_run(tmp_path / "virtual", policy, steps=8, environment={"data": hostile, "device": "<img src=x> $x_{$"})
    found = collect([tmp_path / "virtual"])
    for made in (build, build_tables):
        html = made(found, tmp_path / made.__name__).read_text()
        assert (
            "&lt;script&gt;alert(1)&lt;/script&gt; | ![x](http://example.com/x.png) **b** `c` [l](javascript:x)"
            " # h me/set" in html
        )
        assert re.findall(r"<script[^>]*>\s*(\S*)", html) == ['"use']
        assert "<img src=x" not in html
        assert "/home/me" not in html


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
    static = {"arm": "static", "dev_accuracy": 0.5, "dev_majority": 0.51}
    arms = [static, {"arm": "x", "dev_accuracy": 0.6, "dev_majority": 0.5}]
    assert learning(arms) == "The arms' dev accuracies are 50.0 % to 60.0 %; the largest class has 51.0 %."
    assert learning([arm | {"dev_majority": None} for arm in arms]).endswith("50.0 % to 60.0 %.")
    assert "`balanced (M = 4)` computes the gradient of `static`" in learning([static | {"arm": "balanced (M = 4)"}])
    assert str(as_text("a|b_c\n# d")) == r"a\|b\_c # d"
    assert as_text(3) == 3


def test_portable_leaves_addresses() -> None:
    assert portable(["/data/x/y.tsv", "https://a.org/b/c", "a/b"]) == ["x/y.tsv", "https://a.org/b/c", "a/b"]


def test_nulls_and_lone_arms_are_no_obstacle(tmp_path: Path) -> None:
    nulls = ("compute_s", "step_s", "wait_s", "peak_memory_bytes", "predicted_cost", "plan_wait_s", "loss", "offer_s")
    write_run(tmp_path / "virtual", "minmax", steps=4, drop=nulls, environment={"loop": "of its own"})
    found = collect([tmp_path / "virtual"])
    assert "None" not in tables(found, {}, "t") + report(found, {})
    assert {c["holds"] for c in conclusions(found.measured) if c["id"].startswith("minmax-wait")} == {None}
    write_run(tmp_path / "other", "static", steps=2)
    assert "There is no arm beside" in tables(collect([tmp_path / "other"]), {}, "t")


def test_window_without_choice_is_said(tmp_path: Path) -> None:
    write_run(tmp_path / "study", "minmax", steps=4, prefetch=16)
    assert "no choice but equal counts" in tables(collect([tmp_path / "study"]), {}, "t")


def test_unfinished_runs_are_named(tmp_path: Path) -> None:
    write_run(tmp_path / "study", "static", steps=4)
    write_run(tmp_path / "study", "minmax", steps=4, state="failed")
    damaged = write_run(tmp_path / "study", "balanced", steps=4)
    (damaged / "records.parquet").write_bytes(b"PAR1")
    log = launcher_log(tmp_path / "study" / "lost")
    log.parent.mkdir(parents=True)
    log.write_text("error: a mistake")
    found = collect([tmp_path / "study"])
    text = tables(found, {}, "t")
    assert "Left out, 3 of 4 runs: " in text
    assert "study/lost (it never began: a mistake; see logs/launcher.log)" in text
    assert "study/minmax-distributed-g2-s0 (failed: it was stopped)" in text
    assert re.search(r"study/balanced-distributed-g2-s0 \(\S*records.parquet: cannot be read", text)
    assert "Left out: 3 of 4 runs, named in the appendix" in report(found, {})


def test_command(
    frozen: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    write_run(tmp_path / "study", "static", steps=4)
    assert main([str(tmp_path / "study"), "--output", str(tmp_path / "out")]) == 0
    assert capsys.readouterr().out.strip() == str(tmp_path / "out" / "report.html")
    assert main([str(tmp_path / "nothing")]) == 1
    assert "there is no such folder" in capsys.readouterr().err
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(build_module, "FROZEN", tmp_path / "absent")
    assert main([]) == 1
    assert "no frozen results" in capsys.readouterr().err


@pytest.mark.parametrize("room", [0, 3], ids=lambda room: f"room for {room} files")
def test_full_disk(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, room: int
) -> None:
    """The old pages stay whole, a new folder has none, and one line says why."""
    write_run(tmp_path / "study", "static", steps=4)
    words = [str(tmp_path / "study"), "--output", str(tmp_path / "out")]
    assert main(words) == 0
    before = {path: path.read_bytes() for path in (tmp_path / "out").rglob("*.*")}
    capsys.readouterr()

    synced = list[int]()

    def full(file: int) -> None:
        synced.append(file)
        if len(synced) > room:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr("ddpsched.records.os.fsync", full)
    for folder in (tmp_path / "out", tmp_path / "new"):
        synced.clear()
        assert main([words[0], "--output", str(folder)]) == 1
        assert capsys.readouterr().err.startswith("error: no space left for ")
        assert {path: path.read_bytes() for path in folder.rglob("*.*")} == (before if folder.name == "out" else {})


def test_memory_is_judged_of_processes_alone(results: Results, page: Path) -> None:
    found = {c["id"]: c for c in conclusions(results.measured) if "-memory@" in c["id"]}
    assert {c["setting"] for c in found.values()} == {"memory"}
    text = page.with_suffix(".md").read_text()
    assert "4 peak memory of the largest rank, from the study of memory" in text


def test_settings_of_two_sizes_have_names_of_their_own(tmp_path: Path) -> None:
    for world_size in (2, 4):
        for policy in ("static", "balanced"):
            write_run(tmp_path / "s", policy, world_size=world_size, steps=20)
    found = collect([tmp_path / "s"]).measured
    assert [each.name for each in found] == [f"s (G = {ranks}, B = 32)" for ranks in (2, 4)]
    rows = [row for each in found for row in conclusions([each])]
    assert {row["setting"] for row in rows} == {each.name for each in found}
    assert len({row["id"] for row in rows}) == len(rows)


def test_launches_at_one_time(tmp_path: Path) -> None:
    for seed, (begin, end) in enumerate((("10:00", "10:20"), ("10:10", "10:15"), ("10:20", "10:30"))):
        run = write_run(tmp_path / "s", "static", seed=seed, steps=4)
        status = json.loads((run / "status.json").read_text())
        times = {"started": f"2026-01-01T{begin}:00+00:00", "finished": f"2026-01-01T{end}:00+00:00"}
        (run / "status.json").write_text(json.dumps(status | times))
    (measured,) = collect([tmp_path / "s"]).measured
    assert measured.num_launches == "3, up to 2 at one time"
    assert measured.most_at_once == 2
    assert measured.hours == pytest.approx((20 + 5 + 10) / 60), "launches one after another"
