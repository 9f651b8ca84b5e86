"""A step in which a rank runs out of memory is repeated in smaller micro-batches, and nothing of it is lost."""

import os
from pathlib import Path
from typing import Any

import pytest
import torch
from ranks import free_port, run_ranks
from runs import config_of
from safetensors.torch import load_file

from ddpsched.config import parse
from ddpsched.errors import StepOutOfMemory
from ddpsched.records import read_lines
from ddpsched.recovery.audit import audit
from ddpsched.run_folder import read_status
from ddpsched.run_loop import run
from ddpsched.training.learner import Learner

STATIC = {"kind": "static", "shapes": 2, "backend": "aot_eager"}
CASES: dict[str, dict[str, Any]] = {
    "ddp": {"policy": "minmax"},
    "naive": {"policy": "static"},
    "bucketed": {"policy": "balanced"},
    "overlap": {"policy": "packed"},
    "compiled": {"policy": "balanced", "sync": "ddp", "compile": STATIC},
}
EXACT: dict[str, Any] = {"model": {"dropout": 0.0}, "train": {"precision": "float64", "save_model": True}}


def plant(where: str, times: int) -> None:
    """Run out of memory in step 2, the first ``times`` times; in backward when some gradients are made already."""
    honest_loss, honest_run, state = Learner.loss_sum, Learner.run, {"steps": 0, "left": times}

    def run_counted(self: Learner, *args: Any, **more: Any) -> Any:
        state["steps"] += 1
        return honest_run(self, *args, **more)

    def loss_sum(self: Learner, batch: Any) -> Any:
        loss = honest_loss(self, batch)
        if state["steps"] >= 3 and state["left"]:
            state["left"] -= 1
            if where == "forward":
                raise torch.OutOfMemoryError("planted")
            layer = next(p for n, p in self.model.named_parameters() if "layer.1.attention.q_lin.weight" in n)

            def no_memory(gradient: torch.Tensor) -> None:
                hook.remove()
                raise torch.OutOfMemoryError("planted")

            hook = layer.register_hook(no_memory)
        return loss

    Learner.run, Learner.loss_sum = run_counted, loss_sum


def on_rank(outputs: Path, ports: list[int]) -> None:
    """Run each case without a fault, and with one on rank 1; ranks find each other anew for each run."""
    honest = Learner.loss_sum, Learner.run
    for name, case in CASES.items():
        more = EXACT | {"sync": {"kind": case.get("sync", name)}, "compile": case.get("compile", {})}
        config = config_of(outputs, "distributed", case["policy"], **more)
        os.environ["MASTER_PORT"] = str(ports.pop())
        run(config.model_copy(update={"study": f"{name}-healthy"}))
        os.environ["MASTER_PORT"] = str(ports.pop())
        if os.environ["RANK"] == "1":
            plant("forward" if name == "naive" else "backward", times=2 if name == "bucketed" else 1)
        run(config.model_copy(update={"study": f"{name}-short"}))
        Learner.loss_sum, Learner.run = honest


@pytest.fixture(scope="module")
def outputs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("repeated")
    run_ranks(on_rank, 2, folder, [free_port() for _ in range(2 * len(CASES))], timeout_s=240)
    return folder


@pytest.mark.parametrize("case", CASES)
def test_the_run_ends_as_if_memory_had_not_run_out(outputs: Path, case: str) -> None:
    """All ids once, and the same weights: sums over other micro-batches round differently, in float64."""
    name = f"{CASES[case]['policy']}-distributed"
    healthy, short = (outputs / f"{case}-{kind}" / name for kind in ("healthy", "short"))
    assert read_status(short)["state"] == "done"
    assert audit(short).faults == []
    rows = {(row["step"], row["rank"]): row for row in read_lines(short)}
    as_planned = {(row["step"], row["rank"]): row["num_microbatches"] for row in read_lines(healthy)}
    assert rows[2, 1]["num_microbatches"] >= 2 * as_planned[2, 1] > 0, "halved"
    assert rows[2, 0]["num_microbatches"] == as_planned[2, 0]
    if case in ("naive", "overlap", "compiled"):  # the same global batches, whatever the caps
        expected, found = (load_file(each / "model" / "model.safetensors") for each in (healthy, short))
        for key, value in expected.items():
            torch.testing.assert_close(found[key], value, rtol=1e-6, atol=1e-9)
    assert rows[2, 1]["plan_hash"] == rows[2, 0]["plan_hash"]


def test_a_single_sample_that_does_not_fit_ends_all_ranks_alike(tmp_path: Path) -> None:
    for text in run_ranks(single_on_rank, 2, tmp_path, timeout_s=120):
        assert "rank 1 ran out of memory in step 2 with" in text
    status = read_status(tmp_path / "runs" / "minmax-distributed")
    assert (status["state"], "rank 1 ran out of memory" in status["reason"]) == ("failed", True)
    assert {row["step"] for row in read_lines(tmp_path / "runs" / "minmax-distributed")} == {0, 1}


def single_on_rank(outputs: Path) -> str:
    if os.environ["RANK"] == "1":
        plant("forward", times=10**6)
    with pytest.raises(StepOutOfMemory) as caught:
        run(config_of(outputs, "distributed"))
    return str(caught.value)


@pytest.mark.parametrize(
    "policy",
    [{"kind": "balanced", "max_microbatches": 2}, pytest.param({"kind": "minmax"}, marks=pytest.mark.slow)],
    ids=str,
)
@pytest.mark.slow
def test_halves_run_as_they_come_beside_a_menu_of_shapes(
    tmp_path: Path, policy: dict[str, Any], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Filled up to the menu again they would need the memory that ran out; plans stay on the menu, without caps."""
    for name in ("loss_sum", "run"):
        monkeypatch.setattr(Learner, name, getattr(Learner, name))
    config = config_of(tmp_path, "virtual", policy["kind"], compile=STATIC, **EXACT, steps=4)
    config = parse(config.model_dump(exclude_none=True) | {"policy": policy})
    healthy = run(config.model_copy(update={"study": "healthy"}))
    torch._dynamo.reset()
    plant("forward", times=1)
    short = run(config.model_copy(update={"study": "short"}))
    torch._dynamo.reset()
    rows, planned = read_lines(short), {(row["step"], row["rank"]): row for row in read_lines(healthy)}
    repeated = [row for row in rows if row["num_microbatches"] > planned[row["step"], row["rank"]]["num_microbatches"]]
    assert len(repeated) == 1, "that of the rank whose memory ran out"
    assert repeated[0]["padded_tokens"] < planned[repeated[0]["step"], repeated[0]["rank"]]["padded_tokens"]
    assert {row["step"] for row in rows} == {0, 1, 2, 3}
    assert [row["recompiled"] for row in rows] == [None] * len(rows)
    assert f"policy {policy['kind']} on a menu of shapes cannot keep to less memory" in caplog.text
    assert audit(short).faults == []
    expected, found = (load_file(each / "model" / "model.safetensors") for each in (healthy, short))
    for key, value in expected.items():
        torch.testing.assert_close(found[key], value, rtol=1e-6, atol=1e-9)


def test_statistics_are_as_before_the_step_that_broke_off(tmp_path: Path) -> None:
    config = config_of(tmp_path)
    learner = Learner(config, config.load_samples(), torch.device("cpu"))
    assert not learner._statistics, "the tiny model has none"
    norm = torch.nn.BatchNorm1d(3)
    learner._statistics = [norm.running_mean, norm.num_batches_tracked]
    learner.begin_step()
    norm(torch.randn(5, 3))
    assert norm.running_mean.abs().sum() > 0
    learner.forget_step()
    assert (norm.running_mean.abs().sum(), int(norm.num_batches_tracked)) == (0, 0)
