"""Learning-rate rules: the factor on the base rate, by the number of the step and by its size."""

import math
from collections.abc import Callable


def linear_warmup(total_steps: int, warmup: float) -> Callable[[int], float]:
    """Return a rule that rises linearly over the first ``warmup`` share of the steps, then falls linearly to 0.

    >>> rule = linear_warmup(10, 0.2)
    >>> [round(rule(step), 2) for step in (0, 1, 2, 6, 9)]
    [0.5, 1.0, 1.0, 0.5, 0.12]
    """
    rise = round(total_steps * warmup)

    def factor(step: int) -> float:
        if step < rise:
            return (step + 1) / rise
        return max(0.0, (total_steps - step) / max(1, total_steps - rise))

    return factor


def linear(size: float, reference: float) -> float:
    """Return size / reference: a step over k times as much moves k times as far, as k small SGD steps would.

    ``size``, ``reference``: > 0, in the same unit, samples or tokens of a global batch.
    Source: Goyal et al., Accurate, Large Minibatch SGD (2017), arXiv:1706.02677.

    >>> linear(10, 2), linear(1, 2)
    (5.0, 0.5)
    """
    return size / reference


def square_root(size: float, reference: float) -> float:
    """Return sqrt(size / reference): it keeps the variance of the update's noise, and suits Adam's normalised steps.

    Units as in :func:`linear`. Source: Krizhevsky, One weird trick (2014), arXiv:1404.5997; for Adam: Malladi et al.,
    On the SDEs and Scaling Rules for Adaptive Gradient Algorithms (2022), arXiv:2205.10287.

    >>> square_root(8, 2), square_root(1, 4)
    (2.0, 0.5)
    """
    return math.sqrt(size / reference)


# by the names that a config's lr.kind has for them
RULES: dict[str, Callable[[float, float], float]] = {"linear": linear, "sqrt": square_root}
