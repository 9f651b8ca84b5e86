"""Compiled models: the gradient stays, programs are made before the first step, and what is compiled later is recorded.

Most tests trace only (``aot_eager``), or capture graphs and do not even trace these (``captured_only``), of models of
one layer; inductor's programs take 10 seconds each.
"""

import logging
import os
from collections.abc import Iterator
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from one_layer import one_layer
from ranks import run_ranks
from rich.console import Console

from ddpsched.certify.certify_run import certify_run
from ddpsched.config import RunConfig, parse
from ddpsched.errors import ConfigError, RunError
from ddpsched.interleaved import run_interleaved
from ddpsched.planning.shapes.choose import Menu
from ddpsched.records import read_json, read_lines
from ddpsched.run_loop import run
from ddpsched.training import collate, compiled
from ddpsched.training.learner import Learner
from ddpsched.training.program_table import ProgramTable

TRACED = {"kind": "static", "backend": "aot_eager", "shapes": 3}
CPU = torch.device("cpu")


@pytest.fixture(autouse=True)
def no_programs_of_other_tests() -> Iterator[None]:
    torch._dynamo.reset()
    with one_layer():
        yield


def config_of(folder: Path, compiled: dict[str, Any] = TRACED, **more: Any) -> RunConfig:
    table: dict[str, Any] = {
        "outputs": str(folder), "epochs": 1, "global_batch": 13, "world_size": 2, "data": {"size": 120},
        "model": {"dropout": 0.0}, "policy": {"kind": "balanced"}, "compile": compiled,
    }  # fmt: skip
    return parse({**table, **more})


def captured_only(config: RunConfig) -> RunConfig:
    """Let graphs be captured as ever and then run as they are, by a backend of torch that users cannot choose."""
    return config.model_copy(update={"compile": config.compile.model_copy(update={"backend": "eager"})})


CERTIFIED: dict[str, dict[str, Any]] = {
    "balanced, several": {"policy": {"kind": "balanced", "max_microbatches": 2}},
    "token_budget": {"policy": {"kind": "token_budget", "max_tokens_for_batch": 160}},
    "language model": {
        "model": {"task": "causal_lm", "dropout": 0.0}, "train": {"target": "sample_mean"},
        "compile": {**TRACED, "shapes": 2},
    },
    "dynamic": {"compile": {"kind": "dynamic", "backend": "aot_eager"}},
}  # fmt: skip


@pytest.mark.parametrize(
    "name", [each if each == "language model" else pytest.param(each, marks=pytest.mark.slow) for each in CERTIFIED]
)
def test_the_gradient_is_the_eager_models(tmp_path: Path, name: str) -> None:
    certificate = certify_run(config_of(tmp_path, **CERTIFIED[name]))
    assert certificate.holds, certificate.text()
    assert "<= 1e-12" in certificate.text()


def test_rows_that_fill_up_would_show_if_they_weighed_something(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(collate, "NOT_LEARNT", 0)
    assert not certify_run(config_of(tmp_path, {**TRACED, "shapes": 2})).holds


def test_a_batch_is_filled_up_to_its_shape() -> None:
    rows = [np.array([5, 6, 7]), np.array([8])]
    filled, labels, weights = collate.filled_up(rows, np.array([1, 0]), None, 4)
    assert [row.tolist() for row in filled] == [[5, 6, 7], [8], [1], [1]]
    assert labels.tolist() == [1, 0, -100, -100]  # type: ignore[union-attr]
    assert weights is None
    _, labels, weights = collate.filled_up(rows, rows, np.array([0.5, 2.0]), 3)
    assert [row.tolist() for row in labels] == [[5, 6, 7], [8], [-100]]
    assert weights is not None
    assert weights.tolist() == [0.5, 2.0, 0.0]
    assert collate.filled_up(rows, rows, None, 2)[0] is rows


@pytest.mark.parametrize(
    "policy",
    [{"kind": "static"}, pytest.param({"kind": "minmax", "prefetch": 13}, marks=pytest.mark.slow)],
    ids=lambda policy: policy["kind"],
)
def test_nothing_is_compiled_within_a_step(tmp_path: Path, policy: dict[str, Any]) -> None:
    folder = run(config_of(tmp_path, {**TRACED, "on_recompile": "stop"}, policy=policy))
    entry = read_json(folder / "environment.json")["compile"]
    assert 1 < len(entry["programs"]) <= 3
    assert {each["parts"] for each in entry["programs"]} == {1}
    assert entry["breaks"] == []
    assert all(line["recompiled"] is None for line in read_lines(folder))
    assert entry["within_steps"] == {"programs": 0, "seconds": 0.0}
    padded = sum(line["padded_tokens"] for line in read_lines(folder))
    assert padded > sum(line["num_tokens"] for line in read_lines(folder))


@pytest.mark.slow
def test_few_programs_at_a_time_follow_samples_that_come_by_length(tmp_path: Path) -> None:
    options = {**TRACED, "shapes": 4, "live": 2}
    few = config_of(tmp_path, options, name="few", order={"kind": "curriculum"}, policy={"kind": "static"})
    folder = run(few)
    entry = read_json(folder / "environment.json")["compile"]
    assert len(entry["menu"]) == 4
    assert len(entry["programs"]) == 2
    assert entry["groups"]
    assert all(len(group["shapes"]) == 2 and group["seconds"] > 0 for group in entry["groups"])
    assert entry["groups"][-1]["shapes"][-1] == entry["menu"][-1]
    assert len(entry["groups"]) <= 3  # samples that rise in length need each group once
    torch._dynamo.reset()
    whole = run(config_of(tmp_path, name="all", order={"kind": "curriculum"}, policy={"kind": "static"}))
    lines, others = read_lines(folder), read_lines(whole)
    assert {line["recompiled"] for line in lines} == {None}
    assert [line["loss"] for line in lines] == pytest.approx([line["loss"] for line in others], rel=1e-5)
    with pytest.raises(ConfigError, match=r"compile.live = 2 resets the compiler, whose programs all runs"):
        run_interleaved([few])


LENGTHS = ([10, 20, 30, 40, 10, 20], [10, 10, 20, 40, 30, 10], [20, 20, 10, 10, 40, 30])  # of each rank, step by step


@one_layer()
def worked_example(folder: Path, data: Path, covered: bool) -> str:
    """Run three ranks of which each meets a length at another step; return the run's folder."""
    table = {
        "outputs": str(folder), "name": f"covered-{covered}", "epochs": 1, "global_batch": 3, "world_size": 3,
        "data": {"path": str(data), "text": "sentence", "tokenizer": str(data.parent)},
        "order": {"kind": "sequential"}, "policy": {"kind": "static"},
        "compile": {**TRACED, "shapes": 4, "menu": [[1, length] for length in (10, 20, 30, 40)]},
        "executor": {"kind": "distributed"},
    }  # fmt: skip
    with pytest.MonkeyPatch.context() as patch:
        if not covered:
            menu = RunConfig.menu
            patch.setattr(RunConfig, "menu", lambda *given: replace(menu(*given), warm_up=()))
        return str(run(parse(table)))


@pytest.mark.slow
def test_a_length_that_is_new_to_a_rank_is_compiled_in_its_step_unless_covered(tmp_path: Path) -> None:
    words = [[" ".join(["a"] * (length - 2)) for length in step] for step in zip(*LENGTHS, strict=True)]
    (tmp_path / "vocab.txt").write_text("[PAD]\n[UNK]\n[CLS]\n[SEP]\n[MASK]\na\n")
    data = tmp_path / "train.tsv"
    data.write_text("label\tsentence\n" + "".join(f"0\t{text}\n" for step in words for text in step))
    for covered in (False, True):
        folder = Path(run_ranks(worked_example, 3, tmp_path, data, covered)[0])
        lines = read_lines(folder)
        assert [[line["max_length"] for line in lines if line["rank"] == rank] for rank in range(3)] == [*LENGTHS]
        compiled_in = {(line["rank"], line["step"]) for line in lines if line["recompiled"]}
        seen = [{10}, {10}, {10}]  # the first shape is always made
        new = set()
        for rank, lengths in enumerate(LENGTHS):
            for step, length in enumerate(lengths):
                if length not in seen[rank]:
                    new.add((rank, step))
                seen[rank].add(length)
        assert compiled_in == (set() if covered else new)
        if not covered:
            reason = next(line["recompiled"] for line in lines if (line["rank"], line["step"]) == (0, 1))
            assert "size mismatch at index 1. expected 10, actual 20" in reason


def test_a_recompilation_may_stop_the_run(tmp_path: Path) -> None:
    config = captured_only(config_of(tmp_path, {**TRACED, "on_recompile": "stop"}))
    menu = RunConfig.menu
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(RunConfig, "menu", lambda *given: replace(menu(*given), warm_up=()))
        with pytest.raises(RunError, match=r"within a step \(.*size mismatch.*\); let compile.cover meet every"):
            run(config)


def test_what_runs_compile_that_take_turns_is_their_own(tmp_path: Path) -> None:
    options = {**TRACED, "on_recompile": "stop"}
    configs = [config_of(tmp_path, {**options, "shapes": shapes}, name=f"N-{shapes}") for shapes in (1, 2)]
    configs = [captured_only(config) for config in configs]
    assert run_interleaved(configs) == {}
    for config in configs:
        assert [line["recompiled"] for line in read_lines(config.run_dir) if line["recompiled"]] == []


def test_first_steps_that_cover_are_allowed_to_compile(tmp_path: Path) -> None:
    folder = run(captured_only(config_of(tmp_path, {**TRACED, "cover": "order", "on_recompile": "stop"})))
    entry = read_json(folder / "environment.json")["compile"]
    steps = {line["step"] for line in read_lines(folder) if line["recompiled"]}
    assert steps
    assert max(steps) < entry["cover_steps"]
    assert entry["within_steps"]["programs"] >= len(steps)
    assert entry["within_steps"]["seconds"] > 0


@pytest.mark.parametrize("on_failure", ["eager", "stop"])
def test_no_compiler_of_cpp(tmp_path: Path, on_failure: str, caplog: pytest.LogCaptureFixture) -> None:
    import torch._inductor.config as inductor

    options = {"kind": "static", "shapes": 2, "on_failure": on_failure, "cache": str(tmp_path / "programs")}
    config = config_of(tmp_path, options, steps=2, epochs=None)
    missing = inductor.patch({"cpp.cxx": ("no-such-compiler",), "fx_graph_cache": False})
    if on_failure == "stop":
        with (
            missing,
            pytest.raises(RunError, match=r"'inductor' failed \(.*ompiler.*\); give no .compile., or compile.b"),
        ):
            run(config)
        return
    with missing, caplog.at_level(logging.WARNING, "ddpsched"):
        folder = run(config)
    assert len([line for line in caplog.messages if "the model runs eagerly" in line]) == 1
    assert "ompiler" in read_json(folder / "environment.json")["compile"]["failed"]
    assert [line["recompiled"] for line in read_lines(folder)] == [None] * 4


def test_a_compiler_that_fails_in_mid_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The model goes on without programs, and the records say why."""
    options = {**TRACED, "shapes": 4, "live": 2}
    config = captured_only(config_of(tmp_path, options, order={"kind": "curriculum"}, policy={"kind": "static"}))
    add, calls = ProgramTable.add, list[Any]()

    def third_fails(table: ProgramTable, shape: Any) -> None:
        calls.append(shape)
        if len(calls) > 2:
            raise torch._dynamo.exc.BackendCompilerFailed(add, RuntimeError("no space left"), None)
        add(table, shape)

    monkeypatch.setattr(ProgramTable, "add", third_fails)
    made = read_json(run(config) / "environment.json")["compile"]
    assert "no space left" in made["groups"][0]["failed"]
    assert len(made["groups"]) == 1


def test_a_cache_folder_is_of_its_run_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(compiled.CACHE, raising=False)
    compiled._cache_in(str(tmp_path))
    assert os.environ[compiled.CACHE] == str(tmp_path)
    compiled._cache_in(None)
    assert compiled.CACHE not in os.environ
    monkeypatch.setenv(compiled.CACHE, "mine")
    compiled._cache_in(None)
    assert os.environ[compiled.CACHE] == "mine"


def test_a_model_that_breaks_the_graph_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    config = config_of(tmp_path, steps=1, epochs=None)
    samples = config.load_samples()
    learner = Learner(config, samples, CPU)
    forward = learner.model.forward

    def broken_in_two(*args: Any, **inputs: Any) -> Any:
        torch._dynamo.graph_break()
        return forward(*args, **inputs)

    monkeypatch.setattr(learner.model, "forward", broken_in_two)
    with caplog.at_level(logging.WARNING, "ddpsched"):
        facts = learner.use(config, Menu(((4, 20),), ((4, 20),)))
    (each,) = facts["compile"]["breaks"]
    assert each.startswith(f"{__file__}:{broken_in_two.__code__.co_firstlineno + 1}: ")
    assert any(f"breaks the graph, and runs in parts: {__file__}" in line for line in caplog.messages)


@pytest.mark.parametrize("is_eager", [True, False])
def test_evaluation_compiles_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_eager: bool) -> None:
    """It runs the eager model, as its batches have shapes of their own; the next step finds its program."""
    if not is_eager:
        monkeypatch.setattr(torch.compiler, "set_stance", lambda stance: nullcontext())
    torch._dynamo.utils.counters.clear()
    config = config_of(tmp_path, {**TRACED, "shapes": 2}, steps=2, epochs=None, train={"eval_every": 1})
    folder = run(captured_only(config))
    assert len((folder / "evaluations.jsonl").read_text().splitlines()) >= 2
    made = read_json(folder / "environment.json")["compile"]
    assert (torch._dynamo.utils.counters["stats"]["unique_graphs"] == len(made["programs"])) == is_eager
    assert made["within_steps"]["programs"] == 0


def test_running_statistics_are_refused(tmp_path: Path) -> None:
    config = config_of(tmp_path)
    learner = Learner(config, config.load_samples(), CPU)
    learner._statistics = [torch.zeros(3)]
    with pytest.raises(ConfigError, match="rows of weight 0, which would count in the running statistics"):
        learner.use(config, Menu(((4, 20),), ((4, 20),)))


def test_each_rank_begins_with_other_shapes(monkeypatch: pytest.MonkeyPatch) -> None:
    shapes = [(8, length) for length in (10, 20, 30, 40, 50)]
    assert compiled.in_own_order(shapes) == shapes
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "3")
    begun = []
    for rank in range(3):
        monkeypatch.setenv("LOCAL_RANK", str(rank))
        begun.append(compiled.in_own_order(shapes)[0][1])
        assert sorted(compiled.in_own_order(shapes)) == shapes
    assert begun == [10, 20, 40]
    assert compiled.in_own_order([]) == []


def test_the_limit_of_programs_is_raised_by_the_menu() -> None:
    import torch._dynamo.config as limits

    word = "recompile_limit" if hasattr(limits, "recompile_limit") else "cache_size_limit"  # of torch 2.6
    names = [word, f"accumulated_{word}"]
    before = [getattr(limits, name) for name in names]
    compiled._raise_limit(20)
    assert [getattr(limits, name) for name in names] == [limit + 20 for limit in before]
    for name, limit in zip(names, before, strict=True):
        setattr(limits, name, limit)


def test_programs_are_made_behind_a_bar_on_a_terminal(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    shapes = [(8, length) for length in (10, 20, 30)]
    assert list(compiled._with_progress(shapes)) == shapes
    assert capsys.readouterr().err == "", "a log gets lines, and no bar"
    monkeypatch.setattr(compiled, "plain_console", lambda stderr: Console(stderr=stderr, force_terminal=True))
    assert list(compiled._with_progress(shapes)) == shapes
    assert "compiling" in (shown := capsys.readouterr().err)
    assert "100%" in shown
