"""A calibration from measured points: fitted to most of them, checked on those held out."""

from collections.abc import Sequence
from dataclasses import astuple
from typing import Any

import numpy as np
import numpy.typing as npt
from rich.table import Table

from ddpsched.costs.calibration import NOISY, Calibration, Identity, Measured, Residuals, Seconds
from ddpsched.costs.memory_cap import MemoryModel
from ddpsched.costs.regression import fit_memory, fit_time

MIB = 2**20


def fit_calibration(points: Sequence[Measured], identity: Identity, versions: dict[str, str | None]) -> Calibration:
    """Return the calibration of both models, fitted to the points that are not held out.

    Memory is fitted from above and then raised by the share that the worst held-out point lies over the fit, so that no
    measured point lies above it. Raises DataError for fewer points than a fit needs.
    """
    count, length, seconds = np.array([(p.count, p.length, min(p.seconds)) for p in points], dtype=np.float64).T
    held = np.array([p.held_out for p in points], dtype=bool)
    time = fit_time(count[~held], length[~held], seconds[~held])
    memory, memory_residuals = None, None
    if all(point.peak_bytes is not None for point in points):
        peaks = np.array([p.peak_bytes for p in points], dtype=np.float64)
        memory = fit_memory(count[~held], length[~held], peaks[~held])
        memory_residuals = _residuals(memory.bytes(count, length), peaks, held)
        raised = (1 + 1e-6) / (1 - memory_residuals.worst_underestimate)  # 1e-6 for rounding to whole bytes
        memory = MemoryModel(*(raised * value for value in astuple(memory)))
    return Calibration(
        identity=identity,
        versions=versions,
        seconds=Seconds.of(time),
        bytes=memory,
        seconds_residuals=_residuals(time.seconds(count, length), seconds, held),
        bytes_residuals=memory_residuals,
        points=list(points),
    )


def table(calibration: Calibration) -> Table:
    """Return a table of the held-out points: measured values, the models' predictions, and their errors."""
    rows = Table(title=f"held out of the fit, of {len(calibration.points)} points")
    for name in ("count", "length", "measured ms", "predicted ms", "error", "peak MiB", "predicted MiB", "over"):
        rows.add_column(name, justify="right")
    for point in (each for each in calibration.points if each.held_out):
        seconds, peak, memory = min(point.seconds), point.peak_bytes, calibration.bytes
        predicted = float(calibration.time.seconds(point.count, point.length))
        cells = [f"{1e3 * seconds:.2f}", f"{1e3 * predicted:.2f}", f"{predicted / seconds - 1:+.1%}", "-", "-", "-"]
        if memory is not None and peak is not None:
            needed = int(memory.bytes(point.count, point.length))
            cells[3:] = f"{peak / MIB:.0f}", f"{needed / MIB:.0f}", f"{needed / peak - 1:+.1%}"
        rows.add_row(str(point.count), str(point.length), *cells)
    return rows


def summary(calibration: Calibration) -> str:
    """Return the models and their errors in a few lines of text."""
    s, b, identity = calibration.seconds, calibration.bytes, calibration.identity
    floor = f", at least {s.floor:.3g} s" if s.floor else ""
    lines = [
        str(identity),
        f"time: {s.alpha:.4g} s + count * ({s.delta:.3g} s + {s.beta:.4g} s * L + {s.gamma:.3g} s * L**2){floor}",
        _line(calibration.seconds_residuals),
        *_noise(calibration.points),
    ]
    if b is None or calibration.bytes_residuals is None:
        lines.append("memory: this system does not report a process's peak memory; no memory model")
    else:
        per = f"({b.per_sample:,.0f} + {b.per_token:,.0f} * L + {b.per_square:,.4g} * L**2)"
        worst = f"{calibration.bytes_residuals.worst_underestimate:.2%}"
        lines += [f"memory: {b.base:,.0f} bytes + count * {per}", _line(calibration.bytes_residuals)]
        lines.append(f"  held-out peaks were under-estimated by {worst} at worst; the model is raised by that much")
    return "\n".join(lines)


def _noise(points: Sequence[Measured]) -> list[str]:
    """Return how far times of the same micro-batch lie above the smallest, as a line; [] after a single pass."""
    spread = float(np.median(np.concatenate([np.array(p.seconds) / min(p.seconds) for p in points]))) - 1
    if max(len(point.seconds) for point in points) == 1:
        return []
    noisy = "; the device is busy or noisy, so calibrate again on a quiet one (--overwrite)" if spread > NOISY else ""
    return [f"  passes over the same micro-batches differ by {spread:.0%} in the median{noisy}"]


def _line(r: Residuals) -> str:
    return (
        f"  relative error: held out {r.held_out_mean:.1%} mean, {r.held_out_max:.1%} max; "
        f"in the fit {r.train_mean:.1%} mean, {r.train_max:.1%} max"
    )


def _residuals(predicted: Any, measured: npt.NDArray[np.float64], held: npt.NDArray[np.bool_]) -> Residuals:
    relative = predicted / measured - 1
    errors = {"train": np.abs(relative[~held]), "held_out": np.abs(relative[held])}
    means = {f"{name}_mean": float(each.mean()) for name, each in errors.items()}
    largest = {f"{name}_max": float(each.max()) for name, each in errors.items()}
    return Residuals(**means, **largest, worst_underestimate=max(0.0, -float(relative[held].min())))
