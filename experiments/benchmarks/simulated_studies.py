"""Share of intervals and verdicts of `analysis.stats` that hold, in simulated studies whose true ratios are known.

    python -m experiments.benchmarks.simulated_studies [--studies 2000] [--launches 2 3 5] [--pages 200] [--seed 0]

A step takes

    sample x machine x launch x noise x spike x ratio

Arms of a study share the cost of the step's samples (log-normal, sd 0.25) and the speed of the machine (a slow wave and
a trend, up to 15 %). Each has its own launch (log-normal, sd 0, 1 or 3 %), noise (log-normal, sd 0.1, autoregressive
with rho 0, 0.4 or 0.7) and spikes (one step in 200 takes three times as long).

A row of the first table is over ``--studies`` studies at the true ratio 1.05, a third of them at each rho. *covers* is
the share of 95 % intervals of `ratio` that hold 1.05. One study in five has the other columns too: *percentiles* of a
hierarchical bootstrap, *P95* and *P99* for ratios of these, *P95 alone* for that of the baseline itself; a dash where
launches have too few steps for it. Of the second table a page is an A/A pair and four arms: equally fast ones for
false verdicts, faster ones for right verdicts. Below it A/A pairs are counted on pages of eight, too. The same seed
prints the same. Takes three minutes on one core.
"""

import argparse
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import product

import numpy as np
import numpy.typing as npt
from rich import box
from rich.table import Table
from scipy.signal import lfilter

from analysis.stats import Pairs, Ratio, block_length, floor_verdicts, ratio, resampled, value_interval, verdicts
from ddpsched.terminal import plain_console

Array = npt.NDArray[np.float64]
Limits = tuple[float, float]

STEPS, EFFECTS, RHOS = (40, 150), (0.0, 0.01, 0.03), (0.0, 0.4, 0.7)
RATIO = 1.05
EQUAL, FASTER = (1.0, 1.0, 1.0, 1.0), (0.98, 0.95, 0.9, 0.8)
PAIRS = 8  # A/A pairs of a page with several settings
FEWER = 5  # intervals that take long are computed for one study in so many
TRUTH = 5000  # launches that give the true P95
SAMPLE_SD, NOISE_SD, SPIKE_SHARE, SPIKE = 0.25, 0.1, 0.005, 3.0


@dataclass(frozen=True)
class Setting:
    """A kind of study.

    Attributes:
        launches: starts of all arms.
        steps: steps of a launch.
        effect: the spread of an arm's speed over its launches, as 0.03.
        rho: autocorrelation of an arm's noise.
    """

    launches: int
    steps: int
    effect: float
    rho: float

    def times(self, studies: int, ratios: Sequence[float], rng: np.random.Generator) -> Array:
        """Return seconds, (studies, launches, arms, steps), of arms that take ``ratios`` times as long as 1 s."""
        shared, own = (studies, self.launches, 1, self.steps), (studies, self.launches, len(ratios), self.steps)
        sample = rng.lognormal(0, SAMPLE_SD, shared)
        launch = rng.lognormal(0, self.effect, (*own[:3], 1))
        spike = np.where(rng.random(own) < SPIKE_SHARE, SPIKE, 1.0)
        speed = np.array(ratios)[:, None]
        return sample * self._machine(studies, rng) * launch * np.exp(self._noise(own, rng)) * spike * speed

    def _machine(self, studies: int, rng: np.random.Generator) -> Array:
        """Return the drift of the machine: one to three slow waves of 10 %, and a trend of 5 % to each side."""
        shape, progress = (studies, self.launches, 1, 1), np.linspace(0, 1, self.steps)
        waves, phase, trend = rng.uniform(1, 3, shape), rng.uniform(0, 2 * np.pi, shape), rng.uniform(-1, 1, shape)
        return 1 + 0.1 * np.sin(2 * np.pi * waves * progress + phase) + 0.05 * trend * (2 * progress - 1)

    def _noise(self, shape: tuple[int, ...], rng: np.random.Generator) -> Array:
        """Return an autoregression of order 1 over the last axis, stationary from its first step."""
        shocks = rng.normal(0, NOISE_SD, shape)
        shocks[..., 1:] *= np.sqrt(1 - self.rho**2)
        return lfilter([1], [1, -self.rho], shocks, axis=-1)


def pairs(study: Array, arm: int = 1, baseline: int = 0) -> list[Pairs]:
    """Return the pairs of an arm and its baseline in a study, (launches, arms, steps), by launch."""
    return [Pairs(launch[arm], launch[baseline]) for launch in study]


def percentiles(launches: Sequence[Pairs], rng: np.random.Generator, draws: int = 1000, inner: int = 400) -> Limits:
    """Return the limits of a hierarchical percentile bootstrap: launches are drawn, and of each a resample of steps.

    ``inner``: resamples of each launch to draw from.
    """
    count = len(launches)
    blocks = (block_length(each.x / each.x.sum() - each.y / each.y.sum()) for each in launches)
    logs = np.stack(
        [
            each.log_ratios(resampled(len(each.x), block, rng, inner))
            for each, block in zip(launches, blocks, strict=True)
        ]
    )
    drawn = logs[rng.integers(count, size=(draws, count)), rng.integers(inner, size=(draws, count))].mean(axis=1)
    low, high = np.exp(np.quantile(drawn, [0.025, 0.975])) / RATIO
    return float(low), float(high)


def intervals(study: Array, p95: float, costly: bool, rng: np.random.Generator) -> Iterator[tuple[str, Limits]]:
    """Yield 95 % intervals of a study, (launches, arms, steps), each over the true value: one that covers it holds 1.

    ``p95``: the true P95 of the baseline. ``costly``: whether to yield those that take long.
    """
    launches = pairs(study)
    yield "covers", limits(ratio(launches, rng))
    if costly:
        yield "percentiles", percentiles(launches, rng)
        for quantile in (0.95, 0.99):
            yield f"P{100 * quantile:g}", limits(ratio(launches, rng, statistic=quantile))
        _, low, high = value_interval(list(study[:, 0]), rng)
        yield "P95 alone", (low / p95, high / p95)


def limits(measured: Ratio) -> Limits:
    """Return the limits of a ratio over the true ratio."""
    return measured.low / RATIO, measured.high / RATIO


def coverage(settings: Sequence[Setting], studies: int, rng: np.random.Generator) -> dict[str, Array]:
    """Return the limits over the true value, (intervals, 2) by column, of studies spread over the settings."""
    found: dict[str, list[Limits]] = {}
    for setting, share in zip(settings, np.array_split(np.arange(studies), len(settings)), strict=True):
        p95 = float(np.quantile(setting.times(TRUTH // setting.launches, (1.0,), rng), 0.95))
        for number, study in zip(share, setting.times(len(share), (1.0, RATIO), rng), strict=True):
            for name, each in intervals(study, p95, number % FEWER == 0, rng):
                found.setdefault(name, []).append(each)
    return {name: np.array(each) for name, each in found.items()}


def held(limits: Array) -> str:
    """Return the share of intervals, (intervals, 2), that hold 1; a dash where there are none."""
    return "-" if np.isnan(limits).any() else f"{((limits[:, 0] <= 1) & (limits[:, 1] >= 1)).mean():.1%}"


def pages(
    settings: Sequence[Setting], count: int, ratios: Sequence[float], rng: np.random.Generator
) -> Iterator[tuple[Ratio, list[str]]]:
    """Yield the A/A pair's ratio and the words on the arms of each of ``count`` pages, spread over the settings."""
    for setting, share in zip(settings, np.array_split(np.arange(count), len(settings)), strict=True):
        for study in setting.times(len(share), (1.0, 1.0, *ratios), rng):
            floor, *measured = (ratio(pairs(study, arm), rng) for arm in range(1, len(ratios) + 2))
            yield floor, verdicts([(each, floor) for each in measured])


def differing(floors: Sequence[Ratio], to_a_page: int = 1) -> tuple[int, int]:
    """Return on how many pages of so many A/A pairs at least one differs, and how many whole pages there are."""
    starts = range(0, len(floors) - to_a_page + 1, to_a_page)
    found = [floor_verdicts(floors[start : start + to_a_page]) for start in starts]
    return sum("differs" in words for words in found), len(found)


def coverage_table(options: argparse.Namespace) -> Table:
    """Return the table of intervals, a row for each number of launches and steps and each spread of launches."""
    columns = ("covers", "percentiles", "P95", "P99", "P95 alone")
    title = "95 % intervals that hold the true ratio 1.05"
    table = Table("launches", "steps", "launch sd", "median width", *columns, title=title, box=box.SIMPLE_HEAD)
    for launches, steps, effect in product(options.launches, STEPS, EFFECTS):
        rng = np.random.default_rng([options.seed, launches, steps, round(1000 * effect)])
        found = coverage([Setting(launches, steps, effect, rho) for rho in RHOS], options.studies, rng)
        width = RATIO * np.median(np.diff(found["covers"]))
        table.add_row(
            f"{launches}", f"{steps}", f"{effect:.0%}", f"{width:.3f}", *(held(found[name]) for name in columns)
        )
    return table


def verdict_table(options: argparse.Namespace) -> Table:
    """Return the table of verdicts, a row for each number of launches and each spread of launches, at 150 steps."""
    title = f'Of {options.pages} pages: false verdicts, and "faster" on an arm that is, by so much'
    names = ("launches", "launch sd", "A/A differs", "a false verdict", *(f"{1 - each:.0%}" for each in FASTER))
    table = Table(*names, title=title, box=box.SIMPLE_HEAD)
    floors, wrong = list[Ratio](), 0
    for launches, effect in product(options.launches, EFFECTS):
        rng = np.random.default_rng([options.seed, launches, round(1000 * effect)])
        settings = [Setting(launches, max(STEPS), effect, rho) for rho in RHOS]
        equal = list(pages(settings, options.pages, EQUAL, rng))
        differs, _ = differing([floor for floor, _ in equal])
        false = sum(bool({"faster", "slower"} & set(words)) for _, words in equal)
        right = (np.array([words for _, words in pages(settings, options.pages, FASTER, rng)]) == "faster").mean(axis=0)
        table.add_row(f"{launches}", f"{effect:.0%}", f"{differs}", f"{false}", *(f"{each:.0%}" for each in right))
        floors, wrong = [*floors, *(floor for floor, _ in equal)], wrong + false
    (alone, total), (together, of_eight) = differing(floors), differing(floors, PAIRS)
    table.caption = (
        f"A/A differs on {alone} of all {total:,} pages ({alone / total:.1%}); where {PAIRS} pairs are one page, on "
        f"{together} of {of_eight}. A false verdict is on {wrong / total:.1%}"
    )
    return table


def main() -> None:
    """Simulate, and print both tables."""
    parser = argparse.ArgumentParser(
        prog="python -m experiments.benchmarks.simulated_studies",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--studies", type=int, default=2000)
    parser.add_argument("--launches", type=int, nargs="+", default=[2, 3, 5])
    parser.add_argument("--pages", type=int, default=200)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    for name, least in (("studies", FEWER * len(RHOS)), ("pages", 1)):
        if getattr(options, name) < least:
            parser.error(f"--{name} {getattr(options, name)}: must be at least {least}")
    if min(options.launches) < 2:
        parser.error(f"--launches {min(options.launches)}: must be at least 2, as one launch has no interval")
    console = plain_console(at_least=100)
    console.print(coverage_table(options))
    console.print(verdict_table(options))


if __name__ == "__main__":
    main()
