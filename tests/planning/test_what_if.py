"""Computed steps on any number of ranks: against a sum by hand, unequal speeds, and values out of range."""

import time
from typing import Any

import numpy as np
import pytest

from ddpsched import what_if
from ddpsched.costs.network import Network
from ddpsched.data.embedded.length_histogram import sst2_lengths
from ddpsched.errors import ConfigError

LENGTHS = sst2_lengths(4096, np.random.default_rng(0))
TOKENS = {"kind": "affine_quadratic", "beta": 1e-3}


def by_policy(**changed: Any) -> dict[str, Any]:
    given = {"world_sizes": [8], "cost": TOKENS, **changed}
    return {each.policy: each for each in what_if(LENGTHS, **given)}


def test_a_step_of_equal_samples_is_their_sum() -> None:
    (static,) = what_if([10] * 64, world_sizes=[4], samples_per_rank=4, policies=["static"], cost=TOKENS, steps=2)
    assert static.step_s == pytest.approx(4 * 10 * 1e-3)
    assert static.waiting == pytest.approx(0, abs=1e-9)


def test_policies_rank_as_their_makespans_do() -> None:
    found = by_policy()
    assert found["static"].speed_up == 1
    steps = [found[name].step_s for name in ("static", "minmax", "balanced", "packed")]
    assert steps == sorted(steps, reverse=True)
    assert found["packed"].waiting < 0.05 < found["static"].waiting


def test_a_policy_that_knows_speeds_gains_on_one_that_does_not() -> None:
    even, slow = by_policy(), by_policy(slow_share=0.25, slowness=1.5)
    assert slow["static"].step_s > even["static"].step_s
    assert "balanced, speeds known" not in even
    assert slow["balanced, speeds known"].step_s < 0.85 * slow["balanced"].step_s
    assert slow["balanced"].step_s == pytest.approx(1.5 * even["balanced"].step_s, rel=0.1)


def test_messages_and_noise_lengthen_every_step() -> None:
    quiet, network = by_policy(), Network(messages=(1e9,), bandwidth_bytes_per_s=1e9)
    with_messages = by_policy(network=network)
    for name, each in with_messages.items():
        assert each.step_s == pytest.approx(quiet[name].step_s + 2 * 7 / 8)
        assert each.network_s == pytest.approx(2 * 7 / 8)
    assert by_policy(noise=True) == quiet, "of coefficients no noise is known"


def test_thousands_of_ranks_take_seconds() -> None:
    lengths, begin = sst2_lengths(2**16, np.random.default_rng(0)), time.process_time()
    what_if(lengths, world_sizes=[4096], policies=["balanced"], steps=2)
    assert time.process_time() - begin < 10


@pytest.mark.parametrize(
    ("changed", "fault"),
    [
        ({"world_sizes": [100_000]}, "world_sizes.0 = 100000: input should be less than or equal to 65536"),
        ({"world_sizes": [0]}, "world_sizes.0 = 0: input should be greater than 0"),
        ({"world_sizes": []}, "world_sizes"),
        ({"policies": ["pool"]}, "policies.0 = 'pool': input should be 'static', 'minmax'"),
        ({"slowness": 0.0}, "slowness = 0.0: input should be greater than 0"),
        ({"slow_share": 1.5}, "slow_share = 1.5: input should be less than or equal to 1"),
        ({"cost": {"kind": "padded_tokens"}}, "cost.kind = 'padded_tokens' is in tokens; give seconds"),
        ({"cost": {"kind": "calibrated"}}, "calibrated needs path"),
        ({"world_sizes": [1024]}, "8 samples a rank on 1024 ranks are 8,192 a step, at most 4,096 (there are 4,096)"),
        ({"network": "none.json"}, "network none.json: No such file"),
    ],
)
def test_values_out_of_range(changed: dict[str, Any], fault: str) -> None:
    with pytest.raises(ConfigError) as raised:
        by_policy(**changed)
    assert fault in str(raised.value)
