"""Intervals and verdicts: against their definitions, by brute force, and in simulated studies whose ratio is known."""

import itertools
import math
from functools import cache

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from analysis.stats import (
    FLOOR_LEVEL,
    REACH,
    Pairs,
    Ratio,
    Statistic,
    autocorrelation,
    block_length,
    effective_size,
    equivalence_p,
    floor_verdicts,
    holm,
    ratio,
    resampled,
    steps_needed,
    value_interval,
    verdicts,
)
from experiments.benchmarks.simulated_studies import RATIO, Setting, pairs

PROBABILITIES = st.lists(st.floats(0, 1), min_size=1, max_size=6)
EXACT = Ratio(1.0, 0.999, 1.001, error=0.0005, freedom=20)


def launches(count: int = 3, steps: int = 40, apart: float = 0.02, seed: int = 0) -> list[Pairs]:
    """Return launches whose ratios are 1.1 but for ``apart`` and the noise of steps."""
    rng = np.random.default_rng(seed)
    spread = rng.normal(math.log(1.1), apart, (count, 1))
    x, y = np.exp(rng.normal(0, 0.05, (2, count, steps)))
    return [Pairs(*each) for each in zip(x * np.exp(spread), y, strict=True)]


def autoregression(rho: float, steps: int, seed: int = 0) -> np.ndarray:
    noise = np.random.default_rng(seed).normal(size=steps)
    return np.array(list(itertools.accumulate(noise, lambda last, shock: rho * last + shock)))


# ratios


def test_an_interval_is_students_over_the_logs_of_launches() -> None:
    found = launches(5, apart=0.05)
    logs = [math.log(each.x.mean() / each.y.mean()) for each in found]
    low, high = stats.ttest_1samp(logs, 0).confidence_interval(0.9)
    measured = ratio(found, np.random.default_rng(0), confidence=0.9)
    assert (measured.value, measured.low, measured.high) == pytest.approx(np.exp([np.mean(logs), low, high]))
    assert measured.p() == pytest.approx(stats.ttest_1samp(logs, 0).pvalue)
    assert measured.p(1.1) == pytest.approx(stats.ttest_1samp(logs, math.log(1.1)).pvalue)


def test_launches_that_agree_by_chance_still_have_the_spread_of_their_steps() -> None:
    one = launches(1)[0]
    alike = [one] * 3
    measured = ratio(alike, np.random.default_rng(0))
    error = math.sqrt(np.log(one.x / one.y).var() / len(one.x) / 3)
    assert math.log(measured.high / measured.value) == pytest.approx(REACH * error, rel=0.25)
    assert measured == ratio(alike, np.random.default_rng(0))
    other = ratio(alike, np.random.default_rng(1))
    assert other != measured
    assert other.low == pytest.approx(measured.low, rel=0.01)
    assert other.value == measured.value


def test_twice_the_tokens_in_twice_the_time_is_ratio_1() -> None:
    rng = np.random.default_rng(0)
    found = []
    for _ in range(3):
        tokens, speed = rng.integers(50, 100, 40).astype(float), rng.lognormal(0, 0.1)
        found.append(Pairs(2 * tokens * speed, tokens * speed, 2 * tokens, tokens))
    for statistic in ("mean", 0.9):
        measured = ratio(found, rng, statistic=statistic)
        assert (measured.value, measured.low, measured.high) == pytest.approx((1, 1, 1))
    assert Pairs(found[0].x, found[0].y).log_ratio() == pytest.approx(math.log(2))


def test_work_counts_by_sums_and_not_by_steps() -> None:
    one = Pairs(np.array([1.0, 9.0]), np.array([4.0, 4.0]), np.array([1.0, 3.0]), np.array([2.0, 2.0]))
    assert one.log_ratio() == pytest.approx(math.log((10 / 4) / (8 / 4)))
    assert one.log_ratio(0.5) == pytest.approx(math.log(2 / 2))  # of 1 and 3 seconds per work; of 2 and 2


def test_a_quantile_is_the_geometric_mean_of_those_of_launches() -> None:
    found = launches(3, 100)
    times = np.array([(each.x, each.y) for each in found])
    one, other = np.quantile(times, 0.95, axis=2, method="median_unbiased").T
    measured = ratio(found, np.random.default_rng(0), statistic=0.95)
    assert measured.value == pytest.approx(stats.gmean(one / other))
    value, low, high = value_interval([each.x for each in found], np.random.default_rng(0))
    assert low < value < high
    assert value == pytest.approx(stats.gmean(one))


@pytest.mark.parametrize(
    ("count", "steps", "statistic", "reason", "enough"),
    [
        (0, 40, "mean", "0 launches, at least 2 are needed", (2, 40)),
        (1, 40, "mean", "1 launch, at least 2 are needed", (2, 40)),
        (3, 7, "mean", "7 steps in a launch, at least 8 are needed", (3, 8)),
        (3, 33, 0.95, "P95 of 33 steps a launch, at least 34 are needed", (3, 34)),
        (4, 99, 0.99, "P99 of 99 steps a launch, at least 125 are needed", (4, 125)),
        (9, 99, 0.99, "P99 of 99 steps a launch, at least 100 are needed", (9, 100)),
        (5, 9, 0.1, "P10 of 9 steps a launch, at least 10 are needed", (5, 10)),
    ],
)
def test_no_interval(count: int, steps: int, statistic: Statistic, reason: str, enough: tuple[int, int]) -> None:
    rng = np.random.default_rng(0)
    measured = ratio(launches(count, steps), rng, statistic=statistic)
    assert measured.reason == reason
    assert np.isnan([measured.low, measured.high, measured.p()]).all()
    assert np.isnan(measured.value) == (count == 0)
    assert not ratio(launches(*enough), rng, statistic=statistic).reason
    if statistic != "mean":
        assert steps_needed(enough[0], statistic) == enough[1]


def test_bad_pairs_and_statistics_are_refused() -> None:
    two, three = np.ones(2), np.ones(3)
    with pytest.raises(ValueError, match=r"y \(3,\), x \(2,\): must be"):
        Pairs(two, three)
    with pytest.raises(ValueError, match=r"x 0\.0: must be finite and above 0"):
        Pairs(np.array([1.0, 0.0]), two)
    with pytest.raises(ValueError, match=r"work_y inf: must be finite and above 0"):
        Pairs(two, two, two, np.array([1.0, np.inf]))
    with pytest.raises(ValueError, match="of one arm alone"):
        Pairs(two, two, two)
    with pytest.raises(ValueError, match=r"statistic 95: must be"):
        ratio(launches(), np.random.default_rng(0), statistic=95)


# coverage


@cache
def studies(count: int = 300) -> list[list[Pairs]]:
    """Return studies of three launches that differ by 3 %."""
    times = Setting(launches=3, steps=150, effect=0.03, rho=0.4).times(count, (1.0, RATIO), np.random.default_rng(0))
    return [pairs(study) for study in times]


def test_intervals_cover_the_true_ratio() -> None:
    rng = np.random.default_rng(0)
    found = [ratio(study, rng) for study in studies()]
    assert 0.91 <= np.mean([each.low <= RATIO <= each.high for each in found]) <= 0.98


def test_steps_of_one_launch_do_not_tell_how_launches_differ() -> None:
    """The former way, an interval over the steps of one launch, fails the test above."""
    rng = np.random.default_rng(0)
    held = [
        abs(study[0].log_ratio() - math.log(RATIO)) <= 1.96 * math.sqrt(study[0].variance(rng)) for study in studies()
    ]
    assert np.mean(held) < 0.7


# series


@pytest.mark.parametrize("rho", [-0.5, 0.0, 0.7])
def test_autocorrelation_is_the_correlation_of_neighbours(rho: float) -> None:
    series = autoregression(rho, 20_000)
    assert autocorrelation(series) == pytest.approx(np.corrcoef(series[:-1], series[1:])[0, 1], abs=1e-3)
    assert autocorrelation(series) == pytest.approx(rho, abs=0.03)
    assert autocorrelation(np.ones(5)) == 0


@pytest.mark.parametrize("rho", [-0.4, 0.0, 0.6])
def test_effective_size_tells_the_spread_of_the_mean(rho: float) -> None:
    series = autoregression(rho, 400_000).reshape(2000, 200)
    spread = series.mean(axis=1).var()
    sizes = [effective_size(each) for each in series[:200]]
    assert np.median(sizes) == pytest.approx(series.var() / spread, rel=0.15)


def test_blocks_are_longer_where_neighbours_are_alike() -> None:
    lengths = [block_length(autoregression(rho, 200)) for rho in (0.0, 0.5, 0.9)]
    assert lengths == sorted(set(lengths))
    assert block_length(np.arange(40.0)) == 10
    assert block_length(np.ones(40)) == 1


def test_blocks_keep_the_spread_of_the_mean_that_single_steps_lose() -> None:
    rng = np.random.default_rng(0)
    series = autoregression(0.7, 200_000).reshape(1000, 200)
    true = series.mean(axis=1).var()
    by_blocks, by_steps = (
        np.mean([each[resampled(200, block or block_length(each), rng)].mean(axis=1).var() for each in series[:100]])
        for block in (0, 1)
    )
    assert 0.65 * true < by_blocks < 1.1 * true
    assert by_steps < 0.3 * true


@given(st.integers(1, 30), st.integers(1, 30), st.integers(0, 99))
def test_resampled_blocks(steps: int, block: int, seed: int) -> None:
    drawn = resampled(steps, block, np.random.default_rng(seed), draws=20)
    assert drawn.shape == (20, steps)
    inside = np.arange(1, steps) % block != 0
    assert (np.diff(drawn, axis=1) % steps == 1 % steps)[:, inside].all()


@pytest.mark.parametrize("block", [1, 3, 10])
def test_resamples_hold_all_steps_equally_often(block: int) -> None:
    drawn = resampled(10, block, np.random.default_rng(0), draws=20_000)
    assert np.bincount(drawn.ravel()) / 20_000 == pytest.approx(1, abs=0.05)


# verdicts


@settings(deadline=None)  # a busy machine takes its time
@given(PROBABILITIES)
def test_holm_is_the_closed_test_of_bonferroni(p_values: list[float]) -> None:
    """A hypothesis falls at a level where every set of hypotheses that holds it falls by Bonferroni's rule."""
    everyone = range(len(p_values))
    for index, adjusted in enumerate(holm(p_values)):
        families = (
            family for size in everyone for family in itertools.combinations(everyone, size + 1) if index in family
        )
        assert adjusted == pytest.approx(max(min(1, len(f) * min(p_values[i] for i in f)) for f in families))


@given(st.floats(-0.05, 0.05), st.floats(0.001, 0.05), st.floats(1, 30), st.floats(0.005, 0.1))
def test_equivalence_is_a_90_percent_interval_within_the_margin(
    log: float, error: float, freedom: float, margin: float
) -> None:
    measured = Ratio(math.exp(log), error=error, freedom=freedom)
    reach = float(stats.t.ppf(0.95, freedom)) * error
    nearest = math.log1p(margin) - abs(log) - reach
    if abs(nearest) > 1e-9:
        assert (equivalence_p(measured, margin) < 0.05) == (nearest > 0)


def test_a_ratio_without_error_is_certain() -> None:
    same, other = (Ratio(value, value, value, error=0.0, freedom=2) for value in (1.0, 1.01))
    assert same.p() == 1
    assert other.p() == 0
    assert equivalence_p(other, 0.02) == 0
    assert equivalence_p(other, 0.005) == 1
    assert floor_verdicts([same, other]) == ["not told apart", "differs"]
    assert verdicts([(other, same), (same, same)], margin=0.02) == ["slower", "the same within 2 %"]


def around(value: float, error: float, freedom: float = 20) -> Ratio:
    reach = math.exp(float(stats.t.ppf(0.975, freedom)) * error)
    return Ratio(value, value / reach, value * reach, error, freedom)


@pytest.mark.parametrize(
    ("measured", "floor", "words"),
    [
        (around(0.9, 0.01), EXACT, "faster"),
        (around(1.1, 0.01), EXACT, "slower"),
        (around(0.9, 0.01), around(1.02, 0.05), "not told apart from A/A"),  # 1 / 0.9 is nearer than the floor's 1.13
        (around(1.1, 0.01), around(1 / 1.02, 0.05), "not told apart from A/A"),
        (around(1.02, 0.05), EXACT, "not told apart from A/A"),
        (around(1.001, 0.005), EXACT, "the same within 2 %"),
        (around(1.001, 0.005), around(1.0, 0.009), "the same within 2 %"),
        (around(1.001, 0.005), around(1.0, 0.0107), "not told apart from A/A"),  # from 0.978 to 1.023
        (around(1.001, 0.005), around(1.015, 0.0025), "not told apart from A/A"),
        (around(1.001, 0.005), around(1 / 1.015, 0.0025), "not told apart from A/A"),
        (Ratio(0.5, reason="1 launch"), EXACT, "no interval: 1 launch"),
        (around(0.5, 0.01), Ratio(1.0, reason="1 launch"), "no interval of A/A: 1 launch"),
    ],
)
def test_verdicts(measured: Ratio, floor: Ratio, words: str) -> None:
    assert verdicts([(measured, floor)], margin=0.02) == [words]
    without = "not told apart from A/A" if "same" in words else words
    assert verdicts([(measured, floor)]) == [without]


def test_a_verdict_counts_all_ratios_of_its_page() -> None:
    doubtful = around(0.9, 0.045)
    assert 0.01 < doubtful.p() < 0.05
    assert verdicts([(doubtful, EXACT)]) == ["faster"]
    unknown = Ratio(0.5, reason="1 launch")
    assert verdicts([(unknown, EXACT), (doubtful, EXACT)])[1] == "faster"
    page = [(doubtful, EXACT), *[(around(1.0, 0.05), EXACT)] * 9, (around(0.8, 0.01), EXACT)]
    assert verdicts(page) == [*["not told apart from A/A"] * 10, "faster"]


def test_no_equality_finer_than_the_noise() -> None:
    """A baseline that is 0.80 to 1.25 times itself cannot tell which arms are the same within 2 %."""
    floor = around(1.0, math.log(1.25) / float(stats.t.ppf(0.975, 20)))
    assert (floor.low, floor.high) == pytest.approx((0.8, 1.25))
    exactly = around(1.0, 0.0001)
    assert verdicts([(exactly, floor)], margin=0.02) == ["not told apart from A/A"]
    assert verdicts([(exactly, floor)], margin=0.26) == ["the same within 26 %"]


def test_the_floor_itself() -> None:
    unknown = Ratio(1.0, reason="1 launch")
    page = [around(1.01, 0.02), unknown, around(1.1, 0.02)]
    assert floor_verdicts(page) == ["not told apart", "no interval: 1 launch", "differs"]
    doubtful = around(1.05, 0.022)
    assert 0.03 < doubtful.p() < 0.05
    assert floor_verdicts([doubtful]) == ["not told apart"], "the level is below 5 %"


def test_all_a_a_pairs_of_a_page_are_one_family() -> None:
    doubtful, equal = around(1.05, 0.02), around(1.0, 0.02)
    assert floor_verdicts([doubtful]) == ["differs"]
    assert floor_verdicts([doubtful, Ratio(1.0, reason="1 launch")])[0] == "differs"
    assert floor_verdicts([doubtful, equal]) == ["not told apart"] * 2


@pytest.mark.parametrize("settings", [1, 8])
def test_equal_pairs_differ_on_3_of_100_pages(settings: int) -> None:
    """Pages of A/A pairs of three launches, whose logs are normal: of 200 pages hardly ever more than 10 differ."""
    rng = np.random.default_rng(0)
    logs = rng.normal(0, 0.01, (2000, settings, 3))
    means, errors = logs.mean(axis=2), logs.std(axis=2, ddof=1) / math.sqrt(3)
    differs = [
        "differs" in floor_verdicts([around(math.exp(m), e, freedom=2) for m, e in zip(*page, strict=True)])
        for page in zip(means, errors, strict=True)
    ]
    assert 0.018 < np.mean(differs) < 0.042
    assert stats.binom.cdf(10, 200, FLOOR_LEVEL) > 0.95


@pytest.mark.parametrize("margin", [0.0, 2.0])
def test_a_margin_outside_0_to_1_is_refused(margin: float) -> None:
    with pytest.raises(ValueError, match=rf"margin {margin}: must be above 0 and below 1"):
        verdicts([], margin)
