"""Phrases of the report that depend on its numbers."""

import re
from collections.abc import Iterable, Mapping
from typing import Any

ABSENT = "–"  # a number in a table that was not measured
JUDGED = ("faster", "slower")  # verdicts on a time that differs


def file_name(text: str) -> str:
    """Return a text as the name of a file.

    >>> file_name("NVIDIA H100 80GB HBM3")
    'nvidia-h100-80gb-hbm3'
    """
    return re.sub(r"[^a-z0-9]+", "-", text.lower()).strip("-")


def processor(device: str) -> str:
    """Return a device's name without marks and filler, for a heading.

    >>> processor("Intel(R) Xeon(R) Processor")
    'Intel Xeon'
    """
    return " ".join(re.sub(r"\((R|TM)\)|\b(Processor|CPU)\b", "", device).split())


def are(count: int) -> str:
    """Return a number of things with its verb.

    >>> are(1), are(37)
    ('1 is', '37 are')
    """
    return f"{count} {'is' if count == 1 else 'are'}"


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


def interval(row: Mapping[str, Any] | None, digits: int = 2) -> str:
    """Return a ratio for a table: ``0.88 (0.86 to 0.90)``."""
    if row is None or row.get("ratio") is None:
        return ABSENT
    if row.get("low") is None:
        return number(row["ratio"], digits)
    return f"{number(row['ratio'], digits)} ({number(row['low'], digits)} to {number(row['high'], digits)})"


def listed(items: list[str]) -> str:
    """Return ``a``, ``a and b`` or ``a, b and c``; ``none`` without items."""
    return " and ".join(filter(None, (", ".join(items[:-1]), items[-1]))) if items else "none"


def verdict(conclusion: Mapping[str, Any]) -> str:
    """Return a conclusion's outcome: yes, no, undecided (launches differ by too much to say) or not measured."""
    if conclusion["holds"] is None:
        return "not measured" if conclusion["value"] is None else "undecided"
    return "yes" if conclusion["holds"] else "no"


def significant(value: float | None) -> str:
    """Return three significant digits, in Python's general format."""
    return ABSENT if value is None else f"{value:.3g}".replace("-", "−")


def with_statics_gradient(arms: Iterable[str]) -> str | None:
    """Return the first of these labels that is ``balanced`` on static's own order, or None.

    >>> with_statics_gradient(["static", "balanced (curriculum)", "balanced (M = 4)"])
    'balanced (M = 4)'
    """
    return next((arm for arm in arms if re.fullmatch(r"balanced( \(M = \d+\))?", arm)), None)


def learning(arms: list[dict[str, Any]]) -> str:
    """Return what dev accuracies say: their spread, the share of the largest class, whose gradient is static's."""
    same = with_statics_gradient(arm["arm"] for arm in arms)
    starts = "so its losses start equal and part only as dropout masks and rounding differ."
    because = f" `{same}` computes the gradient of `static`, {starts}" if same else ""
    return _accuracies(arms) + because


def _accuracies(arms: list[dict[str, Any]]) -> str:
    scores = [arm["dev_accuracy"] for arm in arms]
    if None in scores:
        return "Dev accuracy was not measured for every arm."
    said = f"The arms' dev accuracies are {percent(min(scores))} to {percent(max(scores))}"
    shares = [arm["dev_majority"] for arm in arms if arm["dev_majority"] is not None]
    return f"{said}; the largest class has {percent(max(shares))}." if shares else f"{said}."
