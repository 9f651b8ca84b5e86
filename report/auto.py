"""Policy auto against the best of its candidates: the rows of experiments.benchmarks.auto."""

from collections.abc import Mapping, Sequence
from typing import Any

from report.wording import duration, percent

HEADINGS = (
    "model, data, ranks", "B", "steps", "taken", "its time", "fastest measured", "taken / fastest", "A/A",
    "worst prediction", "in their bands", "first call", "choosing",
)  # fmt: skip


def cells(row: Mapping[str, Any]) -> list[str]:
    """Return the cells of a setting; times are over static's."""
    menu = "" if row["shapes"] is None else f", N = {row['shapes']}"
    return [
        f"{row['model']}, {row['data']}, {row['world_size']} {row['ranks']}{menu}", str(row["global_batch"]),
        str(row["steps"]), row["chosen"], f"{row['taken']:.3f}", f"{row['best']} {row['least']:.3f}",
        f"{row['taken'] / row['least']:.3f}", f"{row['again']:.3f}", f"{row['error']:+.1%} ({row['worst']})",
        in_bands([row]), duration(row["first_s"]), percent(row["choosing"], 2),
    ]  # fmt: skip


def in_bands(rows: Sequence[Mapping[str, Any]]) -> str:
    """Return how many measured ratios lie in the 95 % band of their prediction, of all that were predicted."""
    inside = [
        abs(each["predicted"] / each["ratio"] - 1) <= band[each["name"]]
        for row in rows
        for band in [{each["name"]: each["band"] for each in row["ranking"]}]
        for each in row["measured"]
        if each["predicted"] is not None
    ]
    return f"{sum(inside)} of {len(inside)}"
