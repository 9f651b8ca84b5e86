"""The allowed imports between the package's rooms and floors, read from the imports themselves."""

import ast
import inspect
import subprocess
import sys
from pathlib import Path

import pytest
from longest import LONGEST

import ddpsched

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "ddpsched"

# A room imports only from rooms above it in this list; a module only from lower floors of its room.
ROOMS = {
    "ground": {
        "visible_text": 0, "errors": 1, "decode": 1, "packed_ids": 1, "parts": 0, "world": 2, "step_plan": 2,
        "record_lines": 2,
        "records": 3, "table": 2, "exchange": 2, "own_folder": 2, "regular_file": 0, "broken_pipe": 0,
        "run_folder": 4, "launcher_log": 4, "environment": 2, "machine": 1,
        "watch": 3, "processes": 1, "run_lock": 3, "arguments": 2, "shortage": 1, "terminal": 2, "local_ranks": 5,
        "heartbeat": 2, "plan_difference": 3, "command_exit": 3, "rooms": 2, "denominators": 2,
    },
    "monitor": {
        "durations": 0, "follower": 0, "summary": 0, "whole_steps": 0, "found": 0, "sinks": 0,
        "parquet": 1, "progress": 1, "view": 1,
        "sending": 1, "listing": 1, "removing": 1, "watching": 2, "showing": 3, "commands": 4,
    },
    "costs": {
        "calibration_grid": 0, "cost_model": 0, "rank_speed": 0, "memory_cap": 1, "shape_menu": 1,
        "calibration": 2, "regression": 2, "network": 3, "config": 3, "fit_command": 3, "step_times": 4,
        "fit_calibration": 3,
    },
    "data": {
        "array_cache": 0, "config": 0, "embedded": 0, "hub": 0, "laws": 0, "lengths": 0, "table_files": 0,
        "order_file": 1, "quarantine": 1, "row_source": 1, "tokenizer": 1, "token_table": 2,
        "column_lengths": 3, "length_files": 4, "samples": 4, "dataset_lengths": 5,
    },
    "orders": {"config": 0, "lexicographic_sort": 0, "curriculum": 1, "epoch_order": 2},
    "peers": {
        "packages": 0, "peer": 0, "budget": 1, "rows": 1, "axolotl": 2, "llama_factory": 2, "nemo_rl": 2, "slime": 3,
        "torchtitan": 2, "trl": 2, "batch_rebalance": 2, "cosmos_rl": 2, "deepspeed": 2, "fairseq": 2,
        "flattening": 2, "karmarkar_karp": 2, "length_grouped": 2, "lhotse": 2, "megatron": 2,
        "online_dynamic_batching": 2, "verl": 2,
    },
    "planning": {
        "assignment": 0, "record_columns": 0, "yardstick": 0, "policy": 1, "solvers": 1, "one_batch": 2, "plan_spec": 2,
        "steps": 3, "shapes": 4, "planner": 5, "policies": 5, "step_seconds": 0, "prediction": 6,
        "what_if": 6,
    },
    "config": {"tables": 0, "run": 1, "read": 2, "keys": 2},
    "recovery": {
        "synced_file": 0, "ledger": 0, "checkpoints": 1, "earlier": 1, "audit": 2, "start": 2, "keeper": 3,
        "command": 3,
    },
    "training": {
        "attempt_store": 0, "attention": 0, "clock": 0, "loss": 0, "model": 0, "out_of_memory": 0, "denominator": 1,
        "sample_sort": 0, "meeting": 1, "group_exchange": 2, "masks": 1, "variable_lr": 1, "collate": 2, "optimise": 2,
        "packed": 3, "sync": 3, "footprint": 1, "save": 0, "state": 0, "evaluate": 4, "program_table": 3, "splits": 3,
        "compiled": 4,        "rank_step": 4, "part_rows": 1, "part_groups": 4, "split": 5,
        "learner": 6, "calibrate": 7, "trial_times": 8, "compiled_times": 9, "trial_steps": 9,
        "distributed": 8, "virtual": 8,
        "network_times": 9, "calibrate_command": 10,
    },
}  # fmt: skip
HALL = {
    "alike",
    "advise",
    "run_loop",
    "run_totals",
    "executors",
    "plan_stream",
    "interleaved",
    "guard",
    "cli",
    "certify",
    "compare",
    "doctor",
    "integrations",
    "simulated",
    "sort",
    "__main__",
    "__init__",
}


def imports(path: Path) -> set[str]:
    """Return all modules that a file imports, at its top or inside a function, except for type checking."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    hidden = {
        id(inner)
        for node in ast.walk(tree)
        if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"
        for inner in ast.walk(node)
    }
    names: set[str] = set()
    for node in ast.walk(tree):
        if id(node) in hidden:
            continue
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import"
            names.add(node.module or "")
            names |= {f"{node.module}.{alias.name}" for alias in node.names if is_module(f"{node.module}.{alias.name}")}
    return names


def is_module(name: str) -> bool:
    """Return whether a dotted name is a module: ``ddpsched.plan_spec`` is, ``ddpsched.errors.DataError`` is not."""
    path = ROOT / Path(*name.split("."))
    return path.with_suffix(".py").exists() or (path / "__init__.py").exists()


def place(module: str) -> tuple[str, str]:
    """Return the room and module: ``ddpsched.planning.solvers.allocation`` -> ("planning", "solvers")."""
    parts = module.split(".")[1:]
    if parts and parts[0] in ROOMS:
        return parts[0], parts[1] if len(parts) > 1 else ""
    return "hall" if not parts or parts[0] in HALL else "ground", parts[0] if parts else ""


def faults(importer: str, imported: str) -> str | None:
    """Return the reason why ``importer`` may not import ``imported``, or None if it may."""
    (room, module), (other_room, other) = place(importer), place(imported)
    if room == "hall" or (room == other_room and other in (module, "")):
        return None
    if other_room == "hall":
        return "nothing below the hall reaches into it"
    rooms = list(ROOMS)
    if room != other_room:
        return None if rooms.index(other_room) < rooms.index(room) else f"{room} comes before {other_room}"
    if module and ROOMS[room][other] >= ROOMS[room][module]:
        return f"floor {ROOMS[room][module]} imports from floor {ROOMS[room][other]}"
    return None


FILES = sorted(path for path in PACKAGE.rglob("*.py"))


def name_of(path: Path) -> str:
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


@pytest.mark.parametrize("path", FILES, ids=name_of)
def test_floors(path: Path) -> None:
    importer = name_of(path)
    for imported in imports(path):
        if imported.startswith("ddpsched"):
            why = faults(importer, imported)
            assert why is None, f"{importer} imports {imported}: {why}"
        elif place(importer)[0] != "training":
            # the device's name for environment.json, in a run that has torch; messages between ranks that sort;
            # checks of training's gradients; a loss, loops and loaders of torch; a group's store
            integrations = (
                "losses", "balanced_loader", "step_loader", "step_batches", "agree", "agreement", "scaled",
                "packed_collate",
                "packed_rows", "recorder", "reduction_marks", "stream_scheduler", "transformers.balanced_trainer",
                "split_samples", "transformers.loss_rule", "transformers.trainer_plans",
            )  # fmt: skip
            rooms = (
                "ddpsched.run_loop",
                "ddpsched.interleaved",
                "ddpsched.local_ranks",
                "ddpsched.sort.ranks",
                *(f"ddpsched.integrations.{name}" for name in integrations),
            )
            allowed = importer in rooms or importer.startswith(("ddpsched.certify.", "ddpsched.doctor."))
            assert imported.split(".")[0] not in ("torch", "transformers") or allowed, f"{importer} imports {imported}"


def test_the_floor_test_can_fail() -> None:
    assert faults("ddpsched.costs.config", "ddpsched.training.loss")
    assert faults("ddpsched.costs.config", "ddpsched.planning.planner")
    assert faults("ddpsched.costs.config", "ddpsched.data.samples")
    assert faults("ddpsched.costs.memory_cap", "ddpsched.costs.config")
    assert faults("ddpsched.step_plan", "ddpsched.costs.config")
    assert faults("ddpsched.training.loss", "ddpsched.run_loop")
    assert faults("ddpsched.training.loss", "ddpsched.costs.config") is None


def test_imports_are_read_whatever_their_form(tmp_path: Path) -> None:
    path = tmp_path / "module.py"
    path.write_text(
        "import torch.nn\nfrom ddpsched.training import loss\ndef f():\n    from ddpsched import run_loop\n"
    )
    assert {"torch.nn", "ddpsched.training.loss", "ddpsched.run_loop"} <= imports(path)


def test_analysis_imports_records_alone() -> None:
    names = (
        "decode",
        "errors",
        "launcher_log",
        "records",
        "run_folder",
        "table",
        "terminal",
        "visible_text",
        "own_folder",
        "command_exit",
    )
    allowed = {f"ddpsched.{name}" for name in names}
    for path in (ROOT / "analysis").rglob("*.py"):
        ours = {name for name in imports(path) if name.startswith("ddpsched") and path.parent.name != "notebooks"}
        assert ours <= allowed, f"{path.name} imports {sorted(ours - allowed)}"
        assert not {name for name in imports(path) if name.split(".")[0] == "torch"}


@pytest.mark.parametrize(
    "code",
    [
        "import ddpsched.cli",
        "import ddpsched; ddpsched.solve([[1, 2], [1, 3]], 2)",
        "import ddpsched; ddpsched.BatchSampler([3, 4], global_batch=2, world=ddpsched.World(0, 2))",
        "import ddpsched; ddpsched.PoolStream(['a'], len)",
        "import ddpsched.run_loop, ddpsched.simulated",
        "import ddpsched.planning.policies.peer, ddpsched.compare.command",
        "import ddpsched.certify.certificate, ddpsched.certify.stream_checks, ddpsched.certify.gradient_comparison",
        "import ddpsched.local_ranks, ddpsched.certify.command",
        "import ddpsched.doctor.command, ddpsched.doctor.isolation",
        "import ddpsched.monitor.watching, ddpsched.monitor.showing, ddpsched.monitor.listing",
        "import ddpsched.monitor.removing, ddpsched.monitor.sending, ddpsched.monitor.sinks, ddpsched.monitor.progress",
    ],
)
def test_planning_and_help_import_no_torch(code: str) -> None:
    check = f"{code}\nimport sys\nsys.exit('torch' in sys.modules or 'transformers' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", check], cwd=ROOT).returncode == 0


def test_public_names_load_and_are_typed() -> None:
    """``dir``, the type stub and the loadable names agree."""
    stub = ast.parse((PACKAGE / "__init__.pyi").read_text(encoding="utf-8"))
    typed = {alias.asname for node in stub.body if isinstance(node, ast.ImportFrom) for alias in node.names}
    assert typed == set(ddpsched.__all__) <= set(dir(ddpsched))
    for name in ddpsched.__all__:
        assert getattr(ddpsched, name).__name__ == name
    assert {name for name in dir(ddpsched) if not name.startswith("__")} == typed
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        ddpsched.nothing  # noqa: B018


@pytest.mark.parametrize("name", ddpsched.__all__)
def test_signatures_are_as_short_as_they_are_written(name: str) -> None:
    """``help`` prints them; numpy's ``ArrayLike`` alone takes five lines once it is evaluated."""
    thing = getattr(ddpsched, name)
    if isinstance(thing, type) and issubclass(thing, Exception):
        return
    for parameter in inspect.signature(thing).parameters.values():
        assert len(inspect.formatannotation(parameter.annotation)) <= 80, parameter


def listed(text: str) -> set[str]:
    """Return the first words of a tree's lines, up to the two blanks before a comment."""
    return {name for line in text.splitlines() for name in line.strip().split("  ")[0].split(", ") if name}


OUTSIDE = (
    "analysis",
    "experiments",
    "experiments/benchmarks",
    "experiments/examples",
    "experiments/reliability",
    "experiments/reliability/fuzz",
    "experiments/reliability/hostile_texts",
    "experiments/trainers",
    "report",
)
OTHERS = [ROOT / name for name in OUTSIDE]


@pytest.mark.parametrize(
    "room", sorted({path.parent for path in FILES} | {*OTHERS}), ids=lambda room: str(room.relative_to(ROOT))
)
def test_each_room_lists_its_files(room: Path) -> None:
    """The room's docstring lists all its files, and no others."""
    docstring = ast.get_docstring(ast.parse((room / "__init__.py").read_text(encoding="utf-8"))) or ""
    there = {path.name for path in room.glob("*.py")} - {"__init__.py", "__main__.py"}
    there |= {f"{path.parent.name}/" for path in room.glob("*/__init__.py")}
    assert listed(docstring.split("::")[-1]) == there


def test_no_file_is_over_350_lines() -> None:
    files = [
        path
        for room in ("ddpsched", "experiments", "analysis", "report", "tests")
        for path in (ROOT / room).rglob("*.py")
    ]
    long = {
        str(path.relative_to(ROOT)): n for path in files if (n := path.read_text(encoding="utf-8").count("\n")) > 350
    }
    assert not long


def test_the_tree_is_true() -> None:
    """The tree names every room, a line each, and nothing that does not exist."""
    tree = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8").split("## The layout")[1].split("```")[1]
    named: set[str] = set()
    folders: list[str] = []
    for line in filter(str.strip, tree.splitlines()):
        depth, names = (len(line) - len(line.lstrip())) // 2, line.strip().split("  ")[0].split(", ")
        folders = folders[:depth]
        for name in names:
            path = "".join(folders) + (name if name.endswith(("/", ".py")) else f"{name}.py")
            assert name == "..." or (ROOT / path).exists(), f"CONTRIBUTING names {path}"
            named.add(path)
        if names[0].endswith("/"):
            folders.append(names[0])
    inner = {"planning/solvers/allocation/", "planning/solvers/partition/", "data/embedded/", "data/laws/"}
    rooms = {f"{path.parent.relative_to(ROOT)}/" for path in FILES} - {f"ddpsched/{each}" for each in inner}
    assert rooms <= named, f"CONTRIBUTING's tree leaves out {sorted(rooms - named)}"


def test_the_files_that_begin_first_are_there() -> None:
    assert set(LONGEST) <= {path.stem for path in (ROOT / "tests").rglob("test_*.py")}
