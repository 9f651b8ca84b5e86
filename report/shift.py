"""The study of lengths that change their law: its three laws, and the two calibrations that it compares."""

import re

from report.measures import Row, arms, within
from report.results import Measured

LAWS = {"SST-2": range(20), "GSM8K": range(20, 40), "SST-2 again": range(40, 60)}  # steps of each
STALE, REFITTED = "short", "long"  # what the files of the calibrations are named by


def calibrations(m: Measured) -> tuple[str, str] | None:
    """Return the arms that plan by the stale and by the refitted calibration; None in other studies."""
    found = [next((arm for arm in arms(m) if word in arm), None) for word in (STALE, REFITTED)]
    return None if None in found else (str(found[0]), str(found[1]))


def refitted_over_stale(m: Measured, law: str) -> Row:
    """Return the step time by the refitted calibration over that by the stale one, of the steps of a law."""
    both = calibrations(m)
    return {} if both is None else within(m, both[1], LAWS[law], baseline=both[0])


def named(arm: str) -> str:
    """Return an arm's label, with what its calibration is in place of its file's name."""
    for word, meant in ((STALE, "stale"), (REFITTED, "refitted")):
        arm = re.sub(rf"\b{word}\b", meant, arm)
    return arm
