"""Arms take turns in several launches, and the benchmarks' tables show their ratios above the A/A pair's noise.

The processes of launches import this file, so torch is imported by the tests that need it.
"""

import argparse
import contextlib
import gc
import os
import re
import subprocess
import sys
import time
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ddpsched.compare import Question
from ddpsched.config import parse
from ddpsched.data.embedded.length_histogram import sst2_lengths
from ddpsched.errors import ConfigError
from ddpsched.terminal import plain_console
from experiments.benchmarks import planning_times
from experiments.benchmarks.bench import AA, Seconds, add_options, in_turn, judged, launched, table, tables, with_ratios

VERDICTS = ("told apart", "slower", "faster", "differs", "the same within")  # exactly one of them is in each
SPEEDS = {"first": 1.0, "equal": 1.0, "slow": 1.3, "fast": 0.8}


def planted(seed: int, rounds: int = 12) -> Seconds:
    """Return a launch of ``SPEEDS`` on a machine that drifts by 20 %, with noise of 2 % and 1 % between launches."""
    rng = np.random.default_rng(seed)
    launch = {name: speed * rng.lognormal(0, 0.01) for name, speed in SPEEDS.items()}
    now = iter(np.linspace(1, 1.2, 2 * len(SPEEDS) * rounds))
    return in_turn(
        {name: lambda speed=speed: speed * next(now) * rng.lognormal(0, 0.02) for name, speed in launch.items()},
        rounds, seed,
    )  # fmt: skip


def test_turns_are_counterbalanced_and_the_first_arm_comes_twice() -> None:
    calls: list[str] = []

    def arm(name: str) -> float:
        calls.append(name)
        return float(len(calls))

    times = in_turn({name: partial(arm, name) for name in "abc"}, rounds=4, seed=5, left_out=2)
    assert list(times) == ["a", AA, "b", "c"]
    rounds = [calls[start : start + 4] for start in range(0, len(calls), 4)]
    assert all(sorted(each) == ["a", "a", "b", "c"] for each in rounds)
    assert len(rounds) == 6
    assert [each[::-1] for each in rounds[::2]] == rounds[1::2]
    assert len({tuple(each) for each in rounds}) > 2, "another order for each pair of rounds"
    moments = np.concatenate(list(times.values()))
    assert sorted(moments) == list(range(9, 25)), "the first two rounds are left out"


def test_an_arm_may_bring_its_own_a_a() -> None:
    times = in_turn({"a": lambda: 1.0, AA: lambda: 2.0, "b": lambda: 3.0}, rounds=2)
    assert {name: each.tolist() for name, each in times.items()} == {"a": [1, 1], AA: [2, 2], "b": [3, 3]}


def test_no_garbage_is_searched_for_in_a_turn() -> None:
    searching: list[bool] = []

    def arm() -> float:
        searching.append(gc.isenabled())
        return 1.0

    assert gc.isenabled()
    in_turn({"a": arm}, rounds=2)
    assert not any(searching)
    assert gc.isenabled()


def answer(what: Any, seed: int) -> Any:
    """Return both; end the process for an integer, and raise an error that is given."""
    if isinstance(what, int):
        os._exit(what)
    if isinstance(what, ConfigError):
        raise what
    return what, seed, os.getpid()


@pytest.mark.slow
def test_launches_are_fresh_processes() -> None:
    answers = launched(answer, "word", launches=2)
    assert [each[:2] for each in answers] == [("word", 0), ("word", 1)]
    assert len({pid for *_, pid in answers} | {os.getpid()}) == 3
    with pytest.raises(RuntimeError, match="launch 0: its process ended with exit code 3"):
        launched(answer, 3, launches=2)
    with pytest.raises(ConfigError, match="of a launch"):
        launched(answer, ConfigError("of a launch"), launches=1)


def test_a_slower_arm_is_called_slower_and_an_equal_one_is_not() -> None:
    (found,) = judged([[planted(seed) for seed in range(3)]])
    words = {name: each.verdict for name, each in found.items()}
    told = {AA: "not told apart", "equal": "not told apart from A/A", "slow": "slower", "fast": "faster"}
    assert words == {"first": "", **told}
    assert found["slow"].ratio is not None
    assert found["slow"].ratio.low < 1.3 < found["slow"].ratio.high
    assert found["slow"].seconds == pytest.approx(1.3 * found["first"].seconds, rel=0.05)
    (wide,) = judged([[planted(seed) for seed in range(5)]], margin=0.05)
    assert wide["equal"].verdict == "the same within 5 %"


def test_all_arms_of_a_page_are_one_family() -> None:
    weak = [{"a": np.ones(8), AA: np.ones(8), "b": np.full(8, value)} for value in (1.08, 1.10, 1.12)]
    none = [{"a": np.ones(8), AA: np.ones(8), "b": np.full(8, value)} for value in (0.9, 1.0, 1.1)]
    assert judged([weak])[0]["b"].verdict == "slower"
    assert [each["b"].verdict for each in judged([weak, *[none] * 9])] == ["not told apart from A/A"] * 10


def test_all_a_a_pairs_of_a_page_are_one_family() -> None:
    alone, even = (
        [{"a": np.ones(8), AA: np.full(8, value)} for value in values] for values in ((1.08, 1.10, 1.12), (0.9, 1, 1.1))
    )
    assert judged([alone])[0][AA].verdict == "differs"
    assert [each[AA].verdict for each in judged([alone, *[even] * 9])] == ["not told apart"] * 10


def printed(shown: Any) -> str:
    console = plain_console(width=180)
    with console.capture() as capture:
        console.print(shown)
    return capture.get()


def test_the_table() -> None:
    launches = [planted(seed) for seed in range(3)]
    title, *lines = (
        line.strip() for line in printed(table(launches, "in turn", "ms", 1e3)).splitlines() if line.strip()
    )
    assert title == "in turn"
    assert re.fullmatch(r"arm +ms +/ first \(95 %\) +verdict", lines[0])
    assert re.fullmatch(r"first +1\d{3}", lines[2])
    assert re.fullmatch(r"A/A +1\d{3} +\d\.\d{3} \(0\.9\d\d to 1\.0\d\d\) +not told apart", lines[3])
    assert re.fullmatch(r"slow +1\d{3} +1\.\d{3} \(1\.2\d\d to 1\.3\d\d\) +slower", lines[5])
    one, two = tables({"x": launches, "y": launches[:1]})
    assert "no interval: 1 launch, at least 2 are needed" in " ".join(printed(two).split())
    assert "slower" in printed(one)


def test_a_claim_has_five_launches_unless_fewer_are_asked_for() -> None:
    parser = argparse.ArgumentParser()
    add_options(parser)
    assert parser.parse_args([]).launches == 5
    assert parser.parse_args(["--launches", "3"]).launches == 3


@pytest.mark.parametrize("words", [["--rounds", "0"], ["--launches", "-1"], ["--launches", "x"]])
def test_options_that_measure_nothing(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    parser = argparse.ArgumentParser()
    add_options(parser)
    with pytest.raises(SystemExit):
        parser.parse_args(words)
    assert "give a whole number, at least 1" in capsys.readouterr().err


def test_planning_times(capsys: pytest.CaptureFixture[str]) -> None:
    lengths = sst2_lengths(600, np.random.default_rng(0))
    courses = [planning_times.course(Question(lengths, 2, batch), ["karmarkar_karp_equal"]) for batch in (8, 32)]
    launches = [planning_times.measure(courses, 8, seed) for seed in range(2)]
    lines = list(planning_times.report([("drawn", 2, 8), ("drawn", 2, 32)], launches))
    first, second = (index for index, line in enumerate(lines) if line.startswith("| arm"))
    times, ratios = ([line.split(" | ")[0][2:] for line in lines[at + 2 : at + 13]] for at in (first, second))
    policies = ["packed", "token_budget", "bins", "pool", "pool, packed", "karmarkar_karp_equal"]
    assert times[:10] == ["static", "minmax", "balanced", "balanced, M = 4", *policies]
    assert ratios == [AA, "static", "minmax", "balanced", *policies]
    assert all(any(word in line for word in VERDICTS) for line in lines[second + 3 :])
    assert planning_times.main(["nowhere", "--peer", "nobody"]) == 1
    assert "--peer nobody: is none of all, length_grouped" in capsys.readouterr().err


def test_a_slow_peer_plans_a_prefix(monkeypatch: pytest.MonkeyPatch) -> None:
    lengths = sst2_lengths(6000, np.random.default_rng(0))
    monkeypatch.setattr(planning_times, "ask", lambda name, problem: 1e-4)  # 0.5 s are for 5,000 samples
    found = planning_times.course(Question(lengths, 2, 32), ["karmarkar_karp_equal"])
    assert list(found.prefixes()) == ["`karmarkar_karp_equal` the first 4,992"]
    assert found.problems["karmarkar_karp_equal"].order.max() == 4991
    monkeypatch.setattr(planning_times, "ask", lambda name, problem: 1e-5)
    assert not list(planning_times.course(Question(lengths, 2, 32), ["karmarkar_karp_equal"]).prefixes())


def test_sorting_on_ranks(monkeypatch: pytest.MonkeyPatch) -> None:
    from experiments.benchmarks import sample_sort

    monkeypatch.setattr(sample_sort, "KEYS", ("lengths",))
    (shown,) = sample_sort.compare(2000, 2, rounds=8, launches=2)
    text = printed(shown)
    assert "2,000 rows of (lengths, id); memory of a rank" in text
    assert "/ 2 gloo ranks (95 %)" in text
    assert [line.split("  ")[1] for line in text.splitlines()[4:] if line.strip()][:2] == ["2 gloo ranks", AA]
    assert sum(text.count(word) for word in VERDICTS) == 1 + len(sample_sort.ALONE)


def stamps(step_s: np.ndarray) -> np.ndarray:
    """Return the stamps of two ranks whose steps take so long, gradients ready at half of it."""
    steps, ranks = len(step_s), 2
    table = np.zeros((steps, ranks, 5), dtype=np.int64)
    table[:, :, 1], table[:, :, 2] = (step_s * 5e8)[:, None], (step_s * 1e9)[:, None]
    table[:, :, 3:] = 1, 4_000_000
    return table


def test_rows_of_synchronisers() -> None:
    from experiments.benchmarks import syncs

    launches = []
    for seed in range(3):
        seconds = planted(seed)
        launches.append((seconds, {name: stamps(each) for name, each in seconds.items()}))
    peaks = {name: 10**9 + number for number, name in enumerate(SPEEDS)}
    rows = {row["arm"]: row for row in with_ratios(syncs.figures(launches, peaks))}
    assert list(rows) == ["first", AA, "equal", "slow", "fast"]
    assert rows["first"]["ratio"] is rows["first"]["verdict"] is rows[AA]["peak_memory_bytes"] is None
    assert rows["slow"]["ratio"]["low"] < 1.3 < rows["slow"]["ratio"]["high"]
    verdicts = [row["verdict"] for row in rows.values()]
    assert verdicts[1:] == ["not told apart", "not told apart from A/A", "slower", "faster"]
    assert rows["slow"]["exposed_share"] == pytest.approx(0.5)
    assert "1.000 GB" in printed(syncs.report(list(rows.values())))
    few = [({name: each[:5] for name, each in seconds.items()}, tables) for seconds, tables in launches]
    row = next(row for row in with_ratios(syncs.figures(few, peaks)) if row["arm"] == "slow")
    assert row["ratio"]["low"] is row["ratio"]["high"] is None
    assert row["verdict"] == "no interval: 5 steps in a launch, at least 8 are needed"


@pytest.mark.slow
def test_synchronisers_on_ranks() -> None:
    from experiments.benchmarks import syncs

    config = parse(
        {"steps": 11, "global_batch": 4, "world_size": 2, "policy": {"kind": "balanced"},
         "executor": {"kind": "distributed", "device": "cpu"}}
    )  # fmt: skip
    steps, rows = syncs.measure(config, ("ddp", "naive"), launches=2)
    assert (steps, [row["arm"] for row in rows]) == (8, ["ddp", AA, "naive"])
    ratios = [row["ratio"] for row in with_ratios(rows)[1:]]
    assert all(each["low"] < each["ratio"] < each["high"] for each in ratios)
    with pytest.raises(ConfigError, match="steps = 3: the first 3 are left out; give more, and 11 or more"):
        syncs.measure(config.model_copy(update={"steps": 3}), ("ddp",))


def write_and_sleep(path: Path, seed: int) -> None:
    path.with_suffix(".new").write_text(f"{os.getpid()}")
    path.with_suffix(".new").rename(path)
    time.sleep(60 + seed)


# elsewhere a launch is not told, so there is nothing to test
@pytest.mark.skipif(sys.platform != "linux", reason="the kernel tells a process of its parent's end on Linux alone")
def test_a_launch_ends_with_a_killed_benchmark(tmp_path: Path) -> None:
    script = (
        f"import sys; sys.path.insert(0, {str(Path(__file__).parent)!r}); from pathlib import Path; "
        f"import test_bench as t; t.launched(t.write_and_sleep, Path({str(tmp_path / 'pid')!r}), launches=1)"
    )
    benchmark = subprocess.Popen([sys.executable, "-c", script])
    until = time.monotonic() + 60
    while not (tmp_path / "pid").exists() and time.monotonic() < until:
        time.sleep(0.05)
    benchmark.kill()
    benchmark.wait()
    launch = Path("/proc", (tmp_path / "pid").read_text(), "cmdline")  # empty while an ended process waits to be reaped
    with contextlib.suppress(FileNotFoundError, ProcessLookupError):  # it has been reaped, so it has ended
        while launch.read_bytes() and time.monotonic() < until:
            time.sleep(0.05)
    assert time.monotonic() < until
