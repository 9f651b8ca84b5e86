"""The parts by name, in the order of their worth: a call that is cut off has the first ones."""

from experiments.gpu.sizes import Size

# seconds of one part, by kind; all parts together have nine minutes
LIMITS = {"device": 30, "attention": 25, "calibration": 30, "speed": 45, "tests": 40, "compiled": 100, "graphs": 60}


def parts(size: Size) -> list[str]:
    """Return the names of all parts: a kind, and behind it which one.

    >>> from experiments.gpu.sizes import SMOKE
    >>> parts(SMOKE)[1:4]
    ['attention', 'calibration distilbert', 'calibration gpt2']
    """
    calibrations = [f"calibration {model}" for model in dict.fromkeys(model for model, _, _ in size.speed)]
    speed = [f"speed {model} {ranks} {batch}" for model, ranks, batch in size.speed]
    return ["device", "attention", *calibrations, *speed[:2], "tests", "compiled", *speed[2:], "graphs"]
