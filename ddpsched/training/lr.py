"""Learning-rate rules: the factor on the base rate at each optimizer step."""

from collections.abc import Callable


def linear_warmup(total_steps: int, warmup: float) -> Callable[[int], float]:
    """Rise linearly over the first ``warmup`` share of the steps, then fall linearly to 0 at the end.

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
