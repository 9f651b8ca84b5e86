"""The commands of compose.yaml are targets of the Makefile, and those of data parallelism start what they name."""

import re
import subprocess
from pathlib import Path

import pytest
import yaml

from ddpsched.config import load

ROOT = Path(__file__).parents[1]


def test_each_service_is_a_target_of_the_makefile() -> None:
    compose = yaml.safe_load((ROOT / "compose.yaml").read_text(encoding="utf-8"))
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    targets = {name for line in re.findall(r"^([a-z][a-z -]*):", makefile, re.MULTILINE) for name in line.split()}
    commands = {name: service["command"] for name, service in compose["services"].items()}
    assert commands == {name: [name] for name in commands}
    assert set(commands) <= targets
    assert {"naive", "overlap", "bucketed"} <= set(commands)
    for service in compose["services"].values():
        assert service["build"] == "."
        assert service["volumes"] == ["./outputs:/ddpsched/outputs"]


def test_the_image_installs_what_the_makefile_does() -> None:
    text = (ROOT / "Dockerfile").read_text(encoding="utf-8")
    assert "make VENV=/opt/ddpsched /opt/ddpsched/installed" in text
    assert 'ENTRYPOINT ["make", "VENV=/opt/ddpsched"]' in text


@pytest.mark.parametrize("kind", ["naive", "overlap", "bucketed"])
def test_data_parallelism_in_its_three_forms(kind: str, tmp_path: Path) -> None:
    (tmp_path / "installed").touch()
    words = ["make", "--dry-run", "--assume-old", "pyproject.toml", "--assume-old", "constraints.txt", kind]
    said = subprocess.run(
        [*words, f"VENV={tmp_path}"], cwd=ROOT, check=True, capture_output=True, text=True
    ).stdout.replace("\\\n", "")
    assert "torchrun --standalone --nproc-per-node 2 -m experiments.train" in said
    assert f"-m analysis.timeline outputs/data-parallel/{kind}" in said
    assert f'echo "run: outputs/data-parallel/{kind}"' in said
    assert load(ROOT / "experiments" / "examples" / "data_parallel.toml", [f"sync.kind={kind}"]).sync.kind == kind
