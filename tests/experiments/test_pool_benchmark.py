"""The pool's benchmark prints a line for each pool and way."""

import numpy as np

from ddpsched.data.embedded.length_histogram import sst2_lengths
from experiments.benchmarks.pool import POOLS, WAYS, config_of, planned, report, used


def test_the_table() -> None:
    lengths = sst2_lengths(3000, np.random.default_rng(0))
    assert report(lengths, rounds=1).row_count == len(POOLS) * len(WAYS)


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
