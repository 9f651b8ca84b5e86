"""The step that the report draws has the planner's own yardstick, and that of another package's plans."""

import numpy as np
import pytest

from analysis.step_blocks import yardstick
from analysis.style import STRONGEST
from ddpsched.compare import Question
from ddpsched.compare.arms import compare
from ddpsched.data.embedded.length_histogram import sst2_lengths
from experiments.planned import ARMS, TYPICAL, one_step

LENGTHS = sst2_lengths(32, np.random.default_rng(TYPICAL))


def test_one_step_has_the_planner_s_yardsticks() -> None:
    blocks = one_step(LENGTHS)
    rows = compare(Question(LENGTHS, 4, 32), [arm for arm in ARMS if arm != STRONGEST], [STRONGEST])
    planned = {row.arm: row.figures.yardstick for row in rows if row.figures is not None}
    found = {arm: yardstick(table)[0] for arm, table in blocks.items()}
    assert list(found) == list(ARMS)
    for arm in ("balanced", "packed"):
        assert found[arm] == pytest.approx(planned[arm]), "of the same samples, whatever their order"
    for arm in ARMS:
        assert blocks[arm].loc[blocks[arm]["kind"] == "real", "tokens"].sum() == LENGTHS.sum()
    assert "padding" not in set(blocks["packed"]["kind"])
    epoch = {"static": 3.01, "batch_rebalance": 1.39, "balanced": 1.37, "packed": 1.00}  # SST-2's
    assert found == pytest.approx(epoch, rel=0.04)
