"""`ddpsched plan` called as a user does, for tests."""

import json
from pathlib import Path
from typing import Any

import numpy as np
from typer.testing import CliRunner, Result

from ddpsched.cli import app
from ddpsched.costs.calibration import Calibration, Identity, Residuals, Seconds
from ddpsched.costs.memory_cap import MemoryModel
from ddpsched.data.embedded.length_histogram import sst2_lengths

SIZES = ["--world-size", "4", "--global-batch", "32"]


SAME = ["static", "minmax", "balanced", "balanced, M = 4", "packed"]  # B samples in every step, in this order


FITTED = ["token_budget", "bins", "pool", "pool, packed"]  # B samples on average


ARMS = ["padded to the longest", *SAME, *FITTED, "static, length_grouped"]


COUNTS = ("yardstick", "padding_efficiency", "imbalance", "order_bias", "samples_cv", "microbatches", "gap")


def fill(folder: Path) -> Path:
    """Write lengths like SST-2's, no multiple of the global batch, and a calibration."""
    np.save(folder / "lengths.npy", sst2_lengths(1003, np.random.default_rng(0)))
    off = Residuals(train_mean=0, train_max=0, held_out_mean=0, held_out_max=0, worst_underestimate=0)
    calibration = Calibration(
        identity=Identity(model="tiny", max_length=128), versions={}, seconds_residuals=off, bytes_residuals=off,
        seconds=Seconds(alpha=1e-3, beta=1e-4, gamma=1e-7, delta=0, floor=0), points=[],
        bytes=MemoryModel(base=1e6, per_sample=0, per_token=1000, per_square=0),
    )  # fmt: skip
    (folder / "calibration.json").write_text(calibration.model_dump_json(), encoding="utf-8")
    return folder


def call(folder: Path, *words: str, sizes: list[str] = SIZES) -> Result:
    return CliRunner().invoke(app, ["plan", str(folder / "lengths.npy"), *sizes, *words])


def rows(folder: Path, *words: str, **rest: Any) -> dict[str, dict[str, Any]]:
    """Return the rows of --json by arm."""
    result = call(folder, *words, "--json", **rest)
    assert result.exit_code == 0, result.output
    found = json.loads(result.stdout)["rows"]
    assert len({row["arm"] for row in found}) == len(found)
    return {row["arm"]: row for row in found}
