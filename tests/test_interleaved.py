"""Runs that take turns: each trains as it would alone, one that fails leaves the others, and bad company is refused."""

import errno
import json
import logging
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from time import sleep
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from ranks import run_ranks
from runs import config_of, records_of

import ddpsched.interleaved as interleaved
from ddpsched.config import RunConfig, dump
from ddpsched.errors import ConfigError
from ddpsched.interleaved import order_of, run_interleaved
from ddpsched.planning.planner import plan_steps
from ddpsched.run_folder import read_status
from ddpsched.run_loop import run
from ddpsched.step_plan import StepPlan
from ddpsched.training import footprint

ARMS = ("static", "minmax", "packed")
SAME = ["step", "rank", "plan_hash", "loss", "grad_norm", "num_tokens"]


def configs_of(folder: Path, executor: str = "virtual", **values: Any) -> list[RunConfig]:
    return [config_of(folder, executor, policy, **values) for policy in ARMS]


@given(st.integers(1, 9), st.integers(0, 40), st.integers(0, 2**32))
def test_each_round_has_every_run_once_and_every_second_is_the_one_before_backwards(runs: int, half: int, seed: int):
    first, second = (order_of(runs, round_, seed) for round_ in (2 * half, 2 * half + 1))
    assert sorted(first) == list(range(runs))
    assert second == first[::-1]


@pytest.mark.parametrize("block", [1, 3])
def test_each_run_trains_as_it_would_alone(tmp_path: Path, block: int) -> None:
    assert run_interleaved(configs_of(tmp_path / "turns"), block=block) == {}
    for config in configs_of(tmp_path / "alone"):
        alone = records_of(run(config))[SAME]
        together = records_of(tmp_path / "turns" / config.study / config.name)[SAME]
        assert together.equals(alone), config.name
        facts = json.loads((tmp_path / "turns" / config.study / config.name / "environment.json").read_text())
        assert facts["launch"]["runs"] == [each.name for each in configs_of(tmp_path)]
        assert facts["launch"]["block"] == block


def test_steps_take_turns(tmp_path: Path) -> None:
    """The moments of steps show it; and that they would not, were the runs one after another."""
    run_interleaved(configs_of(tmp_path))
    folders = (tmp_path / "runs" / f"{policy}-virtual" for policy in ARMS)
    began = [records_of(folder).groupby("step")["unix_s"].min() for folder in folders]
    for step in range(3):
        assert max(times[step] for times in began) < min(times[step + 1] for times in began)
    for config in configs_of(tmp_path / "apart"):
        run(config)
    first, *_, last = (records_of(tmp_path / "apart" / "runs" / f"{policy}-virtual")["unix_s"] for policy in ARMS)
    assert first.max() < last.min()


def test_the_order_of_a_round_is_drawn_and_reversed_in_the_next(tmp_path: Path) -> None:
    configs = [each.model_copy(update={"steps": 12}) for each in configs_of(tmp_path)]
    run_interleaved(configs)
    began = {each.name: records_of(each.run_dir).groupby("step")["unix_s"].min() for each in configs}
    orders = [sorted(began, key=lambda name, step=step: began[name][step]) for step in range(12)]
    assert all(orders[step + 1] == orders[step][::-1] for step in range(0, 12, 2))
    assert len({tuple(order) for order in orders}) > 2, "drawn anew, not the same pair of orders again and again"


def test_a_step_waits_for_its_plan_as_long_as_it_would_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Plans are not made in others' turns, where their time would be hidden."""

    def slow(*args: Any) -> Iterator[StepPlan]:
        for plan in plan_steps(*args):
            sleep(0.3)
            yield plan

    monkeypatch.setattr("ddpsched.plan_stream.plan_steps", slow)
    configs = configs_of(tmp_path)
    run_interleaved(configs)
    for each in configs:
        assert records_of(each.run_dir)["plan_wait_s"].median() > 0.05, each.name


def launched(files: list[Path], ranks: int = 2, *words: str) -> subprocess.CompletedProcess[str]:
    launcher = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(ranks)]
    command = [sys.executable, *launcher, "-m", "experiments.interleaved", *map(str, files), *words]
    return subprocess.run(
        command, cwd=Path(__file__).parents[1], capture_output=True, text=True, timeout=300, check=False
    )


@pytest.mark.slow
def test_ranks_take_turns_and_a_run_that_fails_leaves_the_others(tmp_path: Path) -> None:
    """One of three real runs loses its gradient on all ranks; the two others train as they would alone."""
    configs = configs_of(tmp_path, "distributed")
    bad = {**configs[1].model_dump(), "train": {"learning_rate": 1e38, "warmup": 0.0}, "steps": 20}
    configs[1] = RunConfig.model_validate(bad)
    files = []
    for config in configs:
        files.append(tmp_path / f"{config.name}.toml")
        files[-1].write_text(dump(config))
    done = launched(files)
    assert done.returncode == 1, done.stderr
    assert "3 runs in turn keep" in done.stdout
    assert "failed: " in done.stdout
    states = {config.name: read_status(config.run_dir)["state"] for config in configs}
    assert states == {"static-distributed": "done", "minmax-distributed": "failed", "packed-distributed": "done"}
    assert "NaN" in read_status(configs[1].run_dir)["reason"]
    for config, policy in ((configs[0], "static"), (configs[2], "packed")):
        virtual = records_of(run(config_of(tmp_path / "virtual", "virtual", policy)))
        assert records_of(config.run_dir)["plan_hash"].tolist() == virtual["plan_hash"].tolist()
        assert records_of(config.run_dir)["loss"].to_numpy() == pytest.approx(virtual["loss"].to_numpy(), rel=1e-4)


def full_at_the_end(outputs: Path, part: str) -> dict[str, str]:
    """Run three in turn; on rank 0 the disk is full when the first has taken its last step."""
    from ddpsched import run_loop
    from ddpsched.training.distributed import DistributedExecutor

    save, write = DistributedExecutor.save_model, run_loop.compact

    def full(path: Path) -> None:
        if "static" in str(path) and os.environ["RANK"] == "0":
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))

    def saving(self: Any, path: Path) -> None:
        save(self, path)
        full(path)

    def compacting(folder: Path) -> None:
        full(folder)
        write(folder)

    if part == "model":
        DistributedExecutor.save_model = saving  # type: ignore[method-assign]
    else:
        run_loop.compact = compacting
    configs = configs_of(outputs, "distributed", train={"save_model": True})
    executor = configs[0].executor.model_copy(update={"timeout_s": 8.0})
    return run_interleaved([config.model_copy(update={"executor": executor}) for config in configs])


@pytest.mark.parametrize("part", ["model", pytest.param("records", marks=pytest.mark.slow)])
def test_a_full_disk_at_the_end_of_one_run_leaves_the_others(tmp_path: Path, part: str) -> None:
    told = run_ranks(full_at_the_end, 2, tmp_path, part)
    assert [list(failed) for failed in told] == [["static-distributed"]] * 2
    assert "rank 0 failed after the last step" in told[1]["static-distributed"]
    folders = [tmp_path / "runs" / f"{policy}-distributed" for policy in ARMS]
    assert [read_status(folder)["state"] for folder in folders] == ["failed", "done", "done"]
    assert "rank 0: no space left" in read_status(folders[0])["reason"]


def test_a_failure_of_one_run_is_named_and_leaves_the_others(tmp_path: Path) -> None:
    configs = configs_of(tmp_path)
    configs[0] = RunConfig.model_validate({**configs[0].model_dump(), "data": {"path": "/nowhere.tsv"}})
    (tmp_path / "runs" / "packed-virtual").mkdir(parents=True)
    failed = run_interleaved(configs)
    assert list(failed) == ["static-virtual"]
    assert "/nowhere.tsv" in failed["static-virtual"]
    assert [read_status(config.run_dir)["state"] for config in configs] == ["absent", "done", "done"]


def test_a_disk_too_full_for_a_run_to_begin_is_named_with_a_remedy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(config: RunConfig, *args: Any, **options: Any) -> Iterator[None]:
        raise OSError(errno.ENOSPC, "No space left on device", str(config.run_dir))
        yield

    monkeypatch.setattr(interleaved, "run_steps", full)
    configs = configs_of(tmp_path)[:1]
    says = f"no space left for {configs[0].run_dir}; free some, or write to another disk"
    assert run_interleaved(configs)["static-virtual"].startswith(says)


def test_an_interruption_ends_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from ddpsched.training.virtual import VirtualExecutor

    execute, steps = VirtualExecutor.execute, iter(range(100))

    def interrupted(self: Any, plan: Any) -> Any:
        if next(steps) == 4:
            raise KeyboardInterrupt
        return execute(self, plan)

    monkeypatch.setattr(VirtualExecutor, "execute", interrupted)
    with pytest.raises(KeyboardInterrupt):
        run_interleaved(configs_of(tmp_path))
    for config in configs_of(tmp_path):
        status = read_status(config.run_dir)
        assert (status["state"], status["reason"]) == ("failed", "interrupted")
        assert not (config.run_dir / "lock").exists()


def test_each_log_has_its_own_run_alone(tmp_path: Path) -> None:
    run_interleaved(configs_of(tmp_path, data={"size": 100}))
    logs = [(config.run_dir / "logs" / "rank0.log").read_text() for config in configs_of(tmp_path)]
    assert [log.count("computed here were padding") for log in logs] == [1, 1, 1]
    assert logs[2].count("0.0 %") == 1, "packed has no padding"
    assert logging.getLogger("ddpsched").handlers == []


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"block": 0}, "block = 0 steps.*at least 1"),
        ({"configs": []}, "no run is given"),
        ({"second": {"name": "static-virtual"}}, "runs share a name"),
        ({"second": {"world_size": 3}}, "world_size = 3, static-virtual has 2"),
        ({"second": {"executor": {"kind": "virtual", "threads": 2}}}, "share their ranks; start them apart"),
        ({"every": {"executor": {"kind": "simulated"}}}, "computes its times"),
        ({"second": {"train": {"checkpoint_every": 5}}}, "checkpoint_every = 5: runs that take turns begin anew"),
    ],
)  # fmt: skip
def test_runs_that_cannot_take_turns_are_refused(tmp_path: Path, change: dict[str, Any], message: str) -> None:
    configs = configs_of(tmp_path)
    configs[1] = RunConfig.model_validate({**configs[1].model_dump(), **change.get("second", {})})
    configs = [RunConfig.model_validate({**config.model_dump(), **change.get("every", {})}) for config in configs]
    with pytest.raises(ConfigError, match=message):
        run_interleaved(change.get("configs", configs), block=change.get("block", 1))
    assert not (tmp_path / "runs").exists(), "nothing is written"


def test_models_that_do_not_fit_together_are_refused_before_one_is_built(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(footprint, "free_bytes", lambda device: 4 * 2**20)
    monkeypatch.setattr(interleaved, "run_steps", lambda *_, **__: pytest.fail("a run was started"))
    with pytest.raises(ConfigError, match=r"3 runs in turn keep 0.01 GiB.*0.00 GiB are free.*compare.how=processes"):
        run_interleaved(configs_of(tmp_path))
    assert not (tmp_path / "runs").exists()
