"""The comparison of policies: its conclusions, computed as the others are."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from report.conclusions import Claim, Conclusion, judged

Setting = Mapping[str, Any]
BIAS = 0.05  # below it steps are put together as good as by chance
MATERIAL = 0.05  # of static's loss; less may be chance, or which samples were the last
CLAIMS = ("faster", "less padding", "better balance", "unbiased", "lower loss in equal time", "dev loss kept")


def conclusions(settings: Sequence[Setting]) -> list[Conclusion]:
    """What each arm does against static, in every setting that has one."""
    return [judged(setting["slug"], setting["label"], claim) for setting in settings for claim in _claims(setting)]


def tally(found: Sequence[Conclusion]) -> dict[str, list[tuple[int, int]]]:
    """For each arm and each of ``CLAIMS``: in how many settings it holds, of those that have the numbers."""
    arms = dict.fromkeys(c["id"].partition(": ")[0] for c in found)
    table: dict[str, list[tuple[int, int]]] = {}
    for arm in arms:
        of_arm = [[c["holds"] for c in found if c["id"].startswith(f"{arm}: {claim}@")] for claim in CLAIMS]
        table[arm] = [(held.count(True), len(held) - held.count(None)) for held in of_arm]
    return table


def _claims(setting: Setting) -> Iterator[Claim]:
    static = baseline(setting)
    for row in others(setting) if static else ():
        for claim, (what, value, threshold, above) in zip(CLAIMS, _of_row(row, static or {}), strict=True):
            yield f"{row['arm']}: {claim}", f"{row['arm']}: {what}", value, threshold, above


def _of_row(row: Mapping[str, Any], static: Mapping[str, Any]) -> Iterator[tuple[str, float | None, float, bool]]:
    """What is claimed, value, threshold, and whether the value must lie above it; in the order of ``CLAIMS``."""
    yield "more real tokens a second than static", row.get("speed_low"), 1.0, True
    yield "a smaller share of padding than static", row["padding"], static["padding"], False
    what = "the largest rank's padded tokens nearer to the mean rank's than static's"
    yield what, row["imbalance_tokens"], static["imbalance_tokens"], False
    yield f"no more alike lengths in a step than by chance (order bias below {BIAS})", row["order_bias"], BIAS, False
    what = "a training loss at least 5 % below static's after the same time"
    yield what, _ratio(row, static, "loss_at_equal_s"), 1 - MATERIAL, False
    yield "a dev loss at most 5 % above static's", _ratio(row, static, "dev_loss"), 1 + MATERIAL, False


def _ratio(row: Mapping[str, Any], static: Mapping[str, Any], key: str) -> float | None:
    return None if row.get(key) is None or not static.get(key) else row[key] / static[key]


def baseline(setting: Setting) -> dict[str, Any] | None:
    """The plain static arm's row."""
    return next((row for row in setting["arms"] if row["arm"] == "static"), None)


def others(setting: Setting) -> list[dict[str, Any]]:
    """The rows of the other arms."""
    return [row for row in setting["arms"] if row["arm"] != "static"]


def noise(setting: Setting, key: str = "loss_at_equal") -> float:
    """How far a figure spreads among the arms that train static's samples in static's steps: equal gradients."""
    rows = [row for row in setting["arms"] if row["arm"] == "static" or row.get("same_steps")]
    values = [row[key] for row in rows if row.get(key) is not None]
    return max(values) - min(values) if values else 0.0
