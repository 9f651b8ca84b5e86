"""The parts by name, in the order of their worth: a call that is cut off has the first ones."""

from experiments.gpu.sizes import Size

# seconds of one part, by kind
LIMITS = {"device": 40, "attention": 30, "calibration": 50, "speed": 90, "tests": 60, "compiled": 200}


def parts(size: Size) -> list[str]:
    """Return the names of all parts: a kind, and behind it which one.

    >>> from experiments.gpu.sizes import SMOKE
    >>> parts(SMOKE)[1:4]
    ['attention', 'calibration distilbert', 'calibration gpt2']
    """
    calibrations = [f"calibration {model}" for model in dict.fromkeys(model for model, _, _ in size.speed)]
    speed = [f"speed {model} {ranks} {batch}" for model, ranks, batch in size.speed]
    compiled = ["compiled static", "compiled balanced"]
    return ["device", "attention", *calibrations, *speed[:2], "tests", *compiled, *speed[2:]]
