"""The fit of the compiled model's times: what a call costs, and a factor, from ratios to eager ones."""

import numpy as np
import pytest

from ddpsched.costs.calibration import Seconds
from ddpsched.costs.cost_model import CostModel
from ddpsched.training.compiled_times import fit_compiled

PADDED = Seconds(alpha=1e-3, beta=1e-5, gamma=1e-8, delta=1e-6, floor=0.0)
SHAPES = [(4, 8), (8, 32), (16, 64)]


def eager(padded: Seconds = PADDED) -> np.ndarray:
    return CostModel(**padded.model_dump()).seconds(*np.array(SHAPES).T)


@pytest.mark.parametrize("factor", [0.5, 1.4])
@pytest.mark.parametrize("fixed", [0.0, 3e-4, 2e-3])
def test_a_fixed_part_and_a_factor_are_found(fixed: float, factor: float) -> None:
    """Also where a call costs less and a token costs more."""
    found = eager()
    cost, error = fit_compiled(PADDED, SHAPES, (fixed + factor * (found - PADDED.alpha)) / found)
    assert error == pytest.approx(0, abs=1e-6)
    wanted = fixed, factor * PADDED.beta, factor * PADDED.gamma, factor * PADDED.delta
    assert (cost.alpha, cost.beta, cost.gamma, cost.delta) == pytest.approx(wanted, abs=1e-9)
    assert cost.floor == 0


def test_the_floor_is_where_the_eager_one_is() -> None:
    """Micro-batches that cost the floor cost what one of as much work does when compiled."""
    padded = PADDED.model_copy(update={"floor": 3e-3})
    found = eager(padded)
    compiled = 2e-4 + 0.5 * (found - padded.alpha)
    cost, error = fit_compiled(padded, SHAPES, compiled / found)
    assert error == pytest.approx(0, abs=1e-6)
    assert cost.floor == pytest.approx(2e-4 + 0.5 * 2e-3)
    assert CostModel(**cost.model_dump()).seconds(*np.array(SHAPES).T) == pytest.approx(compiled, rel=1e-5)


def test_what_fits_no_line_is_in_the_error() -> None:
    _, error = fit_compiled(PADDED, SHAPES, np.array([0.5, 1.0, 0.5]))
    assert error > 0.2


def test_no_cost_is_below_zero() -> None:
    """Where more than all that a call costs is saved, a factor alone fits."""
    found = eager()
    cost, error = fit_compiled(PADDED, SHAPES, (0.5 * found - 0.55 * found[0] + 1e-4) / found)
    assert min(cost.model_dump().values()) >= 0
    assert error > 0.1
