"""A pair's steps are counted while both processes work, and slower than noise is slower."""

import pytest

from ddpsched.doctor.pair import Product, Rates, conclude, measure, noise, rate


def test_steps_are_counted_within_the_time() -> None:
    assert rate([0, 1, 2, 3], 0, 3) == 1
    assert rate([0, 1, 2, 3], 0.5, 2.5) == 1
    assert rate([0, 4], 1, 3) == 0.25


@pytest.mark.parametrize(
    ("pair", "same", "share", "conclusion"),
    [
        (1.0, 1.01, 1.0, "equal"),
        (0.97, 1.01, 1.0, "equal"),
        (0.6, 1.01, 1.0, "slower"),
        (0.6, 1.2, 1.0, "slower"),
        (0.9, 1.2, 1.0, "unclear"),
        (0.9, 0.8, 1.0, "unclear"),
        (0.6, 1.01, 0.9, "disturbed"),
    ],
)
def test_conclusions(pair: float, same: float, share: float, conclusion: str) -> None:
    rates = Rates([2.0, 2.0], [2.0, 2.0 * same], ([2 * pair] * 2, [2 * pair] * 2), [pair, pair], share)
    assert noise(rates) == pytest.approx(abs(same - 1))
    assert conclude(rates) == conclusion


def test_rates_of_a_short_measurement() -> None:
    rates = measure(Product(64), 2, 0.2)
    assert all(each > 0 for each in (*rates.first, *rates.last, *rates.pairs[0], *rates.pairs[1]))
    assert rates.ratios == pytest.approx(
        [rates.pairs[n % 2][n] / ((rates.first[n] + rates.last[n]) / 2) for n in range(2)]
    )
    assert 0 < rates.processor_share <= 1.05
