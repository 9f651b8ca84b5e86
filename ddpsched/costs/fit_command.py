"""``ddpsched fit``: the affine-quadratic cost of a run's measured times, printed and written."""

from pathlib import Path

from ddpsched.costs.regression import fit_records
from ddpsched.errors import DataError
from ddpsched.records import read_lines
from ddpsched.visible_text import visible


def answer(run_dir: Path, output: Path | None) -> None:
    """Fit, print, and write to ``output`` where it is given. Raises DataError for a folder without measured times."""
    if not run_dir.is_dir():
        raise DataError(f"{run_dir}: no such folder; give a run's folder, outputs/STUDY/RUN")
    rows = read_lines(run_dir)
    try:
        fitted = fit_records(rows)
    except DataError as error:
        raise DataError(f"{run_dir}: {error}") from None
    model = fitted.model
    print(f"alpha = {model.alpha:.6g} s, beta = {model.beta:.6g} s/token, gamma = {model.gamma:.6g} s/(b*L**2)")
    print(
        f"{fitted.num_points} points: mean relative error {fitted.mean_relative_error:.1%}, "
        f"rms residual {fitted.rms_residual_s:.3g} s, R^2 = {fitted.r_squared:.4f}"
    )
    if output is not None:
        fitted.save(output)
        print(visible(f"written to {output}"))
