"""Compiled models on real ranks: every policy that plans on a menu, under every synchroniser that compiled models have.

Programs of a model of one layer are traced only (``aot_eager``) and held against the eager model on the same plans.
"""

import io
import re
import time
from contextlib import redirect_stderr
from pathlib import Path
from typing import Any

import pytest
import torch
from one_layer import one_layer
from ranks import run_ranks

from ddpsched.config import parse
from ddpsched.errors import RunError
from ddpsched.interleaved import run_interleaved
from ddpsched.local_ranks import join_group
from ddpsched.planning.shapes.choose import Menu
from ddpsched.records import read_json, read_lines
from ddpsched.run_loop import run
from ddpsched.training.compiled import Programs
from ddpsched.training.learner import Learner
from ddpsched.training.program_table import ProgramTable
from ddpsched.world import World

POLICIES: dict[str, dict[str, Any]] = {
    "minmax": {"kind": "minmax", "prefetch": 8},
    "balanced, M = 2": {"kind": "balanced", "max_microbatches": 2},
    "token_budget": {"kind": "token_budget", "max_tokens_for_batch": 160},
    "bins": {"kind": "bins", "median_batch": 4},
    "pool": {"kind": "pool", "max_tokens_for_batch": 160},
}


def config_of(folder: Path, name: str, policy: dict[str, Any], sync: str, **compiled: Any) -> Any:
    return parse({
        "outputs": str(folder), "name": name, "steps": 3, "global_batch": 8, "world_size": 2, "data": {"size": 96},
        "model": {"dropout": 0.0}, "policy": policy, "sync": {"kind": sync}, "executor": {"kind": "distributed"},
        "train": {"precision": "float64", "save_model": False},
        "compile": {"kind": "static", "backend": "aot_eager", "shapes": 4, **compiled},
    })  # fmt: skip


def eagerly(table: ProgramTable, *args: Any, **inputs: Any) -> Any:
    return table._model._call_impl(*args, **inputs)


@one_layer()
def both(folder: Path, sync: str, names: list[str], shapes: int) -> dict[str, str]:
    """Run each policy compiled, and then by the eager model on the same plans."""
    join_group()  # for all that this rank runs: a rendezvous is not used twice
    failed = {}
    for kind in ("compiled", "eager"):
        configs = [
            config_of(folder, f"{name}-{kind}".replace(", M = ", "-"), POLICIES[name], sync, shapes=shapes)
            for name in names
        ]
        with pytest.MonkeyPatch.context() as patch:
            if kind == "eager":
                patch.setattr(
                    ProgramTable, "__call__", lambda self, *args, **more: self._model._call_impl(*args, **more)
                )
            failed |= run_interleaved(configs)
        torch._dynamo.reset()
    torch.distributed.barrier()
    return failed


@one_layer()
def late(folder: Path) -> dict[str, float]:
    """Let rank 1 take a second longer to make its programs; return when they were made, and when steps may begin."""
    rank, at, use = World.detect().rank, dict[str, float](), Learner.use

    def make(self: Programs, *_: Any) -> dict[str, Any]:
        time.sleep(rank)
        at["made"] = time.time()
        return {"kind": "static"}

    def used(self: Learner, *given: Any) -> dict[str, Any]:
        found = use(self, *given)
        at["used"] = time.time()
        return found

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Programs, "make", make)
        patch.setattr(Learner, "use", used)
        run(config_of(folder, "late", {"kind": "static"}, "ddp", shapes=1))
    return at


def test_no_rank_begins_before_all_have_their_programs(tmp_path: Path) -> None:
    zero, one = run_ranks(late, 2, tmp_path)
    assert zero["used"] >= one["made"] >= zero["made"] + 0.5


@pytest.mark.slow
@pytest.mark.parametrize("sync", ["ddp", "bucketed", "overlap"])
def test_every_policy_trains_as_the_eager_model(tmp_path: Path, sync: str) -> None:
    assert run_ranks(both, 2, tmp_path, sync, [*POLICIES], 4, timeout_s=300) == [{}, {}]
    trained_alike(tmp_path, [*POLICIES], 4)


def trained_alike(folder: Path, names: list[str], shapes: int) -> None:
    for name in names:
        compiled, eager = (folder / "runs" / f"{name}-{kind}".replace(", M = ", "-") for kind in ("compiled", "eager"))
        programs = read_json(compiled / "environment.json")["compile"]["programs"]
        assert 1 < len(programs) <= shapes, name
        lines, others = read_lines(compiled), read_lines(eager)
        assert {line["recompiled"] for line in lines} == {None}, name
        for key in ("loss", "grad_norm"):
            assert [line[key] for line in lines] == pytest.approx([line[key] for line in others], rel=1e-9), (name, key)
        assert len({line["grad_norm"] for line in lines}) > 1
        for key in ("num_samples", "padded_tokens"):
            assert [line[key] for line in lines] == [line[key] for line in others], (name, key)


@one_layer()
def fails_on(folder: Path, failing: tuple[int, ...]) -> str:
    """Run two ranks, on some of which the compiler fails; return what this rank has printed."""
    add, printed = ProgramTable.add, io.StringIO()

    def fail(table: ProgramTable, shape: Any) -> None:
        if torch.distributed.get_rank() in failing:
            raise torch._dynamo.exc.BackendCompilerFailed(add, RuntimeError("no compiler here"), None)
        add(table, shape)

    with pytest.MonkeyPatch.context() as patch, redirect_stderr(printed):
        patch.setattr(ProgramTable, "add", fail)
        run(config_of(folder, f"fails-on-{len(failing)}", {"kind": "static"}, "ddp", shapes=1))
    torch._dynamo.reset()
    torch.distributed.barrier()
    return printed.getvalue()


ALL, SOME = (0, 1), (1,)  # of two ranks


def one_after_another(folder: Path) -> tuple[dict[str, str], dict[tuple[int, ...], str]]:
    """Let the same ranks train, and then fail to compile: a process that compiles first imports for seconds."""
    return both(folder, "overlap", ["token_budget"], 2), {failing: fails_on(folder, failing) for failing in (ALL, SOME)}


@pytest.fixture(scope="module")
def ran(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[Any]]:
    folder = tmp_path_factory.mktemp("ranks")
    return folder, run_ranks(one_after_another, 2, folder)


def test_a_policy_trains_as_the_eager_model(ran: tuple[Path, list[Any]]) -> None:
    folder, ranks = ran
    assert [failed for failed, _ in ranks] == [{}, {}]
    trained_alike(folder, ["token_budget"], 2)


@pytest.mark.parametrize(
    ("failing", "said"),
    [(ALL, "'aot_eager' failed"), (SOME, r"the compiler failed on ranks \[1\], which run eagerly; their logs")],
    ids=["all", "some"],
)
def test_a_compiler_that_fails_is_told_once_and_logged_where_it_failed(
    ran: tuple[Path, list[Any]], failing: tuple[int, ...], said: str
) -> None:
    zero, one = (printed[failing] for _, printed in ran[1])
    (line,) = [line for line in zero.splitlines() if "compiler" in line]
    assert re.search(said, line)
    assert one == ""
    folder = ran[0] / "runs" / f"fails-on-{len(failing)}"
    assert read_json(folder / "environment.json")["compile"]["failed_ranks"] == [*failing]
    for rank in failing:
        assert "no compiler here" in (folder / "logs" / f"rank{rank}.log").read_text()


def recompiles_on_one(folder: Path) -> str:
    """Run two ranks, the last of which forgets one program before the second step."""
    join_group()
    make = Programs.make

    def forgetful(self: Programs, *given: Any) -> Any:
        if torch.distributed.get_rank() == 1:
            self._menu = Menu(self._menu.shapes, self._menu.shapes[:1])
        return make(self, *given)

    said = ""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Programs, "make", forgetful)
        try:
            run(config_of(folder, "stop", {"kind": "static"}, "ddp", on_recompile="stop"))
        except RunError as error:
            said = str(error)
    return said


@pytest.mark.slow
def test_a_recompilation_of_one_rank_stops_all_in_the_same_step(tmp_path: Path) -> None:
    first, last = run_ranks(recompiles_on_one, 2, tmp_path)
    assert "let compile.cover meet every shape" in last
    assert "rank 1" in first
    status = read_json(tmp_path / "runs" / "stop" / "status.json")
    assert status["state"] == "failed"
    lines = read_lines(tmp_path / "runs" / "stop")
    ended = [max((line["step"] for line in lines if line["rank"] == rank), default=-1) for rank in range(2)]
    assert ended[0] == ended[1]


@one_layer()
def trained(folder: Path, name: str, sync: str, compiled: dict[str, Any]) -> None:
    run(config_of(folder, name, {"kind": "static"}, sync, **compiled))


@pytest.mark.slow
@pytest.mark.parametrize("sync", ["ddp", "overlap"])
def test_inductors_programs_on_ranks_train_as_traced_ones(tmp_path: Path, sync: str) -> None:
    menu = {"menu": [[4, 66]], "shapes": 1}
    for backend in ("aot_eager", "inductor"):
        run_ranks(trained, 2, tmp_path, backend, sync, {**menu, "backend": backend}, timeout_s=300)
    lines, others = (read_lines(tmp_path / "runs" / backend) for backend in ("aot_eager", "inductor"))
    assert read_json(tmp_path / "runs" / "inductor" / "environment.json")["compile"]["backend"] == "inductor"
    assert {line["recompiled"] for line in others} == {None}
    for key in ("loss", "grad_norm"):
        assert [line[key] for line in lines] == pytest.approx([line[key] for line in others], rel=1e-9), key


@pytest.mark.slow
def test_ranks_compile_in_the_steps_that_meet_every_shape(tmp_path: Path) -> None:
    run_ranks(trained, 2, tmp_path, "order", "ddp", {"cover": "order", "on_recompile": "stop"}, timeout_s=300)
    entry = read_json(tmp_path / "runs" / "order" / "environment.json")["compile"]
    assert entry["cover_steps"] > 0
    assert entry["within_steps"]["seconds"] > 0
    compiled = {line["step"] for line in read_lines(tmp_path / "runs" / "order") if line["recompiled"]}
    assert compiled
    assert max(compiled) < entry["cover_steps"]


BUCKET_MB = 0.4


@one_layer()
def parts_of(split: bool, folder: Path) -> Any:
    config = config_of(folder, f"split-{split}", {"kind": "static"}, "ddp", menu=[[4, 66]], split=split)
    done = run(config.model_copy(update={"sync": config.sync.model_copy(update={"bucket_mb": BUCKET_MB})}))
    return read_json(done / "environment.json")["compile"]["programs"]


def with_and_without(folder: Path) -> tuple[Any, Any]:
    join_group()  # for both: a run's rendezvous is not used twice
    split = parts_of(True, folder)
    torch._dynamo.reset()
    whole = parts_of(False, folder)
    torch.distributed.barrier()
    return split, whole


def test_ddps_splitter_cuts_a_program_at_its_buckets(tmp_path: Path) -> None:
    config = config_of(tmp_path, "model", {"kind": "static"}, "ddp")
    with one_layer():
        model = Learner(config, config.load_samples(), torch.device("cpu")).model
    parameters = sum(each.numel() * each.element_size() for each in model.parameters())
    (split,), (whole,) = run_ranks(with_and_without, 2, tmp_path)[0]
    for program in (split, whole):
        assert (program["rows"], program["length"]) == (4, 66)
    assert len(split["splits"]) == split["parts"] > 1
    assert sum(split["splits"]) == parameters
    assert min(split["splits"][1:]) > BUCKET_MB * 2**20, "buckets are filled from the end on"
    assert (whole["parts"], whole["splits"]) == (1, [])
