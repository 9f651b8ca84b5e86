"""The pool's benchmark prints a line for each pool and way, with the source's time over ours."""

import numpy as np
import pytest

from ddpsched.data.embedded.length_histogram import sst2_lengths
from ddpsched.terminal import plain_console
from experiments.benchmarks import pool
from experiments.benchmarks.bench import AA
from experiments.benchmarks.pool import CASES, POOLS, WAYS, config_of, measure, planned, report, used


def lines(lengths: np.ndarray, launches: int, rounds: int) -> list[str]:
    """Return a line for each case, as printed."""
    console = plain_console(width=170)
    with console.capture() as capture:
        console.print(report(lengths, [measure(lengths, rounds, seed) for seed in range(launches)]))
    return [line.strip() for line in capture.get().splitlines() if any(way in line for way in WAYS)]


def test_the_table_without_the_source(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pool, "source", lambda *case: None)
    lengths = sst2_lengths(600, np.random.default_rng(0))
    shown = lines(lengths, launches=2, rounds=8)
    assert [tuple(line.split()[:2]) for line in shown] == [(str(size), way) for size, way in CASES]
    assert all(line.endswith("not installed") for line in shown)
    assert all(" to " in line and ("not told apart" in line or "differs" in line) for line in shown), f"no {AA}"


def test_a_slower_source_is_called_slower(monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(0)
    lengths = sst2_lengths(600, rng)
    plans = {case: planned(config_of(lengths, *case), lengths)[1] for case in CASES}
    slow, equal = CASES[1], CASES[2]

    def time_of_source(lengths: np.ndarray, *case: object) -> object:
        factor = {slow: 10.0, equal: 1.0}.get(case)
        return factor and (lambda: factor * rng.lognormal(0, 0.02))

    def time_of_ours(config: object, lengths: np.ndarray) -> object:
        return rng.lognormal(0, 0.02), plans[CASES[0]]

    monkeypatch.setattr(pool, "source", time_of_source)
    monkeypatch.setattr(pool, "planned", time_of_ours)
    shown = lines(lengths, launches=3, rounds=8)
    ends = ["not installed", "slower", "not told apart from A/A", *["not installed"] * 3]
    assert all(line.endswith(end) for line, end in zip(shown, ends, strict=True)), shown
    assert "10.0" in shown[1] or "9.9" in shown[1]


def test_larger_pools_fill_better() -> None:
    lengths = sst2_lengths(8000, np.random.default_rng(0))
    for way in WAYS:
        shares = []
        for size in POOLS:
            config = config_of(lengths, size, way)
            taken, plans = planned(config, lengths)
            assert taken > 0
            shares.append(used(plans, lengths, config))
        assert shares[0] < shares[1] <= 1
