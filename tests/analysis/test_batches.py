"""The contents of steps, compared with numbers worked out by hand and with the definition on the samples."""

import numpy as np
import pandas as pd
import pytest

from analysis.batches import batches, order_bias
from ddpsched.costs.config import CostConfig, cost_model
from ddpsched.planning.yardstick import Ruler


def steps() -> pd.DataFrame:
    """Return three steps of two ranks; the first is warm-up, and the last is the rest of an epoch."""
    return pd.DataFrame(
        {
            "epoch": 0.0,
            "num_samples": [4, 8, 2],
            "num_tokens": [20, 30, 10],
            "squared_tokens": [120.0, 130.0, 50.0],
            "padded_tokens": [30, 40, 10],
            "max_padded_tokens": [20, 24, 5],
            "mean_padded_tokens": [15.0, 20.0, 5.0],
            "max_compute_s": [9.0, 3.0, 2.0],
            "mean_compute_s": [1.0, 2.0, 2.0],
            "step_s": [9.0, 3.0, 2.0],
        }
    )


def test_batches_by_hand() -> None:
    found = batches(steps())
    assert found["padding"] == pytest.approx(1 - 60 / 80)
    assert found["imbalance_tokens"] == pytest.approx(49 / 40)
    assert found["imbalance_compute"] == pytest.approx(5 / 4)
    assert found["batch_mean"] == pytest.approx(14 / 3)
    assert found["batch_cv"] == pytest.approx(np.std([4, 8]) / 6)


def test_nothing_measured_is_nan() -> None:
    found = batches(steps().assign(max_compute_s=np.nan, squared_tokens=np.nan))
    assert np.isnan(found["imbalance_compute"])
    assert np.isnan(found["order_bias"])
    assert found["padding"] == pytest.approx(0.25)


@pytest.mark.parametrize("order", ["shuffled", "sorted", "equal"])
def test_order_bias_is_the_yardsticks(order: str) -> None:
    rng = np.random.default_rng(0)
    lengths = rng.lognormal(2.4, 0.6, 4000).astype(np.int64) + 1
    if order != "shuffled":
        lengths = np.sort(lengths) if order == "sorted" else np.full(4000, 7)
    ends = np.cumsum(rng.integers(8, 60, 300))
    parts = [ids for ids in np.split(np.arange(4000), ends[ends < 4000]) if len(ids)]
    ruler = Ruler(lengths, 1, cost_model(CostConfig()))
    ruler.add_epoch([[[ids]] for ids in parts])
    sums = ([float((lengths[ids] ** power).sum()) for ids in parts] for power in (0, 1, 2))
    bias = order_bias(*(np.array(each) for each in sums))
    assert bias == pytest.approx(ruler.read().order_bias, abs=1e-12)
    assert {"shuffled": abs(bias) < 0.02, "sorted": bias > 0.9, "equal": bias == 0}[order]
