"""Recorder: the records of another loop, which the analysis reads as those of a run."""

import json
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist
from ranks import run_ranks
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader

import ddpsched
from analysis.compare_runs import compared
from analysis.load import load_run, load_study
from analysis.waits import load_timeline
from ddpsched import BatchSampler, ConfigError, DataError, PoolStream, Recorder, RunExistsError, StepLoader, World
from ddpsched.recovery.audit import audit
from ddpsched.run_folder import read_status

LENGTHS = np.random.default_rng(0).integers(1, 40, 70)
DATA = [torch.ones(length, 3) for length in LENGTHS.tolist()]


def collate(samples: list[torch.Tensor]) -> torch.Tensor:
    return torch.nn.utils.rnn.pad_sequence(samples, batch_first=True)


def tokens(batch: torch.Tensor) -> list[int]:
    return batch[..., 0].sum(dim=1).long().tolist()


def loop(folder: str, kind: str, epochs: int = 2, fail_at: int = -1, overwrite: bool = False) -> None:
    """Train as other people do, recorded."""
    dist.init_process_group("gloo")
    words: dict[str, Any] = {"global_batch": 12, "cost": {"kind": "padded_tokens", "alpha": 5.0}}
    lengths_of = None
    if kind == "sampler":
        steps: Any = ddpsched.scaled(DataLoader(DATA, batch_sampler=BatchSampler(LENGTHS, **words), collate_fn=collate))
    elif kind == "steps":
        policy = {"kind": "balanced", "max_microbatches": 3}
        steps = ddpsched.scaled(StepLoader(DATA, LENGTHS, policy=policy, collate_fn=collate, **words))
    else:
        sampler = torch.utils.data.DistributedSampler(DATA, shuffle=False, drop_last=True)
        steps, lengths_of = DataLoader(DATA, batch_size=6, sampler=sampler, collate_fn=collate), tokens
    model = DistributedDataParallel(torch.nn.Linear(3, 2))
    with Recorder(folder, steps, model=model, lengths_of=lengths_of, overwrite=overwrite) as recorder:
        done = 0
        for _ in range(epochs):
            for item in recorder:
                batch, scale = (item, 1.0) if lengths_of else item
                micros = batch if kind == "steps" else [batch]
                for number, micro in enumerate(micros):
                    model.require_backward_grad_sync = number + 1 == len(micros)
                    loss = model(micro).sum()
                    (scale * loss).backward()
                recorder.log(loss=float(loss), lr=0.1)
                if done == fail_at:
                    raise ArithmeticError("planted")
                done += 1


@pytest.mark.parametrize("kind", ["sampler", "steps", "own"])
def test_the_analysis_reads_it_as_a_run(tmp_path: Path, kind: str) -> None:
    folder = tmp_path / "outputs" / "mine" / kind
    run_ranks(loop, 2, str(folder), kind)
    with pytest.raises(DataError, match="a loop of one's own wrote it, which keeps no ledger"):
        audit(folder)
    run = load_run(folder)
    records = run.records
    assert read_status(folder)["state"] == "done"
    assert (run.study, run.name, run.policy) == ("mine", kind, "other" if kind == "own" else "balanced")
    steps = records.groupby("step")
    assert sorted(steps.groups) == list(range(12))
    assert (steps["num_samples"].sum() == steps["global_batch"].first()).all()
    assert steps["rank"].nunique().eq(2).all()
    if kind != "own":
        assert records["num_samples"].sum() == 2 * len(LENGTHS)
        assert records["num_tokens"].sum() == 2 * LENGTHS.sum()
        assert records["num_microbatches"].max() == (1 if kind == "sampler" else 3)
        assert records["plan_hash"].str.len().gt(0).all()
        assert sorted(records["epoch"].unique()) == [0, 1]
    assert (records["padded_tokens"] >= records["num_tokens"]).all()
    for name in ("data_s", "compute_s", "wait_s", "step_s", "cpu_s", "loss", "lr"):
        assert records[name].notna().all(), name
    assert (records["compute_s"] + records["wait_s"] <= records["step_s"]).all()
    timeline = load_timeline(folder)
    assert len(timeline.steps) == len(steps)
    assert [each.name for each in load_study(folder.parent).runs] == [kind]


def test_a_rank_that_waits_is_seen(tmp_path: Path) -> None:
    """Rank 1 computes longer in each step, and rank 0 waits as long: their steps last equally long."""
    run_ranks(slow_rank, 2, str(tmp_path / "s" / "r"))
    warm = load_run(tmp_path / "s" / "r").records.query("step > 1").groupby("rank")
    assert warm["compute_s"].median()[1] > 0.05 > warm["compute_s"].median()[0]
    assert warm["wait_s"].median()[0] > 0.03 > warm["wait_s"].median()[1]


def slow_rank(folder: str) -> None:
    dist.init_process_group("gloo")
    steps = ddpsched.scaled(DataLoader(DATA, batch_sampler=BatchSampler(LENGTHS, global_batch=12), collate_fn=collate))
    model = DistributedDataParallel(torch.nn.Linear(3, 2))
    with Recorder(folder, steps, model=model) as recorder:
        for batch, scale in recorder:
            if World.detect().rank == 1:
                time.sleep(0.06)
            (scale * model(batch).sum()).backward()


def test_a_loop_that_fails_is_a_failed_run(tmp_path: Path) -> None:
    folder = tmp_path / "s" / "r"
    with pytest.raises(AssertionError, match="planted"):
        run_ranks(loop, 2, str(folder), "sampler", 2, 3)
    status = read_status(folder)
    assert status["state"] == "failed"
    assert "ArithmeticError('planted')" in status["reason"]
    lines = [len(path.read_text().splitlines()) for path in sorted(folder.glob("records-rank*.jsonl"))]
    assert lines == [3, 3]
    assert not list(folder.glob("lock"))


def test_a_finished_run_is_not_overwritten_unasked(tmp_path: Path) -> None:
    folder = tmp_path / "s" / "r"
    sampler = BatchSampler(LENGTHS, global_batch=12, world=World(0, 1))
    for words in ({}, {"overwrite": True}):
        with Recorder(folder, ddpsched.scaled(sampler), **words) as recorder:
            assert sum(1 for _ in recorder) == 6
        assert len(load_run(folder).records) == 6
    before = {path.name: path.read_bytes() for path in folder.iterdir() if path.is_file()}
    with (
        pytest.raises(RunExistsError, match="holds a finished run; give another folder, or overwrite=True to run it"),
        Recorder(folder, ddpsched.scaled(sampler)) as again,
    ):
        next(iter(again))
    assert before == {path.name: path.read_bytes() for path in folder.iterdir() if path.is_file()}
    (folder / "status.json").write_text("{")
    with (
        pytest.raises(DataError, match=r"or give overwrite=True, or another folder$"),
        Recorder(folder, ddpsched.scaled(sampler)) as again,
    ):
        next(iter(again))


def test_what_is_not_measured_is_null(tmp_path: Path) -> None:
    sampler = BatchSampler(LENGTHS, global_batch=12, world=World(0, 1))
    with Recorder(tmp_path / "s" / "r", ddpsched.scaled(sampler)) as recorder:
        for _ in recorder:
            pass
    row = json.loads((tmp_path / "s" / "r" / "records-rank0.jsonl").read_text().splitlines()[0])
    assert [row[name] for name in ("compute_s", "wait_s", "loss", "lr", "forward_s")] == [None] * 5


def test_each_iteration_of_an_own_loop_is_an_epoch(tmp_path: Path) -> None:
    with Recorder(tmp_path / "s" / "r", [[3], [2]], lengths_of=lambda batch: batch) as recorder:
        for _ in range(3):
            for _ in recorder:
                pass
    rows = map(json.loads, (tmp_path / "s" / "r" / "records-rank0.jsonl").read_text().splitlines())
    assert [(row["epoch"], row["step"]) for row in rows] == [(0, 0), (0, 1), (1, 2), (1, 3), (2, 4), (2, 5)]


def test_loops_that_ran_one_after_another_are_not_compared(tmp_path: Path) -> None:
    for name in ("before", "after"):
        with Recorder(tmp_path / "mine" / name, [[3], [2]], lengths_of=lambda batch: batch) as recorder:
            list(recorder)
    with pytest.raises(DataError, match=r"loops of your own run one after another.*`ddpsched analyse .*mine` draws"):
        compared(tmp_path / "mine" / "before", [tmp_path / "mine" / "after"])


def test_nothing_is_written_before_the_first_step(tmp_path: Path) -> None:
    with Recorder(tmp_path / "s" / "r", [[1]], lengths_of=lambda batch: batch):
        pass
    assert not (tmp_path / "s").exists()


def test_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"list has no plans; give ddpsched\.scaled\(loader\).*lengths_of="):
        Recorder(tmp_path, [1])
    stream = ddpsched.scaled(PoolStream(["a"], len, world=World(0, 1)))
    with pytest.raises(ConfigError, match="Scaled has no plans"):
        Recorder(tmp_path, stream)
    with pytest.raises(ConfigError, match=r"model is a Linear.*give that, or leave model out"):
        Recorder(tmp_path, [1], lengths_of=len, model=torch.nn.Linear(1, 1))
    with pytest.raises(ConfigError, match=r"Recorder\.log: accuracy is none of loss, lr, grad_norm"):
        Recorder(tmp_path, [1], lengths_of=len).log(accuracy=1.0)
