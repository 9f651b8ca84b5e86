"""Runs of policy auto for tests: their config, and what they chose."""

from pathlib import Path
from typing import Any

from ddpsched.config import RunConfig, parse
from ddpsched.records import read_json


def config_of(folder: Path, **more: Any) -> RunConfig:
    table = {
        "outputs": str(folder), "steps": 4, "global_batch": 8, "world_size": 2, "data": {"size": 200},
        "policy": {"kind": "auto"},
    }  # fmt: skip
    return parse({**table, **more})


def chosen(folder: Path) -> dict[str, Any]:
    found: dict[str, Any] = read_json(folder / "environment.json")["auto"]
    return found
