"""The shipped laws of lengths, and lengths drawn from them."""

import csv
import re
from pathlib import Path
from statistics import NormalDist

import numpy as np
import pytest

from ddpsched import law_lengths
from ddpsched.data.laws.length_laws import length_laws

PAGE = Path(__file__).parents[2] / "report" / "notes" / "planning.md"
MEASURED = ["encyclopedia", "chat", "code"]
N = 400_000


def quantile(name: str, share: float) -> float:
    return float(np.interp(share, length_laws()[name].quantiles, length_laws()[name].tokens))


def test_quantiles_rise_from_the_shortest_to_the_longest() -> None:
    for law in length_laws().values():
        assert law.tokens.dtype == np.int64
        assert law.tokens.min() >= 1
        assert (law.quantiles[0], law.quantiles[-1]) == (0, 1)
        assert (np.diff(law.quantiles) > 0).all()
        assert (np.diff(law.tokens) >= 0).all()
        assert law.tokens.shape == law.quantiles.shape == (461,)


@pytest.mark.parametrize("name", MEASURED)
def test_a_measured_law_is_its_source(name: str, data_dir: Path) -> None:
    source = data_dir / "laws" / f"{name}.csv"
    if not source.exists():  # measured data is not part of the project
        pytest.skip(f"no {source}; point DDPSCHED_DATA at a folder that has it")
    with source.open(encoding="utf-8", newline="") as file:
        rows = [(float(row["quantile"]), int(row["tokens"])) for row in csv.DictReader(file)]
    law = length_laws()[name]
    assert list(zip(law.quantiles.tolist(), law.tokens.tolist(), strict=True)) == rows


def test_the_synthetic_law_is_log_normal() -> None:
    """p50 is 500 and p99 5,000; the ends, which a log-normal does not have, are its quantiles at 1e-7 and 1 - 1e-7."""
    law = length_laws()["rollouts"]
    normal = NormalDist(np.log(500), np.log(10) / NormalDist().inv_cdf(0.99))
    shares = law.quantiles.clip(1e-7, 1 - 1e-7)
    assert law.tokens.tolist() == [round(np.exp(normal.inv_cdf(share))) for share in shares]
    assert (law.kind, quantile("rollouts", 0.5), quantile("rollouts", 0.99)) == ("synthetic", 500, 5000)


@pytest.mark.parametrize("name", list(length_laws()))
def test_draws_follow_the_quantiles(name: str) -> None:
    law, drawn = length_laws()[name], law_lengths(name, N, seed=5)
    assert (drawn.dtype, drawn.shape) == (np.int64, (N,))
    assert law.tokens[0] <= drawn.min() <= drawn.max() <= law.tokens[-1]
    for share in (0.1, 0.5, 0.9, 0.99, 0.999):
        error = 5 * np.sqrt(share * (1 - share) / N)  # of the share, in standard errors
        # half a token more or less, by which a draw is rounded
        least, most = quantile(name, share - error) - 0.5, quantile(name, share + error) + 0.5
        assert least <= np.quantile(drawn, share) <= most, share
    for cut in (8192, 65_536):  # the mean uncut is that of few documents
        mean = np.trapezoid(np.interp(grid := np.linspace(0, 1, 10**6), law.quantiles, law.tokens).clip(max=cut), grid)
        assert abs(drawn.clip(max=cut).mean() - mean) <= 5 * drawn.clip(max=cut).std() / np.sqrt(N)


def test_draws_depend_on_the_seed_alone() -> None:
    first, again, other = (law_lengths("chat", 100, seed) for seed in (1, 1, 2))
    np.testing.assert_array_equal(first, again)
    assert (first != other).any()
    np.testing.assert_array_equal(law_lengths("chat", 300, 1)[:100], first)


def test_draws_and_the_order_of_the_same_seed_are_independent() -> None:
    """A generator shared with the first epoch's order would bring lengths in that order."""
    drawn = law_lengths("encyclopedia", 4096, 3).clip(max=8192)
    shuffled = drawn[np.random.default_rng([3, 0]).permutation(4096)]
    for each in (drawn, shuffled):
        assert abs(np.corrcoef(each, np.arange(4096))[0, 1]) < 5 / np.sqrt(4096)


def test_laws_cannot_be_changed_by_a_caller() -> None:
    with pytest.raises(ValueError, match="read-only"):
        length_laws()["chat"].tokens[0] = 0


def test_the_page_has_the_laws_figures() -> None:
    """Each row: name, kind, source, mean, p50, p99, longest, and what it is not."""
    rows = {
        cells[0].strip("`"): cells[2:6]
        for line in PAGE.read_text(encoding="utf-8").partition("## Laws of lengths")[2].splitlines()
        if (cells := [cell.strip() for cell in line.strip("|").split("|")])[0].startswith("`") and len(cells) == 7
    }
    assert list(rows) == list(length_laws())
    for name, law in length_laws().items():
        mean = np.trapezoid(law.tokens, law.quantiles)
        figures = [f"{value:,.0f}" for value in (mean, quantile(name, 0.5), quantile(name, 0.99), law.tokens[-1])]
        assert rows[name] == figures
        assert re.search(rf"\b{law.kind}\b", PAGE.read_text(encoding="utf-8"))
