"""The parts by name, in the order of their worth: a call that is cut off has the first ones."""

from experiments.gpu.sizes import Size

# seconds of one part, by kind, and more where time is left over; all parts together have nine minutes
LIMITS = {"device": 30, "attention": 25, "calibration": 30, "speed": 45, "tests": 40, "compiled": 100, "graphs": 60}


def within(left: float, limit: float, later: float) -> float:
    """Return the seconds that a part may take of the ``left`` ones: its limit, and what ``later`` parts leave over.

    ``later``: the limits of the parts to come, summed. So a second call, with few parts to do, gives each more time.

    >>> within(500, 100, 450), within(500, 100, 60), within(40, 100, 60)
    (100, 440, 40)
    """
    return min(left, max(limit, left - later))


def parts(size: Size) -> list[str]:
    """Return the names of all parts: a kind, and behind it which one.

    >>> from experiments.gpu.sizes import SMOKE
    >>> parts(SMOKE)[1:4]
    ['attention', 'calibration distilbert', 'calibration gpt2']
    """
    calibrations = [f"calibration {model}" for model in dict.fromkeys(model for model, _, _ in size.speed)]
    speed = [f"speed {model} {ranks} {batch}" for model, ranks, batch in size.speed]
    return ["device", "attention", *calibrations, *speed[:2], "tests", "compiled", *speed[2:], "graphs"]
