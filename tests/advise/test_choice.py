"""The choice of policy auto: the fastest as measured, rank 0's on all ranks, and the same when a run goes on."""

import json
import logging
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from auto_runs import chosen, config_of
from ranks import run_ranks
from typer.testing import CliRunner

from ddpsched.advise import choice, measured, trials
from ddpsched.advise.choice import Choice, choose
from ddpsched.cli import app
from ddpsched.config import RunConfig
from ddpsched.costs import step_times
from ddpsched.costs.calibration import NOISY, Seconds
from ddpsched.costs.cost_model import padded_tokens
from ddpsched.costs.step_times import KEPT, StepTimes, Tried
from ddpsched.errors import RunError, RunStopped
from ddpsched.executors import executor_of
from ddpsched.planning.policies.static import Static
from ddpsched.planning.prediction import Prediction
from ddpsched.records import read_json, read_lines
from ddpsched.run_loop import run, world_of
from ddpsched.training import compiled_times, trial_times
from ddpsched.training.program_table import ProgramTable

pytestmark = pytest.mark.usefixtures("kept", "brief")  # each test measures for itself


def test_a_simulated_run_chooses_by_its_clock(tmp_path: Path) -> None:
    for alpha, kind in ((0.0, "packed"), (5.0, "balanced")):
        clock = {"kind": "simulated", "alpha_s": alpha, "beta_s": 1e-3, "gradient_bytes": 1e6}
        policy = {"kind": "auto", "packed": not alpha, "max_microbatches": 1}
        folder = run(config_of(tmp_path, executor=clock, policy=policy, name=f"alpha-{alpha}"))
        assert chosen(folder)["policy"]["kind"] == kind
        assert {line["policy"] for line in read_lines(folder)} == {kind}
        names = [each["name"] for each in chosen(folder)["ranking"]]
        assert names[-1] == "static"
        assert chosen(folder)["times"]["rest_s"] > 0


def test_a_compiled_model_is_predicted_on_its_menu(tmp_path: Path) -> None:
    clock = {"kind": "simulated", "alpha_s": 1e-3, "beta_s": 1e-3}
    configs = [config_of(tmp_path, executor=clock, compile=each) for each in ({}, {"kind": "static", "shapes": 4})]
    rankings = []
    for config in configs:
        samples = config.load_samples()
        executor = executor_of(config, samples, world_of(config), False)
        rankings.append(choose(config, executor, samples, whole=True).ranking)
    alone, both = ({each.name: each.step_s for each in ranking} for ranking in rankings)
    assert {name: both[name] for name in alone} == alone
    assert both.keys() - alone.keys() == {f"{name}, compiled" for name in alone if name != "packed"}
    assert all(both[f"{name}, compiled"] > alone[name] for name in alone if name != "packed")
    found = chosen(run(configs[1]))
    assert found["compile"]["kind"] == "eager", "as a simulated model gains nothing"
    assert {each["name"] for each in found["ranking"]} == alone.keys()


FAST = Seconds(alpha=1e-6, beta=1e-7, gamma=0, delta=0, floor=0)


def given_times(beta: float, packed: float | None = None) -> StepTimes:
    rows = None if packed is None else Seconds(alpha=packed, beta=beta, gamma=0, delta=0, floor=0)
    return StepTimes(
        identity=None, world_size=2, padded=Seconds(alpha=1e-4, beta=beta, gamma=0, delta=0, floor=0), packed=rows,
        rest_s=1e-3, error=0.0, noise=[1.0] * 10,
    )  # fmt: skip


def test_a_compiled_model_is_taken_where_it_is_faster_than_its_menu_costs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    compiler = {"kind": "static", "shapes": 1, "backend": "aot_eager"}
    folder = run(config_of(tmp_path, name="measured", compile=compiler))
    times = chosen(folder)["times"]
    assert 0.1 < sum(times["compiled"].values()) / sum(times["padded"].values()) < 10
    fast = given_times(1e-5, packed=9.0).model_copy(update={"compiled": FAST})
    monkeypatch.setattr(trial_times, "measure_times", lambda *_: fast)
    monkeypatch.setattr(trials, "try_candidates", lambda *_: {})
    folder = run(config_of(tmp_path, name="fast", compile=compiler | {"split": False}))
    assert chosen(folder)["chosen"].endswith(", compiled")
    made = read_json(folder / "environment.json")["compile"]
    assert made["kind"] == "static"
    assert len(made["menu"]) == 1
    assert {line.get("recompiled") for line in read_lines(folder)} == {None}


def test_a_compiler_that_failed_is_tried_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Times that are kept of a run without a working compiler are of the eager model alone."""
    compiler = {"kind": "static", "shapes": 1, "backend": "aot_eager"}
    make = ProgramTable.add

    def fail(*_: Any) -> None:
        raise torch._dynamo.exc.BackendCompilerFailed(make, RuntimeError("no C++ compiler"), None)

    monkeypatch.setattr(ProgramTable, "add", fail)
    first = chosen(run(config_of(tmp_path, name="first", compile=compiler)))
    assert first["times"]["compiled"] is None
    assert "no C++ compiler" in first["times"]["failed"]
    monkeypatch.setattr(trial_times, "measure_times", lambda *_: pytest.fail("measured again"))
    with pytest.raises(RunError, match=r"compile.backend = 'aot_eager' failed .*no C\+\+ compiler"):
        run(config_of(tmp_path, name="strict", compile=compiler | {"on_failure": "stop"}))
    monkeypatch.setattr(ProgramTable, "add", make)
    mended = chosen(run(config_of(tmp_path, name="mended", compile=compiler)))["times"]
    assert mended["compiled"] is not None
    without = {
        "compiled": None,
        "compiled_error": 0.0,
        "compiled_rest_s": 0.0,
        "compile_s": 0.0,
        "failed": first["times"]["failed"],
    }
    assert mended | without == first["times"]


def test_a_cost_in_seconds_that_is_given_is_predicted_by(tmp_path: Path) -> None:
    """With a cost of each micro-batch alone, nothing is faster than one of them a rank."""
    cost = {"kind": "affine_quadratic", "alpha": 1.0, "beta": 1e-12}
    entry = chosen(run(config_of(tmp_path, cost=cost, policy={"kind": "auto", "packed": False})))
    assert entry["times"]["padded"]["alpha"] == 1.0
    assert all(each["step_s"] >= 1.0 for each in entry["ranking"])


def test_it_measures_once_and_takes_what_is_kept(
    tmp_path: Path, kept: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.INFO, "ddpsched"):
        first = run(config_of(tmp_path, name="first"))
    assert any(line.startswith("auto: measuring") for line in caplog.messages)
    assert any(line.startswith("auto takes") for line in caplog.messages)
    (path,) = (kept / "step_times").iterdir()
    entry = chosen(first)
    assert entry["ranking"][0]["name"] == entry["chosen"] or entry["chosen"] == "static"
    assert entry["times"]["noise"][0] >= 1
    assert entry["times"]["packed"] is not None
    monkeypatch.setattr(trial_times, "measure_times", lambda *_: pytest.fail("measured again"))
    second = run(config_of(tmp_path, name="second"))
    assert {**chosen(second), "seconds": entry["seconds"]} == entry
    path.write_text(given_times(1e-5, packed=9.0).model_dump_json())
    assert chosen(run(config_of(tmp_path, name="third")))["policy"]["kind"] == "balanced"


def test_what_is_kept_without_packed_rows_is_measured_again_for_them(tmp_path: Path) -> None:
    without = run(config_of(tmp_path, name="without", policy={"kind": "auto", "packed": False}))
    assert chosen(without)["times"]["packed"] is None
    assert chosen(run(config_of(tmp_path, name="with")))["times"]["packed"] is not None
    again = run(config_of(tmp_path, name="again", policy={"kind": "auto", "packed": False}))
    assert "packed" not in {each["name"] for each in chosen(again)["ranking"]}


def test_static_is_taken_where_nothing_is_faster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    slow = given_times(0.0, packed=9.0)  # every micro-batch costs the same, so plans have nothing to gain
    monkeypatch.setattr(trial_times, "measure_times", lambda *_: slow)
    monkeypatch.setattr(trials, "try_candidates", lambda *_: {})  # whose real steps would say otherwise
    folder = run(config_of(tmp_path))
    assert chosen(folder)["chosen"] == "static"
    assert {line["policy"] for line in read_lines(folder)} == {"static"}


def test_a_noisy_device_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(step_times, "NOISY", NOISY)
    noisy = given_times(1e-5).model_copy(update={"noise": [1.0] * 3 + [1.5] * 7})
    monkeypatch.setattr(trial_times, "measure_times", lambda *_: noisy)
    with caplog.at_level(logging.WARNING, "ddpsched"):
        run(config_of(tmp_path))
    assert any("differ by 50 % in the median, so the device is busy" in line for line in caplog.messages)
    quiet = given_times(1e-5)
    monkeypatch.setattr(trial_times, "measure_times", lambda *_: quiet)
    assert chosen(run(config_of(tmp_path, name="later")))["times"]["noise"] == quiet.noise, "measured anew"


def toml(folder: Path, **more: Any) -> Path:
    path = folder / "run.toml"
    path.write_text(f'outputs = "{folder}"\nsteps = 4\nglobal_batch = 8\nworld_size = 2\ndata = {{ size = 60 }}\n')
    return path


def on_two_ranks(folder: Path, cache: Path) -> dict[str, Any]:
    """Let rank 1 measure times by which it would choose otherwise, and later; and choose static by any."""
    import os
    import time

    from ddpsched.world import World

    os.environ[KEPT] = str(cache)
    rank = World.detect().rank

    def with_compiled(times: StepTimes, *_: Any) -> StepTimes:
        time.sleep(0.3 * rank)
        return times.model_copy(update={"compiled": FAST.model_copy(update={"alpha": 1.0 + rank})})

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(trial_times, "measure_times", lambda *_: given_times(1e-5 if rank == 0 else 0.0))
        patch.setattr(trials, "try_candidates", lambda *_: {"static": Tried(ratio=1.0 + rank, error=0.1)})
        patch.setattr(compiled_times, "with_compiled", with_compiled)
        if rank == 1:
            patch.setattr(choice, "taken", lambda ranking, _: next(each for each in ranking if each.name == "static"))
        done = run(config_of(folder, executor={"kind": "distributed"}, compile={"kind": "dynamic"}))
    return {"policies": sorted({line["policy"] for line in read_lines(done)}), **chosen(done)}


def test_rank_0_decides_for_all(tmp_path: Path) -> None:
    zero, one = run_ranks(on_two_ranks, 2, tmp_path, tmp_path / "kept")
    assert zero["policies"] == one["policies"] == ["balanced"]
    assert zero["chosen"] == one["chosen"]
    (kept,) = (tmp_path / "kept" / "step_times").iterdir()
    assert read_json(kept)["compiled"]["alpha"] == 1.0, "rank 0's, though rank 1 was the last to measure"
    assert zero["times"]["tried"] == one["times"]["tried"] == {"static": {"ratio": 1.0, "error": 0.1}}


def on_crowded_ranks(folder: Path, cache: Path) -> float:
    """Let a micro-batch take 2 s while the other rank has one, else 1 s; return what was measured of that."""
    import os
    import time

    from ddpsched.world import World

    os.environ[KEPT] = str(cache)
    rank = World.detect().rank
    mine, others = (folder / f"busy-{each}" for each in (rank, 1 - rank))

    def seconds(*_: Any) -> float:
        mine.touch()
        time.sleep(0.1)
        crowded = others.exists()
        time.sleep(0.1)
        mine.unlink()
        return 2.0 if crowded else 1.0

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(trial_times, "_seconds", seconds)
        patch.setattr(trial_times, "MOST_PASSES", 1)
        patch.setattr(trials, "MOST", 1)
        done = run(config_of(folder, executor={"kind": "distributed"}))
    return float(chosen(done)["times"]["together"])


def test_ranks_that_slow_each_other_are_measured_beside_and_alone(tmp_path: Path) -> None:
    assert run_ranks(on_crowded_ranks, 2, tmp_path, tmp_path / "kept") == [2.0, 2.0]


def test_a_run_that_goes_on_keeps_its_choice(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config = config_of(tmp_path, train={"checkpoint_every": 2}, steps=6)
    whole = run(config_of(tmp_path, train={"checkpoint_every": 2}, steps=6, name="whole"))
    from ddpsched.training.virtual import VirtualExecutor

    execute = VirtualExecutor.execute

    def stop_at_4(self: VirtualExecutor, plan: Any) -> Any:
        if plan.step == 4:
            raise RunStopped("as if by a signal")
        return execute(self, plan)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(VirtualExecutor, "execute", stop_at_4)
        with pytest.raises(RunStopped):
            run(config)
    monkeypatch.setattr(trial_times, "measure_times", lambda *_: pytest.fail("measured again"))
    folder = run(config)
    assert chosen(folder)["chosen"] == chosen(whole)["chosen"]
    assert [line["loss"] for line in read_lines(folder)] == [line["loss"] for line in read_lines(whole)]


@pytest.mark.slow
def test_advise_measures_compiled_candidates(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fast = given_times(1e-5).model_copy(update={"compiled": FAST})
    monkeypatch.setattr(trial_times, "measure_times", lambda *_: fast)
    config = tmp_path / "run.toml"
    config.write_text("steps = 4\nglobal_batch = 8\nworld_size = 2\n")
    words = ["compile.kind=static", "compile.shapes=1", "compile.backend=aot_eager", "policy.kind=auto"]
    command = ["advise", str(config), f"outputs={tmp_path}", "data.size=100", *words, "--steps", "8", "--json"]
    done = CliRunner().invoke(app, command)
    torch._dynamo.reset()
    assert done.exit_code == 0, done.output
    names = {each["name"] for each in json.loads(done.stdout[done.stdout.index("{") :])["measured"]}
    assert any(name.endswith(", compiled") for name in names)


def test_advise_measures_what_is_taken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A compiled model that leads by less than its compiling costs is not taken, and not all that is measured."""

    def prediction(name: str, ratio: float, **more: Any) -> Prediction:
        return Prediction(name, Static(), padded_tokens, ratio, ratio, 0.0 if name == "static" else 0.05, 1.0, **more)

    ranking = [prediction("balanced, compiled", 0.7, compiled=True), prediction("balanced", 0.8)]
    ranking += [prediction("packed", 0.9), prediction("static", 1.0)]
    ran = list[str]()

    def in_turn(configs: list[RunConfig], **_: Any) -> dict[str, str]:
        ran.extend(config.name for config in configs)
        return {}

    monkeypatch.setattr(measured, "run_interleaved", in_turn)
    monkeypatch.setattr(measured, "_step_times", lambda folder: np.ones(8))
    choice = Choice(config_of(tmp_path), ranking, given_times(1e-5), 0.0, ranking[1])
    found = measured.measure(choice, 8, 2)
    assert ran == ["static", "static-again", "balanced", "balanced-compiled"]
    assert [each.name for each in found] == ["static again", "balanced", "balanced, compiled"]


def test_a_run_prints_the_ranking_with_its_band(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run(config_of(tmp_path, executor={"kind": "simulated", "alpha_s": 1e-3, "beta_s": 1e-3}))
    out = capsys.readouterr().out
    assert "predicted, the fastest first" in out
    assert "±" in out
    assert "taken" in out


def test_advise_predicts_and_measures(tmp_path: Path) -> None:
    words = ["advise", str(toml(tmp_path)), "--steps", "8", "--json"]
    done = CliRunner().invoke(app, words)
    assert done.exit_code == 0, done.output
    found = json.loads(done.stdout[done.stdout.index("{") :])
    assert {each["name"] for each in found["ranking"]} >= {"static", "balanced", "packed"}
    again, *first = found["measured"]
    assert again["name"] == "static again"
    assert again["predicted"] is None
    assert 1 <= len(first) <= 2
    assert all(each["ratio"] > 0 and each["predicted"] for each in first)
    assert sorted(path.name for path in (tmp_path / "advise").iterdir())[-2:] == ["static", "static-again"]


def test_advise_says_what_it_predicts_alone(tmp_path: Path) -> None:
    done = CliRunner().invoke(app, ["advise", str(toml(tmp_path)), "--steps", "0"])
    assert done.exit_code == 0, done.output
    assert "predicted, the fastest first" in done.output
    assert "measured" not in done.output


@pytest.mark.parametrize(
    ("words", "named"),
    [
        (["executor.kind=simulated"], "executor.kind = 'simulated' has"),
        (["--steps", "3"], "--steps 3: the first 4 are left out"),
        (["executor.kind=distributed"], "world_size = 2, but 1 process(es) were started"),
    ],
)
def test_advise_refuses(tmp_path: Path, words: list[str], named: str) -> None:
    done = CliRunner().invoke(app, ["advise", str(toml(tmp_path)), *words])
    assert done.exit_code != 0
    assert named in " ".join(done.output.split())
