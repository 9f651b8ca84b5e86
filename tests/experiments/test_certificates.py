"""The loops of the page on gradients are exact only with their factor, and a certificate becomes a row."""

import pytest

from ddpsched.certify.certificate import Certificate, Check
from experiments import loops
from experiments.certificates import line


@pytest.mark.parametrize("index", [2, 6])
def test_a_loop_is_exact_with_its_factor_alone(index: int) -> None:
    without, with_factor = loops.both(index)
    assert not without.holds
    assert with_factor.holds


def test_a_row_names_what_failed_and_why() -> None:
    numbers = {"relative_error": 1.0, "cosine": 1.0, "best_scale": 2.0}
    gradient = Check("gradient", False, "twice | too large", "G * too large. In numbers: w = 2", numbers)
    once = Check("every sample once", False, "3 never ran", "the loader leaves them out")
    row = line("a loop", Certificate("a loop", (gradient, once, Check("one plan", True, "agreed"))))
    assert row == (
        "| a loop | 1.0e+00 | 1.000000 | 2 | *gradient*: G \\* too large; "
        "*every sample once*: 3 never ran (the loader leaves them out) |"
    )
