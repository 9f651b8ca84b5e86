"""The one loop: three executors, one stream of plans, records that keep the schema."""

import json
import math
import os
import subprocess
import tomllib
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from ranks import free_port, run_ranks

from ddpsched.config import RunConfig, parse
from ddpsched.errors import (
    ConfigError,
    DataError,
    InfeasibleError,
    NonFiniteError,
    PlanMismatch,
    RankFailure,
    RunError,
    RunExistsError,
    StepOutOfMemory,
)
from ddpsched.guard import host_id
from ddpsched.planning import planner
from ddpsched.records import COLUMNS, RecordWriter, compact, read_lines
from ddpsched.run import run
from ddpsched.run_folder import RunFolder, read_status
from ddpsched.training.rank_step import RankStepper


def config_of(outputs: Path, executor: str = "virtual", policy: str = "minmax", **values: Any) -> RunConfig:
    return parse(
        {
            "name": f"{policy}-{executor}",
            "outputs": str(outputs),
            "steps": 4,
            "global_batch": 12,
            "world_size": 2,
            "data": {"size": 100, **values.pop("data", {})},
            "policy": {"kind": policy, "prefetch": 12},
            "executor": {"kind": executor, "timeout_s": 20.0},
            **values,
        }
    )


def records_of(folder: Path) -> pd.DataFrame:
    return pd.read_parquet(folder / "records.parquet")


def run_all(outputs: Path, policies: list[str], ports: list[int], values: dict[str, Any]) -> None:
    for policy, port in zip(policies, ports, strict=True):
        os.environ["MASTER_PORT"] = str(port)
        run(config_of(outputs, "distributed", policy, **values))


POLICIES = ["static", "minmax", "balanced"]


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Every policy on every executor, two ranks."""
    outputs = tmp_path_factory.mktemp("outputs")
    run_ranks(run_all, 2, outputs, POLICIES, [free_port() for _ in POLICIES], {})
    for policy in POLICIES:
        for executor in ("virtual", "simulated"):
            run(config_of(outputs, executor, policy))
    return outputs / "runs"


@pytest.mark.parametrize("policy", POLICIES)
def test_executors_run_the_same_plans(finished: Path, policy: str) -> None:
    found = {e: records_of(finished / f"{policy}-{e}") for e in ("distributed", "virtual", "simulated")}
    same = ["epoch", "step", "rank", "num_samples", "padded_tokens", "loss_scale", "predicted_cost", "plan_hash"]
    pd.testing.assert_frame_equal(found["distributed"][same], found["virtual"][same])
    pd.testing.assert_frame_equal(found["distributed"][same], found["simulated"][same])
    # same dropout masks by step and rank, so the same losses too
    np.testing.assert_allclose(found["distributed"]["loss"], found["virtual"]["loss"], rtol=1e-4)
    np.testing.assert_allclose(found["distributed"]["grad_norm"], found["virtual"]["grad_norm"], rtol=1e-3)


def test_records_keep_the_schema(finished: Path) -> None:
    for folder in finished.iterdir():
        rows = records_of(folder)
        assert tuple(rows.columns) == COLUMNS
        assert len(rows) == 4 * 2
        assert (rows["loss_scale"] == rows["world_size"] * rows["num_samples"] / rows["global_batch"]).all()
        assert (rows.groupby("step")["num_samples"].sum() == 12).all()
        assert rows.groupby("step")["plan_hash"].nunique().max() == 1
        measured = rows[["compute_s", "wait_s", "step_s"]]
        assert (measured.notna() & (measured >= 0)).all().all()
        if folder.name.endswith("simulated"):
            assert rows[["forward_s", "loss", "peak_memory_bytes", "vote_s", "grad_norm"]].isna().all().all()
        else:
            assert (rows["forward_s"] + rows["backward_s"] > 0).all()
            assert rows["peak_memory_bytes"].min() > 1e7
            assert (rows["step_s"] >= rows["compute_s"]).all()
        if folder.name.endswith("distributed"):
            assert (rows["vote_s"] > 0).all()
            assert rows["plan_wait_s"].notna().all()


def test_a_run_leaves_everything_in_its_folder(finished: Path) -> None:
    folder = finished / "minmax-distributed"
    assert read_status(folder)["state"] == "done"
    environment = json.loads((folder / "environment.json").read_text())
    assert environment["threads"] == 1
    assert environment["num_parameters"] > 1000
    assert tomllib.loads((folder / "config.toml").read_text())["policy"]["kind"] == "minmax"
    evaluation = json.loads((folder / "evaluations.jsonl").read_text().splitlines()[-1])
    assert evaluation["step"] == 4
    assert evaluation["num_samples"] >= 200
    assert 0 <= evaluation["accuracy"] <= 1
    assert {path.name for path in (folder / "logs").iterdir()} == {"rank0.log", "rank1.log"}
    virtual = json.loads((finished / "minmax-virtual" / "evaluations.jsonl").read_text().splitlines()[-1])
    assert evaluation["loss"] == pytest.approx(virtual["loss"], rel=1e-3), "shares of the dev split add up"


def test_simulated_time_is_the_cost_models(tmp_path: Path) -> None:
    clock = {"kind": "simulated", "alpha_s": 0.5, "beta_s": 0.01, "gradient_bytes": 1e6, "bandwidth_bytes_per_s": 1e6}
    config = config_of(tmp_path, "simulated").model_copy(
        update={"executor": parse({"steps": 1, "executor": clock}).executor}
    )
    rows = records_of(run(config))
    assert rows["compute_s"].tolist() == pytest.approx((0.5 + 0.01 * rows["padded_tokens"]).tolist())
    slowest = rows.groupby("step")["compute_s"].transform("max")
    assert rows["step_s"].tolist() == pytest.approx((slowest + 1.0).tolist()), "ring: 2 * 1 hops of half the bytes"


def test_online_lengths_give_the_plans_of_known_ones(tmp_path: Path, finished: Path) -> None:
    run_ranks(run_all, 2, tmp_path, ["minmax"], [free_port()], {"data": {"lengths": "online"}})
    online = records_of(tmp_path / "runs" / "minmax-distributed")
    known = records_of(finished / "minmax-distributed")
    assert online["plan_hash"].tolist() == known["plan_hash"].tolist()


def offer_more(outputs: Path) -> None:
    """Rank 1 alone doubles what its samples cost, in its offer."""
    if os.environ["RANK"] == "1":
        honest = planner.prefix_costs
        planner.prefix_costs = lambda cost, lengths: 4 * honest(cost, lengths)
    run(config_of(outputs, "distributed", data={"lengths": "online"}))


def test_one_ranks_offer_changes_every_ranks_plan(tmp_path: Path, finished: Path) -> None:
    run_ranks(offer_more, 2, tmp_path)
    told, plain = records_of(tmp_path / "runs" / "minmax-distributed"), records_of(finished / "minmax-distributed")
    assert told.groupby("step")["plan_hash"].nunique().max() == 1, "all ranks hold the same new plan"
    for rank in (0, 1):
        assert (told["plan_hash"] != plain["plan_hash"])[told["rank"] == rank].all()
    shares = told.groupby("rank")["num_samples"].sum()
    assert shares[1] < shares[0]


def only_its_window(outputs: Path) -> int:
    """How many samples a rank tokenised."""
    from ddpsched import run as run_module

    kept = []
    load = run_module.load_samples
    run_module.load_samples = lambda config: kept.append(load(config)) or kept[-1]
    run(config_of(outputs, "distributed", data={"lengths": "online", "size": 1000}))
    return kept[0].train.num_tokenised


def test_online_ranks_tokenise_only_what_their_windows_reach(tmp_path: Path) -> None:
    for count in run_ranks(only_its_window, 2, tmp_path):
        assert 12 + 4 <= count <= 12 + 4 * 12


# --- trouble -------------------------------------------------------------------------------------------------


def in_trouble(outputs: Path, kind: str, sync: str) -> tuple[str, str]:
    """Rank 1 gets into trouble in step 2; what each rank raises."""
    rank = int(os.environ["RANK"])
    if kind == "memory":
        honest = RankStepper.loss_sum

        def loss_sum(self: RankStepper, batch: Any) -> Any:
            loss = honest(self, batch)
            if rank == 1 and (count := getattr(self, "calls", 0)) == 2:
                # breaks off in the middle of backward: the gradient of one layer has been made, the others not
                layer = next(p for n, p in self._module.named_parameters() if "layer.1.attention.q_lin.weight" in n)
                layer.register_hook(_no_memory)
            self.calls = count + 1 if rank == 1 else 0
            return loss

        RankStepper.loss_sum = loss_sum
    elif kind == "plan" and rank == 1:
        honest_plan = planner._window_plan
        planner._window_plan = lambda epoch, step, windows, costs, chosen: honest_plan(
            epoch, step, windows if step < 2 else type(windows)(0, tuple(i[::-1] for i in windows.ids)), costs, chosen
        )
    elif kind == "nan" and rank == 1:
        honest_loss = RankStepper.loss_sum
        calls = []

        def poisoned(self: RankStepper, batch: Any) -> Any:
            calls.append(1)
            return honest_loss(self, batch) * (float("nan") if len(calls) == 3 else 1.0)

        RankStepper.loss_sum = poisoned
    elif kind == "disk" and rank == 1:
        write = RecordWriter.write

        def full(self: RecordWriter, record: Any) -> None:
            if record.step == 2:
                raise OSError(28, "No space left on device")
            write(self, record)

        RecordWriter.write = full
    elif kind == "bug" and rank == 1:
        honest_step = RankStepper.run

        def broken(self: RankStepper, *args: Any, **more: Any) -> Any:
            self.steps = getattr(self, "steps", 0) + 1
            if self.steps == 3:
                raise KeyError("a bug")
            return honest_step(self, *args, **more)

        RankStepper.run = broken
    config = config_of(outputs, "distributed", sync={"kind": sync})
    try:
        run(config)
    except Exception as error:
        return type(error).__name__, str(error)
    return "nothing", ""


def _no_memory(gradient: torch.Tensor) -> torch.Tensor:
    raise torch.OutOfMemoryError("planted")


@pytest.mark.parametrize("sync", ["ddp", "naive"])
def test_out_of_memory_ends_all_ranks_alike(tmp_path: Path, sync: str) -> None:
    """In the middle of a backward whose buckets are partly under way, too."""
    found = run_ranks(in_trouble, 2, tmp_path, "memory", sync, timeout_s=60)
    for name, text in found:
        assert name == StepOutOfMemory.__name__, text
        assert "rank 1 ran out of memory in step 2" in text
        assert "samples, the longest" in text
    status = read_status(tmp_path / "runs" / "minmax-distributed")
    assert status["state"] == "failed"
    assert "rank 1 ran out of memory in step 2" in status["reason"]
    rows = read_lines(tmp_path / "runs" / "minmax-distributed")
    assert {row["step"] for row in rows} == {0, 1}, "what was finished is kept, the broken step is not"


@pytest.mark.parametrize(
    ("kind", "on_rank_1", "on_rank_0", "words"),
    [
        ("plan", PlanMismatch, PlanMismatch, "step 2"),
        ("nan", NonFiniteError, NonFiniteError, "rank 1.*step 2"),
        ("disk", RunError, RunError, "rank 1.*disk full"),
        ("bug", KeyError, RankFailure, "rank 1 failed in step 2|a bug"),
    ],
)
def test_trouble_of_one_rank_is_known_to_all(
    tmp_path: Path, kind: str, on_rank_1: Any, on_rank_0: Any, words: str
) -> None:
    zero, one = run_ranks(in_trouble, 2, tmp_path, kind, "ddp", timeout_s=60)
    assert (zero[0], one[0]) == (on_rank_0.__name__, on_rank_1.__name__), (zero, one)
    import re

    assert re.search(words, zero[1])
    assert re.search(words, one[1])
    assert read_status(tmp_path / "runs" / "minmax-distributed")["state"] == "failed"


def test_virtual_ranks_report_memory_and_nan_like_real_ones(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    honest, calls = RankStepper.loss_sum, []

    def loss_sum(self: RankStepper, batch: Any) -> Any:
        calls.append(1)
        if len(calls) == 6:  # after the warm-up, two ranks a step: step 2
            raise torch.OutOfMemoryError("planted")
        return honest(self, batch)

    monkeypatch.setattr(RankStepper, "loss_sum", loss_sum)
    with pytest.raises(StepOutOfMemory, match=r"rank \d ran out of memory in step 2 with a micro-batch of"):
        run(config_of(tmp_path))
    monkeypatch.setattr(RankStepper, "loss_sum", lambda self, batch: honest(self, batch) * math.nan)
    with pytest.raises(NonFiniteError, match="step 0"):
        run(config_of(tmp_path))
    assert "NaN" in read_status(tmp_path / "runs" / "minmax-virtual")["reason"]


def test_a_finished_run_is_not_run_over(finished: Path, tmp_path: Path) -> None:
    config = config_of(finished.parent, "simulated")
    before = records_of(finished / "minmax-simulated")
    with pytest.raises(RunExistsError, match=r"minmax-simulated holds a finished run.*--overwrite"):
        run(config)
    pd.testing.assert_frame_equal(records_of(finished / "minmax-simulated"), before)
    run(config, overwrite=True)
    pd.testing.assert_frame_equal(
        records_of(finished / "minmax-simulated").drop(columns=["offer_s", "exchange_s", "solve_s", "plan_wait_s"]),
        before.drop(columns=["offer_s", "exchange_s", "solve_s", "plan_wait_s"]),
    )


def test_a_run_that_cannot_start_leaves_the_finished_one(finished: Path) -> None:
    config = config_of(finished.parent, "virtual")
    before = {path.name: path.read_bytes() for path in (finished / "minmax-virtual").iterdir() if path.is_file()}
    changes: list[dict[str, Any]] = [
        {"data": {"path": "/nowhere.tsv"}},
        {"model": {"name": "/nowhere", "weights": "pretrained"}},
        {"cost": {"kind": "affine_quadratic", "path": "/nowhere.json"}},
        {"world_size": 8, "global_batch": 64, "solver": "enumeration"},
    ]
    for change in changes:
        solver = change.pop("solver", "auto")
        wrong = config_of(finished.parent, "virtual", **change)
        wrong = wrong.model_copy(update={"policy": wrong.policy.model_copy(update={"solver": solver})})
        with pytest.raises((DataError, ConfigError, InfeasibleError)):
            run(wrong, overwrite=True)
    after = {path.name: path.read_bytes() for path in (finished / "minmax-virtual").iterdir() if path.is_file()}
    assert after == before
    assert read_status(config.run_dir)["state"] == "done"


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 64 KiB."""
    disk = tmp_path / "disk"
    disk.mkdir()
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", str(disk)], capture_output=True)
    if mounted.returncode:
        pytest.skip(f"a small file system needs the right to mount: {mounted.stderr.decode().strip()}")
    yield disk
    subprocess.run(["umount", str(disk)], check=True)


def test_a_full_disk_is_named_and_nothing_half_written_remains(small_disk: Path) -> None:
    config = config_of(small_disk, "simulated").model_copy(update={"steps": 500})
    with pytest.raises(RunError, match=r"no space left for .*minmax-simulated; free some"):
        run(config)
    assert read_status(config.run_dir)["state"] == "failed"
    assert not list(config.run_dir.rglob("*.part"))
    assert read_lines(config.run_dir)[0]["step"] == 0, "what was written before stays readable"


def on_a_full_disk(outputs: Path) -> tuple[str, str]:
    try:
        run(config_of(outputs, "distributed").model_copy(update={"steps": 500}))
    except Exception as error:
        return type(error).__name__, str(error)
    return "nothing", ""


def test_a_full_disk_ends_all_ranks(small_disk: Path) -> None:
    for name, text in run_ranks(on_a_full_disk, 2, small_disk, timeout_s=60):
        assert name in ("RunError", "RankFailure"), text
        assert "disk full" in text or "no space left" in text
    assert read_status(small_disk / "runs" / "minmax-distributed")["state"] == "failed"


def test_out_of_memory_outside_a_step_is_named_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def no_memory(self: Any) -> None:
        raise RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to allocate 9 bytes")

    monkeypatch.setattr("ddpsched.training.learner.Learner.evaluate", no_memory)
    with pytest.raises(StepOutOfMemory, match="rank 0 ran out of memory outside a step"):
        run(config_of(tmp_path))
    assert "out of memory" in read_status(tmp_path / "runs" / "minmax-virtual")["reason"]


def test_a_single_rank_needs_no_launcher(tmp_path: Path) -> None:
    config = config_of(tmp_path, "distributed").model_copy(update={"world_size": 1, "steps": 2})
    assert len(records_of(run(config))) == 2


def test_truncated_samples_are_counted_online_too(tmp_path: Path) -> None:
    counts = {}
    for lengths in ("known", "online"):
        data = {"lengths": lengths, "max_length": 8, "size": 100}
        config = config_of(tmp_path, data=data, name=lengths, steps=None, epochs=1)
        counts[lengths] = json.loads((run(config) / "environment.json").read_text())["num_truncated"]
    assert counts["known"] == counts["online"] > 10


def test_launcher_and_config_must_agree(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ConfigError, match=r"world_size = 2, but 1 process.*torchrun"):
        run(config_of(tmp_path, "distributed"))
    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.setenv("RANK", "0")
    with pytest.raises(ConfigError, match="plays all ranks in one process"):
        run(config_of(tmp_path, "virtual"))
    assert not (tmp_path / "runs").exists(), "nothing is written before the config is known to run"


def test_machines_are_told_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    """By more than the first letters of a name: a pid of another machine must not be looked up here."""
    names = iter(["gpu-node-01", "gpu-node-02", "gpu-node-01"])
    monkeypatch.setattr(os, "uname", lambda: type("Name", (), {"nodename": next(names)}))
    first, second, again = host_id(), host_id(), host_id()
    assert first == again != second


def test_a_torn_last_line_is_left_out(tmp_path: Path) -> None:
    (tmp_path / "records-rank0.jsonl").write_text('{"step": 0, "rank": 0}\n{"step": 1, "ra')
    assert read_lines(tmp_path) == [{"step": 0, "rank": 0}]


def test_compaction_keeps_what_was_not_measured_null(finished: Path) -> None:
    rows = pd.read_parquet(compact(finished / "minmax-simulated"))
    assert rows["loss"].isna().all()
    assert rows["num_samples"].dtype == np.int64


def test_the_first_reason_of_a_try_is_kept(tmp_path: Path) -> None:
    """What its peers say of a rank that failed is an echo; a later try speaks for itself."""
    config = config_of(tmp_path)
    one, two, later = (RunFolder(config, overwrite=False) for _ in range(3))
    one.failed("rank 0: no space left")
    two.failed("rank 0 died")
    assert read_status(config.run_dir)["reason"] == "rank 0: no space left"
    later._started += timedelta(minutes=1)
    later.failed("another mistake")
    assert read_status(config.run_dir)["reason"] == "another mistake"
