"""Policy auto against the best of its candidates: the rows of experiments.benchmarks.auto."""

from collections.abc import Mapping
from typing import Any

from report.wording import duration, percent

HEADINGS = (
    "model, data, ranks", "B", "steps", "taken", "its time", "fastest measured", "taken / fastest", "A/A",
    "worst prediction", "first call", "choosing",
)  # fmt: skip


def cells(row: Mapping[str, Any]) -> list[str]:
    """Return the cells of a setting; times are over static's."""
    menu = "" if row["shapes"] is None else f", N = {row['shapes']}"
    return [
        f"{row['model']}, {row['data']}, {row['world_size']} {row['ranks']}{menu}", str(row["global_batch"]),
        str(row["steps"]), row["chosen"], f"{row['taken']:.3f}", f"{row['best']} {row['least']:.3f}",
        f"{row['taken'] / row['least']:.3f}", f"{row['again']:.3f}", f"{row['error']:+.1%} ({row['worst']})",
        duration(row["first_s"]), percent(row["choosing"], 2),
    ]  # fmt: skip
