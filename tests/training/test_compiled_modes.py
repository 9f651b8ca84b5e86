"""Inductor and its modes: they train like the eager model, and recorded CUDA graphs leave gradients alone."""

from pathlib import Path
from typing import Any

import pytest
import torch

from ddpsched.config import RunConfig, parse
from ddpsched.records import read_json, read_lines
from ddpsched.run_loop import run
from ddpsched.training.learner import Learner

CPU = torch.device("cpu")


def config_of(folder: Path, compiled: dict[str, Any], **more: Any) -> RunConfig:
    table: dict[str, Any] = {
        "outputs": str(folder), "epochs": 1, "global_batch": 13, "world_size": 2, "data": {"size": 120},
        "model": {"dropout": 0.0}, "policy": {"kind": "balanced"}, "compile": compiled,
    }  # fmt: skip
    return parse({**table, **more})


def trains_alike(eager: list[dict[str, Any]], folder: Path, loss: float, norm: float) -> None:
    """Hold the records of a run against the eager model's, within these relative bounds."""
    for one, other in zip(eager, read_lines(folder), strict=True):
        assert one["loss"] == pytest.approx(other["loss"], rel=loss)
        assert one["grad_norm"] == pytest.approx(other["grad_norm"], rel=norm)


@pytest.fixture(autouse=True)
def no_programs_of_other_tests() -> None:
    torch._dynamo.reset()


@pytest.mark.parametrize("mode", ["reduce-overhead", "default"])
def test_gradients_have_memory_of_their_own_where_graphs_are_recorded(tmp_path: Path, mode: str) -> None:
    """A recorded graph's output is overwritten by its next run, so backward adds into zeros."""
    config = config_of(tmp_path, {"kind": "static", "shapes": 1, "mode": mode})
    learner = Learner(config, config.load_samples(), CPU)
    learner.optimiser.keep_memory(config.compile.records_graphs)
    (first, *_) = learner.model.parameters()
    before = first.grad
    assert (before is not None) == (mode == "reduce-overhead")
    learner.warm_up()
    learner.loss_sum(learner.collate.synthetic(2, 8)).backward()
    assert (first.grad is before) == (mode == "reduce-overhead")
    assert float(first.grad.abs().sum()) > 0
    learner.optimiser.clear()
    assert first.grad is None or float(first.grad.abs().sum()) == 0


@pytest.mark.gpu
@pytest.mark.parametrize("mode", ["reduce-overhead", "max-autotune", "max-autotune-no-cudagraphs"])
def test_recorded_graphs_train_like_the_eager_model(tmp_path: Path, mode: str, monkeypatch: pytest.MonkeyPatch) -> None:
    from torch._inductor import config as inductor

    # tuning tries every kernel that Triton can make of each product, a minute of compiling; one library's tell as much
    monkeypatch.setattr(inductor, "max_autotune_gemm_backends", "ATEN")
    more = {"steps": 4, "epochs": None, "train": {"precision": "float32"}, "executor": {"device": "cuda"}}
    menu = [[8, 66]]
    eager = read_lines(run(config_of(tmp_path, {"kind": "static", "menu": menu, "backend": "aot_eager"}, **more)))
    folder = run(config_of(tmp_path, {"kind": "static", "menu": menu, "mode": mode}, **more), overwrite=True)
    assert read_json(folder / "environment.json")["compile"]["kind"] == "static"
    trains_alike(eager, folder, 1e-3, 1e-2)


@pytest.mark.slow
def test_tuned_programs_train_like_the_eager_model(tmp_path: Path) -> None:
    more = {"steps": 2, "epochs": None, "train": {"precision": "float32"}}
    menu = [[8, 66]]
    eager = read_lines(run(config_of(tmp_path, {"kind": "static", "menu": menu, "backend": "aot_eager"}, **more)))
    for mode in ("max-autotune", "max-autotune-no-cudagraphs", "reduce-overhead"):
        torch._dynamo.reset()
        folder = run(config_of(tmp_path, {"kind": "static", "menu": menu, "mode": mode}, name=mode, **more))
        assert read_json(folder / "environment.json")["compile"]["mode"] == mode
        trains_alike(eager, folder, 1e-4, 1e-3)


@pytest.mark.slow
def test_inductors_programs_train_like_the_eager_model(tmp_path: Path) -> None:
    more = {"steps": 6, "epochs": None, "train": {"precision": "float64"}}
    menu = [[8, 66]]
    eager = read_lines(run(config_of(tmp_path, {"kind": "static", "menu": menu, "backend": "aot_eager"}, **more)))
    options = {"kind": "static", "menu": menu, "cache": str(tmp_path / "programs")}
    folder = run(config_of(tmp_path, options, **more), overwrite=True)
    for one, other in zip(eager, read_lines(folder), strict=True):
        assert one["loss"] == pytest.approx(other["loss"], rel=1e-9)
    assert any((tmp_path / "programs").rglob("*.so"))
