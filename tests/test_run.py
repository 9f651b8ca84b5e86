"""The one training loop: three executors, one stream of plans, and records in the schema."""

import json
import os
import threading
import tomllib
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from ranks import free_port, run_ranks
from runs import config_of, records_of

from ddpsched.config import RunConfig, parse
from ddpsched.costs.calibration import Calibration, Identity, Residuals, Seconds
from ddpsched.costs.cost_model import CostModel
from ddpsched.costs.memory_cap import MemoryModel
from ddpsched.errors import (
    ConfigError,
    DataError,
    InfeasibleError,
    RunExistsError,
)
from ddpsched.records import COLUMNS, compact, read_lines, write_json
from ddpsched.run_folder import read_status
from ddpsched.run_loop import run
from ddpsched.training import virtual


def run_all(outputs: Path, policies: list[str], ports: list[int], values: dict[str, Any]) -> None:
    for policy, port in zip(policies, ports, strict=True):
        os.environ["MASTER_PORT"] = str(port)
        run(config_of(outputs, "distributed", policy, **values))


POLICIES = ["static", "minmax", "balanced"]


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Run every policy on every executor, with two ranks."""
    outputs = tmp_path_factory.mktemp("outputs")
    run_ranks(run_all, 2, outputs, POLICIES, [free_port() for _ in POLICIES], {})
    for policy in POLICIES:
        for executor in ("virtual", "simulated"):
            run(config_of(outputs, executor, policy))
    return outputs / "runs"


@pytest.mark.parametrize("policy", POLICIES)
def test_executors_run_the_same_plans(finished: Path, policy: str) -> None:
    tables = {e: records_of(finished / f"{policy}-{e}") for e in ("distributed", "virtual", "simulated")}
    same = ["epoch", "step", "rank", "num_samples", "padded_tokens", "loss_scale", "predicted_cost", "plan_hash"]
    pd.testing.assert_frame_equal(tables["distributed"][same], tables["virtual"][same])
    pd.testing.assert_frame_equal(tables["distributed"][same], tables["simulated"][same])
    # same dropout masks by step and rank, so the same losses too
    np.testing.assert_allclose(tables["distributed"]["loss"], tables["virtual"]["loss"], rtol=1e-4)
    np.testing.assert_allclose(tables["distributed"]["grad_norm"], tables["virtual"]["grad_norm"], rtol=1e-3)


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
    assert {path.name for path in (folder / "logs").iterdir()} == {
        f"{name}{rank}.{kind}" for name, kind in (("rank", "log"), ("heartbeat-rank", "json")) for rank in (0, 1)
    }
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
    """Multiply the sample costs that rank 1 offers by four."""
    if os.environ["RANK"] == "1":
        honest = CostModel.prefixes
        CostModel.prefixes = lambda cost, lengths: 4 * honest(cost, lengths)  # type: ignore[method-assign]
    run(config_of(outputs, "distributed", data={"lengths": "online"}))


def test_one_ranks_offer_changes_every_ranks_plan(tmp_path: Path, finished: Path) -> None:
    run_ranks(offer_more, 2, tmp_path)
    slowed, plain = records_of(tmp_path / "runs" / "minmax-distributed"), records_of(finished / "minmax-distributed")
    assert slowed.groupby("step")["plan_hash"].nunique().max() == 1, "all ranks hold the same new plan"
    for rank in (0, 1):
        assert (slowed["plan_hash"] != plain["plan_hash"])[slowed["rank"] == rank].all()
    shares = slowed.groupby("rank")["num_samples"].sum()
    assert shares[1] < shares[0]


def only_its_window(outputs: Path) -> int:
    """Return how many samples a rank tokenised."""
    kept = []
    load = RunConfig.load_samples
    RunConfig.load_samples = lambda config: kept.append(load(config)) or kept[-1]
    run(config_of(outputs, "distributed", data={"lengths": "online", "size": 1000}))
    return kept[0].train.num_tokenised


def test_online_ranks_tokenise_only_what_their_windows_reach(tmp_path: Path) -> None:
    for count in run_ranks(only_its_window, 2, tmp_path):
        assert 12 + 4 <= count <= 12 + 4 * 12


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
    with pytest.raises(ConfigError, match="runs all ranks in one process"):
        run(config_of(tmp_path, "virtual"))
    assert not (tmp_path / "runs").exists(), "nothing is written before the config is known to run"


def test_a_torn_last_line_is_left_out(finished: Path, tmp_path: Path) -> None:
    rows = read_lines(finished / "minmax-simulated")
    text = (finished / "minmax-simulated" / "records-rank0.jsonl").read_text()
    (tmp_path / "records-rank0.jsonl").write_text(text[:-20])
    assert read_lines(tmp_path) == rows[:-1]


def test_compaction_keeps_what_was_not_measured_null(finished: Path) -> None:
    compact(finished / "minmax-simulated")
    rows = pd.read_parquet(finished / "minmax-simulated" / "records.parquet")
    assert rows["loss"].isna().all()
    assert rows["num_samples"].dtype == np.int64


def test_a_rate_that_falls_over_all_steps_that_memory_makes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Smaller micro-batches need more steps than an uncapped plan; the rate must not reach 0 early."""
    off = Residuals(train_mean=0, train_max=0, held_out_mean=0, held_out_max=0, worst_underestimate=0)
    memory = MemoryModel(base=0, per_sample=0, per_token=1, per_square=0)
    calibration = Calibration(
        identity=Identity(model="tiny", max_length=64), versions={}, seconds_residuals=off, bytes_residuals=off,
        seconds=Seconds(alpha=1e-3, beta=1e-5, gamma=0, delta=0, floor=0), points=[], bytes=memory,
    )  # fmt: skip
    (tmp_path / "calibration.json").write_text(calibration.model_dump_json(), encoding="utf-8")
    config = parse(
        {
            "outputs": str(tmp_path),
            "epochs": 1,
            "world_size": 2,
            "data": {"size": 300, "max_length": 64},
            "policy": {"kind": "token_budget", "max_tokens_for_batch": 2000},
            "memory": {"path": str(tmp_path / "calibration.json"), "budget_bytes": 2**33},
            "train": {"warmup": 0.0},
        }
    )
    monkeypatch.setattr(virtual, "allowance", lambda learner, config: 400)  # simulates little free memory
    table = pd.read_parquet(run(config, force=True) / "records.parquet")
    rates = table.groupby("step")["lr"].first()
    assert table["padded_tokens"].max() <= 400
    assert len(rates) > 5
    assert (rates > 0).all()
    assert rates.iloc[-1] < 0.3 * rates.iloc[0]


def test_evaluations_come_once_whatever_the_number_of_steps(tmp_path: Path) -> None:
    """Token-budget epochs differ in steps; the last is evaluated once, and none at rate 0."""
    for seed in (2, 5):
        config = parse(
            {
                "epochs": 2,
                "seed": seed,
                "world_size": 2,
                "outputs": str(tmp_path),
                "name": f"seed-{seed}",
                "data": {"size": 60},
                "policy": {"kind": "token_budget", "max_tokens_for_batch": 100},
                "train": {"eval_every": 1},
            }
        )
        folder = run(config)
        records = pd.read_parquet(folder / "records.parquet")
        steps = [json.loads(line)["step"] for line in (folder / "evaluations.jsonl").read_text().splitlines()]
        assert steps == list(range(1, records["step"].max() + 2))
        assert records["lr"].min() > 0


def test_what_replacement_repeats_is_counted(tmp_path: Path) -> None:
    policy = {"kind": "bins", "replacement": True, "median_batch": 8}
    config = parse(
        {
            "steps": 30,
            "world_size": 2,
            "outputs": str(tmp_path),
            "data": {"size": 200},
            "policy": policy,
            "executor": {"kind": "simulated"},
        }
    )
    folder = run(config)
    environment = json.loads((folder / "environment.json").read_text())
    records = pd.read_parquet(folder / "records.parquet")
    assert environment["num_run_again"] > 0
    assert 200 - environment["num_never_run"] + environment["num_run_again"] == records["num_samples"].sum()


def test_two_threads_of_a_rank_write_one_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As the watch and the loop may, both at a failure: the second begins while the first is half done."""
    path, sync = tmp_path / "status.json", os.fsync

    def interrupted(file: int) -> None:
        monkeypatch.setattr(os, "fsync", sync)
        other = threading.Thread(target=write_json, args=(path, {"by": "the watch"}))
        other.start()
        other.join()
        assert json.loads(path.read_text(encoding="utf-8")) == {"by": "the watch"}

    monkeypatch.setattr(os, "fsync", interrupted)
    write_json(path, {"by": "the loop"})
    assert json.loads(path.read_text(encoding="utf-8")) == {"by": "the loop"}
    assert [each.name for each in tmp_path.iterdir()] == ["status.json"]
