"""Thousands of simulated ranks: time grows with their number, not with its square; far too many are refused at once."""

import time

import numpy as np
import pytest

from ddpsched.config import parse
from ddpsched.data.embedded.length_histogram import sst2_lengths
from ddpsched.data.lengths import KnownLengths
from ddpsched.errors import ConfigError
from ddpsched.planning.planner import plan_steps
from ddpsched.simulated import SimulatedExecutor

RANKS = 16_384


@pytest.mark.parametrize("policy", ["static", "balanced"])
def test_a_step_of_many_ranks_takes_seconds(policy: str) -> None:
    """A look at all ranks for each rank would take a minute; 65,536 ranks take four times as long as these."""
    values = {"steps": 1, "world_size": RANKS, "global_batch": 2 * RANKS, "executor": {"kind": "simulated"}}
    config = parse({**values, "policy": {"kind": policy}})
    lengths = KnownLengths(sst2_lengths(3 * RANKS, np.random.default_rng(0)))
    begin = time.process_time()
    executor = SimulatedExecutor(config, lengths)
    records = executor.execute(next(iter(plan_steps(config.plan_spec(), lengths, executor.exchange))))
    assert time.process_time() - begin < 15
    assert [record.rank for record in records] == list(range(RANKS))
    waited = [(record.wait_s or 0.0) + (record.compute_s or 0.0) for record in records]
    assert max(waited) == pytest.approx(min(waited)), "all wait for the slowest"


def test_a_billion_ranks_are_refused_at_once() -> None:
    with pytest.raises(ConfigError, match=r"world_size = 1000000000: .* less than or equal to 65536"):
        parse({"steps": 1, "world_size": 10**9, "executor": {"kind": "simulated"}})
