"""Small runs for tests."""

from pathlib import Path
from typing import Any

import pandas as pd

from ddpsched.config import RunConfig, dump, parse
from ddpsched.run_folder import RunFolder


def config_of(outputs: Path, executor: str = "virtual", policy: str = "minmax", **values: Any) -> RunConfig:
    return parse(
        {
            "name": f"{policy}-{executor}",
            "outputs": str(outputs),
            "steps": 4,
            "global_batch": 12,
            "world_size": 2,
            "data": {"size": 100, **values.pop("data", {})},
            "policy": {"kind": policy, **({"prefetch": 12} if policy == "minmax" else {})},
            "executor": {"kind": executor, "timeout_s": 20.0},
            **values,
        }
    )


def folder_of(config: RunConfig) -> RunFolder:
    return RunFolder(config.run_dir, dump(config), overwrite=False)


def records_of(folder: Path) -> pd.DataFrame:
    return pd.read_parquet(folder / "records.parquet")
