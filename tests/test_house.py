"""The house's floors: who may import whom, read from the imports themselves."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "ddpsched"

# A module imports only from floors below its own; within its wing or from the ground floor.
GROUND = {
    "errors": 0, "world": 1, "plan": 1, "records": 1, "config": 1, "run_folder": 2, "environment": 1, "watch": 2,
    "processes": 0, "siblings": 1, "run_lock": 1, "functions": 1, "output_file": 1, "terminal": 1,
}  # fmt: skip
PLANNING = {
    "array_cache": 0, "hub": 0, "words": 0, "affine": 0, "memory": 0, "speed": 0, "grid": 0, "encode": 0,
    "row_sort": 0, "ordered_file": 0, "source": 0,
    "lengths": 1, "tokenise": 1, "tokenizer": 1, "tables": 1, "curriculum": 1, "queues": 1, "messages": 1,
    "solvers": 1, "relative": 1, "calibration": 1,
    "embedded": 2, "cost": 2, "judged": 2, "concatenate": 2, "order": 2, "row_source": 2, "length_files": 3, "fit": 3,
    "caps": 3, "lookahead": 3, "yardstick": 3, "texts": 3, "policies": 4, "samples": 4, "epoch": 4, "columns": 5,
    "batch_steps": 5, "window_steps": 5, "fill_steps": 5, "planner": 6, "simulated": 7,
}  # fmt: skip
TRAINING = {
    "compared": 0, "masks": 1, "loss": 1, "lr": 1, "clock": 1, "model": 1, "trouble": 1, "clock_offset": 1,
    "weights": 1, "sample_sort": 1, "data": 2, "exchange": 2, "variable_lr": 2, "packed": 3, "sync": 3, "optimise": 3,
    "rank_step": 4, "evaluate": 4, "learner": 5, "probe": 6, "sample_loss": 6, "calibrate": 6, "virtual": 7,
    "distributed": 7,
}  # fmt: skip
HALL = {"run", "guard", "cli", "certify", "compare", "integrations", "peers", "sort", "__main__", "__init__"}


def imports(path: Path) -> set[str]:
    """Every module that a file imports, at its top or inside a function; type-checking imports left out."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    hidden = {
        id(inner)
        for node in ast.walk(tree)
        if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"
        for inner in ast.walk(node)
    }
    found: set[str] = set()
    for node in ast.walk(tree):
        if id(node) in hidden:
            continue
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import"
            found.add(node.module or "")
            found |= {f"{node.module}.{alias.name}" for alias in node.names if is_module(f"{node.module}.{alias.name}")}
    return found


def is_module(name: str) -> bool:
    """``from ddpsched.training import loss`` names a module, ``from ddpsched.plan import StepPlan`` does not."""
    path = ROOT / Path(*name.split("."))
    return path.with_suffix(".py").exists() or (path / "__init__.py").exists()


def place(module: str) -> tuple[str, str]:
    """``ddpsched.planning.solvers.ilp`` -> ("planning", "solvers")."""
    parts = module.split(".")[1:]
    if parts[:1] in (["planning"], ["training"]):
        return parts[0], parts[1] if len(parts) > 1 else ""
    return "hall" if not parts or parts[0] in HALL else "ground", parts[0] if parts else ""


def faults(importer: str, imported: str) -> str | None:
    """Why ``importer`` may not import ``imported``; None where it may."""
    (wing, room), (other_wing, other_room) = place(importer), place(imported)
    if wing == "hall" or room == other_room or other_room == "":
        return None
    floors = {"ground": GROUND, "planning": PLANNING, "training": TRAINING}
    if other_wing == "hall":
        return "nothing below the hall reaches into it"
    if wing == "ground" and other_wing != "ground":
        return "the ground floor knows no wing"
    if wing == "planning" and other_wing == "training":
        return "planning never reaches into training"
    if wing == other_wing and floors[wing][other_room] >= floors[wing][room]:
        return f"floor {floors[wing][room]} imports from floor {floors[wing][other_room]}"
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
            # the device's name for environment.json, in a run that has torch; what ranks that sort tell each other;
            # what checks training's gradients; a loss, loops and loaders of torch's own; a group's store
            own = ("losses", "micro_batches", "step_loader", "agree", "agreement", "scaled")
            rooms = ("ddpsched.run", "ddpsched.sort.ranks", *(f"ddpsched.integrations.{name}" for name in own))
            allowed = importer in rooms or "ddpsched.certify." in importer
            assert imported.split(".")[0] not in ("torch", "transformers") or allowed, f"{importer} imports {imported}"


def test_the_floor_test_can_fail() -> None:
    assert faults("ddpsched.planning.cost", "ddpsched.training.loss")
    assert faults("ddpsched.planning.cost", "ddpsched.planning.planner")
    assert faults("ddpsched.plan", "ddpsched.planning.cost")
    assert faults("ddpsched.training.loss", "ddpsched.run")
    assert faults("ddpsched.training.loss", "ddpsched.planning.cost") is None


def test_imports_are_read_whatever_their_form(tmp_path: Path) -> None:
    path = tmp_path / "module.py"
    path.write_text("import torch.nn\nfrom ddpsched.training import loss\ndef f():\n    from ddpsched import run\n")
    assert {"torch.nn", "ddpsched.training.loss", "ddpsched.run"} <= imports(path)


def test_analysis_imports_records_alone() -> None:
    allowed = {"ddpsched.records", "ddpsched.errors", "ddpsched.run_folder", "ddpsched.terminal"}
    for path in (ROOT / "analysis").rglob("*.py"):
        ours = {name for name in imports(path) if name.startswith("ddpsched")}
        assert ours <= allowed, f"{path.name} imports {sorted(ours - allowed)}"
        assert not {name for name in imports(path) if name.split(".")[0] == "torch"}


@pytest.mark.parametrize(
    "code",
    [
        "import ddpsched.cli",
        "import ddpsched; ddpsched.solve([[1, 2], [1, 3]], 2)",
        "import ddpsched; ddpsched.BatchSampler([3, 4], 2, ddpsched.World(0, 2))",
        "import ddpsched; ddpsched.PoolStream(['a'], len)",
        "import ddpsched.run, ddpsched.planning.simulated",
        "import ddpsched.peers.plans, ddpsched.compare.command",
        "import ddpsched.certify.verdict, ddpsched.certify.streams, ddpsched.certify.likeness",
        "import ddpsched.certify.world, ddpsched.certify.command",
    ],
)
def test_planning_and_help_import_no_torch(code: str) -> None:
    check = f"{code}\nimport sys\nsys.exit('torch' in sys.modules or 'transformers' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", check], cwd=ROOT).returncode == 0


def test_the_readmes_tree_is_true() -> None:
    """Every file it names is there, and every module of the package is named, itself or by its folder."""
    tree = (ROOT / "README.md").read_text(encoding="utf-8").split("## The house")[1].split("```")[1]
    named: set[str] = set()
    folders: list[str] = []
    for line in filter(str.strip, tree.splitlines()):
        depth, name = (len(line) - len(line.lstrip())) // 2, line.split()[0]
        folders = folders[:depth]
        path = "".join(folders) + name
        assert (ROOT / path).exists(), f"README names {path}"
        named.add(path.rstrip("/"))
        if name.endswith("/"):
            folders.append(name)
    for path in FILES:
        own = path.relative_to(ROOT)
        if own.name not in ("__init__.py", "__main__.py"):
            rooms = {str(own), *(str(parent) for parent in own.parents if len(parent.parts) > 1)}
            rooms -= {"ddpsched/planning", "ddpsched/training"}
            assert rooms & named, f"README's tree leaves out {own}"
