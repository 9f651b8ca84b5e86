"""Seconds as a clock shows them."""

import math
from datetime import UTC, datetime, timedelta


def clock(seconds: float | None) -> str:
    """Return seconds as hours, minutes and seconds; a dash for None.

    >>> clock(75.4), clock(90_000), clock(None)
    ('0:01:15', '1 d 1:00:00', '-')
    """
    if seconds is None:
        return "-"
    days, rest = divmod(round(max(0.0, seconds)), 86_400)
    return f"{days:,} d " * bool(days) + str(timedelta(seconds=rest))


def seconds_since(date: str | None) -> float:
    """Return the seconds since a date of status.json; without end where there is none."""
    try:
        return (datetime.now(UTC) - datetime.fromisoformat(date or "")).total_seconds()
    except (ValueError, OverflowError, TypeError):  # a damaged one names no moment
        return math.inf


def local_time(date: str | None) -> str:
    """Return a date of status.json in this machine's time zone, to the minute; a dash where there is none."""
    try:
        return datetime.fromisoformat(date or "").astimezone().strftime("%Y-%m-%d %H:%M")
    except (ValueError, OverflowError, OSError):  # a damaged one names no moment
        return "-"
