"""Named conclusions, computed from the tables, which a reproduction is compared with.

Each is a plain dict {"id", "setting", "statement", "holds", "value", "threshold"};
``holds`` is None where the numbers it needs were not measured. The ids stay the
same from one study to the next, so two studies can be compared.
"""

from collections.abc import Iterator, Sequence
from typing import Any

from analysis.settings import AA

Conclusion = dict[str, Any]
Setting = dict[str, Any]
# name, statement, value, threshold; the value must lie below the threshold, or above it where the last item is True
Claim = tuple[str, str, float | None, float, bool]

# name, column of the ratios, its description, whether a simulated run has it
LOWERS = (
    ("padded", "max_padded_tokens", "the largest rank's padded tokens", True),
    ("compute", "max_compute_s", "the longest compute time", False),
    ("step", "step_s", "the step time", False),
    ("spread", "std_compute_s", "the spread of compute times", False),
)

WAIT_SHARE = 0.01  # of a step
WAIT_P95_S = 300e-6
PROXY_R = 0.9
DRIFT = 0.05  # of the mean length
ACCURACY = 0.02  # two points
LOSS_DISTANCE = 0.05  # of the mean loss
MEMORY = 1.05  # of static's peak


def conclusions(settings: Sequence[Setting]) -> list[Conclusion]:
    """Return the conclusions of all settings, in order."""
    return [judged(setting["slug"], setting["name"], claim) for setting in settings for claim in _claims(setting)]


def judged(slug: str, label: str, claim: Claim) -> Conclusion:
    """Return the conclusion of a claim: its value compared with its threshold."""
    name, statement, value, threshold, above = claim
    holds = None if value is None else bool(value > threshold if above else value < threshold)
    return {
        "id": f"{name}@{slug}",
        "setting": label,
        "statement": statement,
        "holds": holds,
        "value": value,
        "threshold": threshold,
    }


def ratio(setting: Setting, arm: str, baseline: str, column: str) -> dict[str, Any]:
    """Return the row of ``setting["ratios"]``, or an empty dict."""
    wanted = (arm, baseline, column)
    return next((r for r in setting["ratios"] if (r["arm"], r["baseline"], r["column"]) == wanted), {})


def _claims(setting: Setting) -> Iterator[Claim]:
    arms = {row["arm"]: row for row in setting["arms"]}
    measured = setting["mode"] != "simulated"
    arms.pop(AA, None)
    for arm in arms:
        if arm != "static" and "static" in arms:
            yield from _lowers(setting, arm, "static", arm)
    if {"minmax", "balanced"} <= arms.keys():
        yield from _lowers(setting, "balanced", "minmax", "balanced-below-minmax")
    for arm, row in arms.items():
        if arm != "static":
            drift = row["length_drift"]
            statement = f"{arm}: samples of the same mean length early and late (within 5 %)"
            yield f"{arm}-drift", statement, None if drift is None else abs(drift), DRIFT, False
        if measured:
            yield from _measured(arm, row, arms.get("static"))
    if measured and len(arms) > 1:
        yield from _learning(arms)


def _lowers(setting: Setting, arm: str, baseline: str, name: str) -> Iterator[Claim]:
    for key, column, what, always in LOWERS:
        if always or setting["mode"] != "simulated":
            # the interval's upper end and not the ratio: a difference that noise could make does not count
            row = ratio(setting, arm, baseline, column)
            high = row.get("high")
            if high is not None and row.get("verdict") not in (None, "faster"):  # within the noise of A/A
                high = max(1.0, high)
            yield f"{name}-{key}", f"{arm} lowers {what} against {baseline}", high, 1.0, False


def _measured(arm: str, row: dict[str, Any], static: dict[str, Any] | None) -> Iterator[Claim]:
    """Yield the claims on measured times and memory."""
    statement = f"{arm}: predicted cost tracks compute time (r > 0.9)"
    yield f"{arm}-proxy", statement, row["cost_time_r"], PROXY_R, True
    if arm == "static":
        return
    statement = f"{arm}: plans are waited for under 1 % of the time"
    yield f"{arm}-wait-share", statement, row["plan_wait_share"], WAIT_SHARE, False
    statement = f"{arm}: P95 of the wait for a plan is under 300 µs"
    yield f"{arm}-wait-p95", statement, row["plan_wait_p95_s"], WAIT_P95_S, False
    if static:
        peak, limit = row["memory_max_bytes"], static["memory_max_bytes"]
        statement = f"{arm}: no more peak memory than static (within 5 %)"
        yield f"{arm}-memory", statement, peak / limit if peak is not None and limit else None, MEMORY, False


def _learning(arms: dict[str, dict[str, Any]]) -> Iterator[Claim]:
    scores = [row["dev_accuracy"] for row in arms.values()]
    spread = None if None in scores else max(scores) - min(scores)
    yield "accuracy", "all arms' dev accuracies lie within 2 points", spread, ACCURACY, False
    if {"static", "balanced"} <= arms.keys():
        distance = arms["balanced"].get("loss_distance_early")
        statement = "balanced starts with static's losses (first 10 steps, within 5 %)"
        yield "balanced-loss", statement, distance, LOSS_DISTANCE, False
