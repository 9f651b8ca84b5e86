"""The study of lengths that change their law."""

from report.shift import named


def test_only_the_name_of_a_calibration_is_replaced() -> None:
    said = named("balanced (M = 4, calibrated, long) lowers the longest compute time")
    assert said == "balanced (M = 4, calibrated, refitted) lowers the longest compute time"
    assert named("balanced (M = 4, calibrated, short)") == "balanced (M = 4, calibrated, stale)"
