"""Phrases of the report that depend on its numbers."""

from typing import Any

ABSENT = "–"  # a number in a table that was not measured
JUDGED = ("faster", "slower")  # verdicts on a time that differs


def percent(value: float | None, digits: int = 1) -> str:
    """Return a share as a percentage.

    >>> percent(0.1234)
    '12.3 %'
    """
    return ABSENT if value is None else f"{_fixed(100 * value, digits)} %"


def number(value: float | None, digits: int = 2) -> str:
    """Return a plain number with that many decimals."""
    return ABSENT if value is None else _fixed(value, digits)


def _fixed(value: float, digits: int, sign: str = "-") -> str:
    """Return fixed decimals with a minus sign for a hyphen, and none before a zero."""
    return f"{round(value, digits) + 0.0:{sign}.{digits}f}".replace("-", "−")


def duration(seconds: float | None) -> str:
    """Return seconds in s, ms or µs.

    >>> duration(0.0123), duration(4.2e-5), duration(12.0)
    ('12.3 ms', '42.0 µs', '12.0 s')
    """
    if seconds is None:
        return ABSENT
    for unit, size in (("s", 1.0), ("ms", 1e-3)):
        if abs(seconds) >= size:
            return _three(seconds / size, unit)
    return _three(seconds * 1e6, "µs")


def size(num_bytes: float | None) -> str:
    """Return bytes in MiB or GiB."""
    if num_bytes is None:
        return ABSENT
    return _three(num_bytes / 2**30, "GiB") if num_bytes >= 2**30 else _three(num_bytes / 2**20, "MiB")


def _three(value: float, unit: str) -> str:
    digits = 0 if abs(value) >= 100 else 1 if abs(value) >= 10 else 2
    return f"{value:.{digits}f} {unit}"


def change(row: dict[str, Any], less: str = "shorter", more: str = "longer") -> str:
    """Return a ratio as a phrase: shorter or longer by so much, or its verdict where it has another one.

    >>> change({"ratio": 0.88, "low": 0.86, "high": 0.9})
    'shorter by 12.0 % (95 % interval 10.0 % to 14.0 %)'
    >>> change({"ratio": 1.01, "low": 0.99, "high": 1.03})
    'not measurably different (+1.0 %, 95 % interval −1.0 % to +3.0 %)'
    >>> change({"ratio": 0.97, "low": 0.95, "high": 0.99, "verdict": "not told apart from A/A"})
    'not told apart from A/A (−3.0 %, 95 % interval −5.0 % to −1.0 %)'
    """
    ratio, low, high = row.get("ratio"), row.get("low"), row.get("high")
    if ratio is None:
        return "not measured"
    if low is None or high is None:
        why = row.get("reason") or "too few steps"
        return f"{less if ratio < 1 else more} by {percent(abs(ratio - 1))} (no interval: {why})"
    if low == high == 1:
        return "exactly the same"
    verdict = row.get("verdict") or ("not measurably different" if low <= 1 <= high else "")
    if verdict not in ("", *JUDGED):
        return f"{verdict} ({signed(ratio - 1)}, 95 % interval {signed(low - 1)} to {signed(high - 1)})"
    word, near, far = (less, 1 - high, 1 - low) if ratio < 1 else (more, low - 1, high - 1)
    return f"{word} by {percent(abs(ratio - 1))} (95 % interval {percent(near)} to {percent(far)})"


def signed(value: float | None) -> str:
    """Return a change as a percentage with its sign."""
    return ABSENT if value is None else f"{_fixed(100 * value, 1, sign='+')} %"


def interval(row: dict[str, Any] | None) -> str:
    """Return a ratio for a table: ``0.88 (0.86 to 0.90)``."""
    if row is None or row.get("ratio") is None:
        return ABSENT
    if row.get("low") is None:
        return number(row["ratio"])
    return f"{number(row['ratio'])} ({number(row['low'])} to {number(row['high'])})"


def listed(items: list[str]) -> str:
    """Return ``a``, ``a and b`` or ``a, b and c``; ``none`` without items."""
    return " and ".join(filter(None, (", ".join(items[:-1]), items[-1]))) if items else "none"


def tracking(r: float | None) -> str:
    """Return a phrase on Pearson's r of predicted cost and compute time."""
    if r is None:
        return "cannot be held against the compute time"
    how = "closely tracks" if r > 0.9 else "tracks in part" if r > 0.5 else "hardly tracks"
    return f"{how} the compute time (r = {number(r, 3)})"


def mismatch(arm: dict[str, Any], static: dict[str, Any], tokens: dict[str, Any], time: dict[str, Any]) -> str:
    """Return sentences on why the largest rank's time changed by another factor than its padded tokens."""
    padded, seconds = tokens.get("ratio"), time.get("ratio")
    if padded is None or seconds is None or not static.get("max_compute_mean_s") or static.get("fixed_s") is None:
        return "too little was measured to hold time against tokens."
    fixed = max(0.0, static["fixed_s"]) / static["max_compute_mean_s"]
    expected = fixed + (1 - fixed) * padded
    text = (
        f"the largest rank's padded tokens are {number(padded)} of static's, its compute time {number(seconds)}. "
        f"The fixed part of a micro-batch is {percent(fixed)} of static's longest compute time and does not shrink, "
        f"which alone would give {number(expected)}."
    )
    slope, base = arm.get("s_per_token"), static.get("s_per_token")
    if slope and base and abs(seconds - expected) > 0.03:
        text += (
            f" The rest goes with the time per padded token, {number(slope / base)} of static's: smaller matrices, "
            "a machine slower just then, or ranks on one machine that slow each other while all of them compute "
            "(experiments.benchmarks.pair measures whether they do)."
        )
    return text


def verdict(holds: bool | None) -> str:
    """Return a conclusion's outcome: yes, no or not measured."""
    return {True: "yes", False: "no", None: "not measured"}[holds]


def significant(value: float | None) -> str:
    """Return three significant digits, in Python's general format."""
    return ABSENT if value is None else f"{value:.3g}".replace("-", "−")


def outcome(step: dict[str, Any]) -> str:
    """Return a clause on an arm's change of the step time."""
    ratio, low, high = step.get("ratio"), step.get("low"), step.get("high")
    if ratio is None or low is None or high is None:
        return f"cannot be judged by its step time ({step.get('reason') or 'too few measured steps'})"
    verdict = step.get("verdict") or ("not told apart from static" if low <= 1 <= high else "")
    if verdict not in ("", *JUDGED):
        return f"has a step time that is {verdict}"
    return f"makes the step {'shorter' if ratio < 1 else 'longer'} by {percent(abs(ratio - 1))}"


def overhead(arm: dict[str, Any]) -> str:
    """Return sentences on the wait for plans, and on the cost of planning if it were not hidden."""
    share = arm.get("plan_wait_share")
    parts = [arm.get(f"{part}_mean_s") for part in ("offer", "exchange", "solve")]
    if share is None:
        return "the wait for plans was not measured."
    verdict = "stays under" if share < 0.01 else "exceeds"
    beside = sum(part for part in parts if part is not None)
    step = arm.get("step_mean_s")
    rest = f" On the critical path, planning would take {percent(beside / step, 2)} of a step." if step else ""
    return f"the wait for plans {verdict} 1 % of a step ({percent(share, 3)}).{rest}"


def shift(arm: dict[str, Any]) -> str:
    """Return sentences on how the policy changes the lengths that are trained together."""
    drift, distance, p, r = (
        arm.get(key) for key in ("length_drift", "step_length_ks", "step_length_p", "count_length_r")
    )
    if drift is None or distance is None or p is None:
        return "there is nothing to compare with."
    steps = "differ measurably from" if p < 0.05 else "cannot be told from" if distance else "are exactly"
    ranks = ""
    if r is not None and abs(r) > 0.1:
        ranks = f" {'Larger' if r < 0 else 'Smaller'} counts go with shorter samples (r = {number(r)})."
    late = "do not differ in mean length by more than 5 %" if abs(drift) < 0.05 else "differ in mean length"
    return (
        f"the mean lengths of its steps {steps} those of static (distance {number(distance, 3)}); "
        f"early and late steps {late} ({signed(drift)}).{ranks}"
    )


def learning(arms: list[dict[str, Any]]) -> str:
    """Return a sentence on the spread of dev accuracies, and on arms not above the majority."""
    scores = [arm["dev_accuracy"] for arm in arms]
    if None in scores:
        return "Dev accuracy was not measured for every arm."
    spread = max(scores) - min(scores)
    alike = f"The arms' dev accuracies lie {number(100 * spread, 1)} points apart"
    informed = [arm for arm in arms if arm["dev_majority"] is not None]
    floor = [arm["arm"] for arm in informed if arm["dev_accuracy"] <= arm["dev_majority"]]
    return f"{alike}; not above the majority: {listed(floor)}." if floor else f"{alike}, all above the majority."
