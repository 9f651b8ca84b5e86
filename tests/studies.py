"""A small study for tests: two policies and two seeds, on simulated ranks."""

from pathlib import Path

STUDY = """
[base]
steps = 2
global_batch = 8
world_size = 2
executor = { kind = "simulated" }
data = { size = 50 }
[grid]
"policy.kind" = ["static", "minmax"]
seed = [0, 1]
"""


def write_study(tmp_path: Path, text: str = STUDY) -> Path:
    path = tmp_path / "small.toml"
    path.write_text(text)
    return path
