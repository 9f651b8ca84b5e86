"""wandb and trackio themselves, without a network: a run's numbers, read back from the files that they leave."""

import json
import os
import sqlite3
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest
from runs import config_of, records_of

from ddpsched.config import dump
from ddpsched.run_folder import read_status

ALONE = {"WANDB_MODE": "offline", "WANDB_SILENT": "true"}


def run_with(sink: str, folder: Path) -> Path:
    """Run three steps in a process of their own, as a tracker has one run in it; return the run's folder."""
    if (spec := find_spec(sink)) is None or spec.origin is None:  # an optional package; a folder of its name is none
        pytest.skip(f"{sink} is not installed: pip install {sink}")
    config = config_of(folder, policy="balanced", steps=3, log={"sinks": [sink]})
    (folder / "run.toml").write_text(dump(config))
    places = {"WANDB_DIR": str(folder), "TRACKIO_DIR": str(folder / "trackio"), "HF_HOME": str(folder / "hub")}
    command = [sys.executable, "-m", "ddpsched", "run", str(folder / "run.toml")]
    done = subprocess.run(command, env=os.environ | ALONE | places, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    assert read_status(config.run_dir)["sinks"] == {sink: "closed"}
    return config.run_dir


def test_trackio_has_each_step_s_numbers(tmp_path: Path) -> None:
    run_dir = run_with("trackio", tmp_path)
    (file,) = (tmp_path / "trackio").glob("*.db")
    rows = sqlite3.connect(file).execute("select step, metrics from metrics order by step").fetchall()
    sent = {step: json.loads(metrics) for step, metrics in rows}
    steps = records_of(run_dir).assign(summed=lambda row: row["loss"] * row["num_samples"]).groupby("step")
    assert [each["loss"] for each in sent.values()] == pytest.approx((steps["summed"].sum() / 12).tolist())
    assert list(sent) == [0, 1, 2]
    assert {"step_s", "waiting_share", "global_batch"} <= sent[0].keys()


def test_wandb_has_the_run_s_numbers(tmp_path: Path) -> None:
    run_with("wandb", tmp_path)
    (file,) = (tmp_path / "wandb").glob("offline-run-*/run-*.wandb")
    written = file.read_bytes()
    assert all(name in written for name in (b"global_batch", b"waiting_share", b"balanced-virtual"))
