"""Files of results: gone on with, refused, and read back as rows with intervals and verdicts."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ddpsched.errors import ConfigError, DataError
from ddpsched.local_ranks import Outcome
from ddpsched.terminal import plain_console
from experiments.benchmarks.bench import AA
from experiments.trainers import parts, peer_table
from experiments.trainers.arms import FIRST, ODB
from experiments.trainers.dev_loss import Target
from experiments.trainers.frozen import Launch, PeersFile, Reached, SeedRuns, StepsFile, TargetFile, read, write
from experiments.trainers.parts import Wanted, dev_loss_times, step_times
from experiments.trainers.peer_table import freeze_peers
from experiments.trainers.rows import over_strongest, rows_of, step_rows, target_rows
from experiments.trainers.setting import Setting
from experiments.trainers.tables import WIDTH, shown
from report.in_trainer import Trainers

ROUNDS, STEPS = 8, 5


def launch(seed: int, arms: list[str]) -> Launch:
    """Return a launch in which "balanced" takes half of random's time, and another package's steps have 16 samples."""
    rng = np.random.default_rng(seed)
    factor, batch = {"balanced": 0.5, ODB: 0.4}, {ODB: 16}
    names = [FIRST, AA, *arms[1:]]
    return Launch(
        seed=seed,
        seconds={name: (factor.get(name, 1.0) * rng.normal(1, 0.01, ROUNDS)).tolist() for name in names},
        samples={name: [STEPS * batch.get(name, 32)] * ROUNDS for name in names},
        errors={name: 1e-7 * (1 + seed) for name in arms},
        own_errors={FIRST: 1.0},
        auto=None,
    )


def wanted(path: Path | None, arms: list[str], said: list[str] | None = None) -> Wanted:
    return Wanted(Setting("tiny", None), arms, path, (said if said is not None else []).append)


@pytest.fixture
def measured(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Return the seeds that are measured; instead of ranks there are launches made up."""
    seeds = list[int]()

    def run_ranks(function: Any, ranks: int, setting: Any, arms: Any, *rest: Any, **limits: Any) -> list[Outcome]:
        seeds.append(rest[-1])
        return [Outcome(0, "answered", launch(rest[-1], list(arms)))]

    monkeypatch.setattr(parts, "run_ranks", run_ranks)
    monkeypatch.setattr(parts.fixed_values, "odb_budget", lambda setting: 246)
    monkeypatch.setattr(parts, "runnable", lambda names: (list(names), {}))  # whether it is installed or not
    return seeds


def test_arms_stand_beside_the_strongest_of_others(tmp_path: Path, measured: list[int]) -> None:
    file = step_times(wanted(tmp_path / "steps.json", [FIRST, "batch_rebalance", "balanced"]), STEPS, ROUNDS, 3)
    over_random = {row.arm: row.epoch_s for row in step_rows(file)}
    found = over_strongest(file)
    assert list(found) == ["balanced"]
    expected = over_random["balanced"] / over_random["batch_rebalance"]
    assert found["balanced"][0].value == pytest.approx(expected, rel=0.01)
    assert over_strongest(step_times(wanted(tmp_path / "none.json", [FIRST, "balanced"]), STEPS, ROUNDS, 3)) == {}


def test_launches_that_a_file_has_are_not_run_again(tmp_path: Path, measured: list[int]) -> None:
    path, arms, said = tmp_path / "steps.json", [FIRST, "balanced"], list[str]()
    step_times(wanted(path, arms, said), STEPS, ROUNDS, 2)
    assert measured == [0, 1]
    assert said == ["launch 0: 0 s", "launch 1: 0 s"]
    file = step_times(wanted(path, arms), STEPS, ROUNDS, 3)
    assert measured == [0, 1, 2]
    assert read(path) == file
    assert len(step_times(wanted(path, arms), STEPS, ROUNDS, 1).launches) == 1
    assert measured == [0, 1, 2]


def test_a_launch_is_written_before_the_next_one(
    tmp_path: Path, measured: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    path, run = tmp_path / "steps.json", parts.run_ranks

    def fails(*words: Any, **limits: Any) -> Any:
        if words[-1] == 1:
            raise KeyboardInterrupt
        return run(*words, **limits)

    monkeypatch.setattr(parts, "run_ranks", fails)
    with pytest.raises(KeyboardInterrupt):
        step_times(wanted(path, [FIRST, "balanced"]), STEPS, ROUNDS, 3)
    assert [each.seed for each in rows_source(path).launches] == [0]


def rows_source(path: Path) -> StepsFile:
    file = read(path)
    assert isinstance(file, StepsFile)
    return file


def test_a_file_of_another_experiment_is_refused(tmp_path: Path, measured: list[int]) -> None:
    path, arms = tmp_path / "steps.json", [FIRST, "balanced"]
    step_times(wanted(path, arms), STEPS, ROUNDS, 1)
    before = path.read_bytes()
    for other, steps, key in [(arms, 6, r"steps = 5 in it, 6 now"), ([FIRST], STEPS, "arms = random, balanced in it")]:
        with pytest.raises(ConfigError, match=f"is of another experiment: {key}"):
            step_times(wanted(path, other), steps, ROUNDS, 1)
    with pytest.raises(ConfigError, match="it holds kind 'steps', not 'target'"):
        dev_loss_times(wanted(path, arms), 1, 10, None)
    assert path.read_bytes() == before
    assert measured == [0]


@pytest.mark.parametrize("text", ["{", '{"kind": "other"}', '{"kind": "steps"}', "[]"])
def test_a_file_of_nothing_is_refused(tmp_path: Path, text: str) -> None:
    path = tmp_path / "file.json"
    path.write_text(text)
    with pytest.raises(DataError, match=r"file\.json"):
        read(path)


def test_rows_of_steps(tmp_path: Path, measured: list[int]) -> None:
    path = tmp_path / "steps.json"
    file = step_times(wanted(path, [FIRST, ODB, "balanced"]), STEPS, ROUNDS, 3)
    rows = {row.arm: row for row in step_rows(file)}
    assert list(rows_of(path)) == list(rows.values())
    assert list(rows) == [FIRST, AA, ODB, "balanced"]
    assert rows["balanced"].verdict == "faster"
    assert rows[ODB].verdict == "faster"
    assert rows[ODB].step_s == pytest.approx(0.4, rel=0.02)
    assert rows[ODB].epoch_s == pytest.approx(0.8 * rows[FIRST].epoch_s, rel=0.02), "of half the samples a step"
    assert rows[FIRST].error == 3e-7, "the largest of the launches"
    assert rows["balanced"].own_error is None


def reached(seconds: float, samples: int = 3_200, is_reached: bool = True) -> Reached:
    return Reached(reached=is_reached, seconds=seconds, samples=samples, steps=samples // 32, least=0.4)


def target_file(seeds: int, missed: int = 0) -> TargetFile:
    """Return a file in which "packed" takes half of random's seconds, and "minmax" misses the target in some seeds."""
    rng = np.random.default_rng(0)
    return TargetFile(
        experiment={"model": "tiny", "data": "embedded", "epochs": 2}, environment={}, left_out={}, notes=[], cost=None,
        odb_tokens=None, target=0.5,
        seeds=[
            SeedRuns(
                seed=seed,
                arms={
                    FIRST: reached(10 * rng.normal(1, 0.01)), AA: reached(10 * rng.normal(1, 0.01)),
                    "minmax": reached(10.0, is_reached=seed >= missed), "packed": reached(5 * rng.normal(1, 0.01)),
                    "static": reached(10.0),
                },
            )
            for seed in range(seeds)
        ],
    )  # fmt: skip


def test_rows_of_times_to_a_target() -> None:
    rows = {row.arm: row for row in target_rows(target_file(5, missed=2))}
    assert rows["packed"].verdict == "faster"
    value, low, high = (float(each.strip("()")) for each in rows["packed"].ratio.replace(" to", "").split())
    assert low < value < high < 0.55
    assert (rows["minmax"].reached, rows["minmax"].seeds) == (3, 5)
    assert rows["minmax"].verdict == "not reached in 2 epochs in 2 of 5 seeds"
    assert rows["minmax"].ratio == "", "of the seeds that are easy alone"
    assert target_rows(target_file(1))[-1].verdict.startswith("no interval: 1 seed")
    assert target_rows(target_file(5, missed=5))[2].seconds is None


def test_what_is_concluded_from_times_to_a_target() -> None:
    """Where A/A differs by itself, nothing is, though an arm is faster."""
    ((title, rows, alike_in_order),) = Trainers({"a": target_file(5)}).target_tables()
    assert alike_in_order.startswith("Over `ddpsched, static`, whose order and steps these arms share: `")
    assert "5 seeds" in title
    assert Trainers.about_target(rows) == "Told apart from A/A: ddpsched, packed (faster)."
    alike = [row for row in rows if row.arm != "ddpsched, packed"]
    assert Trainers.about_target(alike) == "None is told apart from A/A: nothing is concluded."
    noisy = [replace(row, verdict="differs") if row.arm == AA else row for row in rows]
    assert Trainers.about_target(noisy) == (
        "The same arm with another order of samples (A/A) differs by itself, so nothing is concluded."
    )


def test_a_target_that_random_does_not_reach(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    found = [Outcome(0, "answered", Target(0.1, [0.4, 0.45, 0.41]))]
    monkeypatch.setattr(parts, "run_ranks", lambda *words, **limits: found)
    with pytest.raises(ConfigError, match=r"--target 0.42: random's dev loss stays above it for 2 epochs, at 0.4500"):
        dev_loss_times(wanted(tmp_path / "target.json", [FIRST]), 1, 10, 0.42)
    assert not (tmp_path / "target.json").exists()


@pytest.mark.parametrize(
    ("every", "target", "message"),
    [
        (32, None, "--every 32: a quarter of an epoch has 31 steps"),
        (10, float("nan"), "--target nan: give a dev loss above 0"),
    ],
)
def test_dev_losses_that_say_nothing(every: int, target: float | None, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        dev_loss_times(wanted(None, [FIRST]), 1, every, target)


def test_the_peers_are_frozen_by_trace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, planned = tmp_path / "peers.json", list[str]()
    lengths = {"SST-2": np.random.default_rng(0).integers(3, 40, 400)}
    monkeypatch.setattr(peer_table, "lengths_of", lambda folder: lengths)
    monkeypatch.setattr(peer_table, "PEERS", {name: peer_table.PEERS[name] for name in ("karmarkar_karp", "cosmos_rl")})
    file = freeze_peers(tmp_path, path, planned.append, [("SST-2", 2, 16)])
    assert file == read(path)
    (rows,) = file.traces.values()
    by_arm = {row.arm: row for row in rows}
    assert by_arm["static"].times_static == 1
    assert by_arm["karmarkar_karp"].same_gradient
    if by_arm["cosmos_rl"].skipped is not None:
        assert "pip install" in by_arm["cosmos_rl"].skipped
    freeze_peers(tmp_path, path, planned.append, [("SST-2", 2, 16), ("SST-2", 4, 32)])
    assert len(planned) == 2, "a trace that the file has is not planned again"


@pytest.mark.parametrize("width", [60, 100])
def test_what_is_shown(width: int, measured: list[int], tmp_path: Path) -> None:
    console = plain_console(at_least=WIDTH, record=True, width=width, file=(tmp_path / "log").open("w"))
    peers = PeersFile(experiment={}, environment={}, traces={})
    for file in (step_times(wanted(None, [FIRST, "balanced"]), STEPS, ROUNDS, 2), target_file(2), peers):
        for part in shown(file):
            console.print(part)
    text = console.export_text()
    assert "extrapolated" in text
    assert "ddpsched, balanced" in text
    assert "…" not in text, "no figure is cut off"


def test_files_are_small(tmp_path: Path, measured: list[int]) -> None:
    path = tmp_path / "steps.json"
    write(path, step_times(wanted(None, [FIRST, "balanced"]), STEPS, ROUNDS, 3))
    assert path.stat().st_size < 6_000
    assert json.loads(path.read_text())["kind"] == "steps"
