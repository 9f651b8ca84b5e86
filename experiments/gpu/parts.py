"""The parts by name, in the order of their worth: a call that is cut off has the first ones."""

from experiments.gpu.sizes import Size

LIMITS = {"device": 60, "tests": 150, "calibration": 90, "speed": 120, "compiled": 170}  # seconds of one part, by kind


def parts(size: Size) -> list[str]:
    """Return the names of all parts: a kind, and behind it which one.

    >>> from experiments.gpu.sizes import SMOKE
    >>> parts(SMOKE)[2:5]
    ['calibration distilbert', 'calibration gpt2', 'speed distilbert 2 8']
    """
    calibrations = [f"calibration {model}" for model in dict.fromkeys(model for model, _, _ in size.speed)]
    speed = [f"speed {model} {ranks} {batch}" for model, ranks, batch in size.speed]
    return ["device", "tests", *calibrations, *speed[:2], "compiled", *speed[2:]]
