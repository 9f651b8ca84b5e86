"""Conclusions on the comparison of policies, computed from its tables."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from analysis.settings import AA
from report.conclusions import Claim, Conclusion, judged

Setting = Mapping[str, Any]
BIAS = 0.05  # of order bias; below it lengths in a step are about as alike as by chance
MATERIAL = 0.05  # of static's loss; a smaller difference may be chance, or due to the last samples
CLAIMS = ("faster", "less padding", "better balance", "unbiased", "lower loss in equal time", "dev loss kept")
TIMED = ("faster", "lower loss in equal time")  # only where arms ran in turn


def conclusions(settings: Sequence[Setting]) -> list[Conclusion]:
    """Return the conclusions on each arm against static, in all settings that have static."""
    return [judged(setting["slug"], setting["label"], claim) for setting in settings for claim in _claims(setting)]


def tally(judgements: Sequence[Conclusion]) -> dict[str, list[tuple[int, int]]]:
    """Return for each arm and each of ``CLAIMS`` the settings in which it holds, and those that have the numbers."""
    arms = dict.fromkeys(c["id"].partition(": ")[0] for c in judgements)
    table: dict[str, list[tuple[int, int]]] = {}
    for arm in arms:
        of_arm = [[c["holds"] for c in judgements if c["id"].startswith(f"{arm}: {claim}@")] for claim in CLAIMS]
        table[arm] = [(held.count(True), len(held) - held.count(None)) for held in of_arm]
    return table


def _claims(setting: Setting) -> Iterator[Claim]:
    static = baseline(setting)
    for row in others(setting) if static else ():
        for claim, (what, value, threshold, above) in zip(CLAIMS, _of_row(row, static or {}), strict=True):
            known = value if claim not in TIMED or in_turn(setting) else None
            yield f"{row['arm']}: {claim}", f"{row['arm']}: {what}", known, threshold, above


def _of_row(row: Mapping[str, Any], static: Mapping[str, Any]) -> Iterator[tuple[str, float | None, float, bool]]:
    """Yield statement, value, threshold, and whether the value must lie above it, in the order of ``CLAIMS``."""
    # the interval's lower end; a ratio that is not told apart from A/A is not above 1
    low = row.get("speed_low")
    yield "more real tokens a second than static", low if row.get("verdict") == "faster" else _at_most_1(low), 1.0, True
    yield "a smaller share of padding than static", row["padding"], static["padding"], False
    what = "the largest rank's padded tokens nearer to the mean rank's than static's"
    yield what, row["imbalance_tokens"], static["imbalance_tokens"], False
    yield f"no more alike lengths in a step than by chance (order bias below {BIAS})", row["order_bias"], BIAS, False
    what = "a training loss at least 5 % below static's after the same time"
    yield what, _ratio(row, static, "loss_at_equal_s"), 1 - MATERIAL, False
    yield "a dev loss at most 5 % above static's", _ratio(row, static, "dev_loss"), 1 + MATERIAL, False


def _at_most_1(value: float | None) -> float | None:
    return None if value is None else min(1.0, value)


def _ratio(row: Mapping[str, Any], static: Mapping[str, Any], key: str) -> float | None:
    return None if row.get(key) is None or not static.get(key) else row[key] / static[key]


def in_turn(setting: Setting) -> bool:
    """Return whether the arms ran in turn, without which their times are not compared."""
    return bool(setting.get("in_turn", setting["environment"].get("launch")))


def baseline(setting: Setting) -> dict[str, Any] | None:
    """Return the plain static arm's row, or None."""
    return next((row for row in setting["arms"] if row["arm"] == "static"), None)


def others(setting: Setting) -> list[dict[str, Any]]:
    """Return the rows of the other arms, without static's second run."""
    return [row for row in setting["arms"] if row["arm"] not in ("static", AA)]


def noise(setting: Setting, key: str = "loss_at_equal") -> float:
    """Return the spread of a figure over the arms that train static's samples in static's steps: equal gradients."""
    rows = [row for row in setting["arms"] if row["arm"] == "static" or row.get("same_steps")]
    values = [row[key] for row in rows if row.get(key) is not None]
    return max(values) - min(values) if values else 0.0
