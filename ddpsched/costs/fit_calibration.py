"""From measured points to a calibration: fitted to most of them, judged by those held out."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
from rich.table import Table

from ddpsched.costs.calibration import Bytes, Calibration, Identity, Measured, Residuals, Seconds
from ddpsched.costs.regression import fit_memory, fit_time

MIB = 2**20


def judged(points: Sequence[Measured], identity: Identity, versions: dict[str, str | None]) -> Calibration:
    """Fit both models to the points that are not held out.

    Memory is fitted from above, and then raised by the share that the worst held-out
    point lies over the fit, so that no measured point is left above it. Raises
    DataError for fewer points than a fit needs.
    """
    count, length, held, seconds = _columns(points, lambda p: p.quickest)
    time = fit_time(count[~held], length[~held], seconds[~held])
    needs, memory_residuals = None, None
    if all(point.peak_bytes is not None for point in points):
        peaks = _columns(points, lambda p: p.peak_bytes)[3]
        memory = fit_memory(count[~held], length[~held], peaks[~held])
        memory_residuals = _residuals(memory.bytes(count, length), peaks, held)
        raised = (1 + 1e-6) / (1 - memory_residuals.worst_underestimate)  # the little is for whole bytes
        needs = Bytes(
            base=memory.base * raised,
            per_sample=memory.per_sample * raised,
            per_token=memory.per_token * raised,
            per_square=memory.per_square * raised,
        )
    return Calibration(
        identity=identity,
        versions=versions,
        seconds=Seconds(
            alpha=time.alpha,
            delta=time.delta,
            beta=time.beta,
            gamma=time.gamma,
            floor=time.floor,
        ),
        bytes=needs,
        seconds_residuals=_residuals(time.seconds(count, length), seconds, held),
        bytes_residuals=memory_residuals,
        points=list(points),
    )


def table(calibration: Calibration) -> Table:
    """The held-out points: what was measured, what the models say, and how far that is off."""
    found = Table(title=f"held out of the fit, of {len(calibration.points)} points")
    for name in ("count", "length", "measured ms", "predicted ms", "error", "peak MiB", "predicted MiB", "over"):
        found.add_column(name, justify="right")
    for point in calibration.points:
        if not point.held_out:
            continue
        predicted = float(calibration.time.seconds(point.count, point.length))
        cells = [f"{1e3 * point.quickest:.2f}", f"{1e3 * predicted:.2f}", f"{predicted / point.quickest - 1:+.1%}"]
        if calibration.bytes is None or point.peak_bytes is None:
            cells += ["-"] * 3
        else:
            needs = int(calibration.memory.bytes(point.count, point.length))
            cells += [f"{point.peak_bytes / MIB:.0f}", f"{needs / MIB:.0f}", f"{needs / point.peak_bytes - 1:+.1%}"]
        found.add_row(str(point.count), str(point.length), *cells)
    return found


def summary(calibration: Calibration) -> str:
    """The models and their errors, in a few lines."""
    s, b, identity = calibration.seconds, calibration.bytes, calibration.identity
    floor = f", at least {s.floor:.3g} s" if s.floor else ""
    lines = [
        str(identity),
        f"time: {s.alpha:.4g} s + count * ({s.delta:.3g} s + {s.beta:.4g} s * L + {s.gamma:.3g} s * L**2){floor}",
        _line(calibration.seconds_residuals),
    ]
    if b is None or calibration.bytes_residuals is None:
        lines.append("memory: this system does not tell a process's peak memory; no memory model")
    else:
        per = f"({b.per_sample:,.0f} + {b.per_token:,.0f} * L + {b.per_square:,.4g} * L**2)"
        lines += [f"memory: {b.base:,.0f} bytes + count * {per}", _line(calibration.bytes_residuals)]
        lines.append(
            f"  held-out peaks were under-estimated by {calibration.bytes_residuals.worst_underestimate:.2%} at worst; "
            "the model is raised by that much"
        )
    return "\n".join(lines)


def _line(r: Residuals) -> str:
    return (
        f"  relative error: held out {r.held_out_mean:.1%} mean, {r.held_out_max:.1%} max; "
        f"in the fit {r.train_mean:.1%} mean, {r.train_max:.1%} max"
    )


def _residuals(predicted: Any, measured: npt.NDArray[np.float64], held: npt.NDArray[np.bool_]) -> Residuals:
    relative = predicted / measured - 1
    error = np.abs(relative)
    return Residuals(
        train_mean=float(error[~held].mean()),
        train_max=float(error[~held].max()),
        held_out_mean=float(error[held].mean()),
        held_out_max=float(error[held].max()),
        worst_underestimate=max(0.0, -float(relative[held].min())),
    )


def _columns(points: Sequence[Measured], value: Any) -> tuple[Any, Any, Any, Any]:
    """(points,) each: counts, lengths, whether held out, and the measured value."""
    return (
        np.array([p.count for p in points]),
        np.array([p.length for p in points]),
        np.array([p.held_out for p in points], dtype=bool),
        np.array([value(p) for p in points], dtype=np.float64),
    )
