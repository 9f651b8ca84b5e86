"""Training loss of a run against samples and against time, which compares arms whose steps differ in size.

A step's loss is the mean over all ranks' samples (or label tokens, for a causal
language model). Between two steps all sums are interpolated linearly, so that a
window spans exactly the requested number of samples, and not a number of steps.
"""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pandas as pd

Array = npt.NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class Curve:
    """Sums since the start, each (steps + 1,) and beginning with 0.

    Attributes:
        seen: samples, or real tokens where samples are not the same in all arms.
        seconds: step times.
        weight: the samples or label tokens that losses are means over.
        loss: losses times weight.
    """

    seen: Array
    seconds: Array
    weight: Array
    loss: Array

    @property
    def end(self) -> float:
        """Samples (or real tokens) of the whole run."""
        return float(self.seen[-1])

    @property
    def end_s(self) -> float:
        """Seconds of the whole run."""
        return float(self.seconds[-1])

    def seconds_at(self, seen: npt.ArrayLike) -> Array:
        """Return the seconds after which so many samples were seen."""
        return np.interp(np.asarray(seen, dtype=np.float64), self.seen, self.seconds)

    def seen_at(self, seconds: npt.ArrayLike) -> Array:
        """Return the samples seen after so many seconds."""
        return np.interp(np.asarray(seconds, dtype=np.float64), self.seconds, self.seen)

    def smoothed(self, seen: npt.ArrayLike, window: float) -> Array:
        """Return the mean loss of the last ``window`` samples before each point, or of all where there were fewer."""
        to = np.asarray(seen, dtype=np.float64)
        ends = np.stack([np.maximum(to - window, 0.0), to])
        loss, weight = (np.diff(np.interp(ends, self.seen, sums), axis=0)[0] for sums in (self.loss, self.weight))
        return np.divide(loss, weight, out=np.full_like(loss, np.nan), where=weight > 0)


def curve(steps: pd.DataFrame, unit: str = "num_samples") -> Curve | None:
    """Return the curve of a run's ``metrics.per_step`` table; ``unit`` is the column of samples or real tokens.

    Steps without a measured loss are left out of the loss alone. None where no step has one.
    """
    if not steps["loss"].notna().any():
        return None
    weight = steps["loss_weight"].where(steps["loss"].notna(), 0.0)
    loss = (steps["loss"] * weight).fillna(0.0)
    columns = {"seen": steps[unit], "seconds": steps["step_s"], "weight": weight, "loss": loss}
    return Curve(**{name: np.cumsum([0.0, *column.astype("float64")]) for name, column in columns.items()})


def points(curve: Curve, window: float, number: int = 200) -> Array:
    """Return the points to draw, (number,): evenly from the first full window to the end."""
    return np.linspace(min(window, curve.end), curve.end, number)
