"""Rectangles of a step hold its tokens, and figures of plans can be read."""

from pathlib import Path

import pandas as pd
import pytest
from drawn import faults, same_bytes
from matplotlib.patches import Rectangle

from analysis.draw_shift import draw_shift
from analysis.draw_step_blocks import draw_step_blocks
from analysis.step_blocks import Micro, step_blocks
from analysis.step_blocks import yardstick as yardstick_of

RANKS = [[Micro([2, 6], 6)], [Micro([3, 3], 4), Micro([1], 1)], [Micro([5, 4])], []]
ARMS = ["static", "batch_rebalance", "minmax", "balanced", "balanced (M = 4)", "packed"]


def test_blocks_by_hand() -> None:
    blocks = step_blocks(RANKS)
    sums = blocks.pivot_table(index="rank", columns="kind", values="tokens", aggfunc="sum", fill_value=0)
    assert sums.loc[0, ["real", "padding", "wait"]].tolist() == [8, 4, 0]
    assert sums.loc[1, ["real", "padding", "wait"]].tolist() == [7, 2, 3]
    assert sums.loc[2, ["real", "padding", "wait"]].tolist() == [9, 0, 3], "packed rows have no padding"
    assert sums.loc[3, "wait"] == 12, "a rank without samples waits all the time"
    assert yardstick_of(blocks) == (pytest.approx(12 / 6), 12, 6)
    ends = blocks["begin"] + blocks["tokens"]
    assert (blocks["begin"].shift(-1)[blocks["rank"].diff(-1) == 0] == ends[blocks["rank"].diff(-1) == 0]).all()


def test_rectangles_are_to_scale(tmp_path: Path) -> None:
    steps = {"static": step_blocks(RANKS), "packed": step_blocks([[Micro([5, 4])], [Micro([8, 1])]])}
    figure = draw_step_blocks(steps)
    widths = sorted(patch.get_width() for patch in figure.axes[0].patches if isinstance(patch, Rectangle))
    assert widths == sorted(steps["static"]["tokens"])
    assert figure.axes[0].get_xlim() == figure.axes[1].get_xlim(), "one scale"
    assert not faults(figure)
    assert same_bytes(lambda: draw_step_blocks(steps), tmp_path)


def test_shift_names_its_laws(tmp_path: Path) -> None:
    rows = [
        {"arm": arm, "step": step, "step_s": 1 + turn * (3 if 20 <= step < 40 else 1)}
        for turn, arm in enumerate(ARMS)
        for step in range(60)
    ]
    found, changes = pd.DataFrame(rows), [(0, "SST-2"), (20, "GSM8K"), (40, "SST-2")]
    figure = draw_shift(found, changes)
    assert not faults(figure)
    assert [text.get_text() for text in figure.axes[0].texts][:3] == ["SST-2", "GSM8K", "SST-2"]
    short = draw_shift(found[~found["step"].between(21, 38)], [(0, "SST-2"), (20, "GSM8K"), (40, "SST-2")])
    (line,) = [each for each in short.axes[0].lines if each.get_label() == "packed"]
    assert list(line.get_ydata()[19:23]) == [6, 16, 16, 6], "no median reaches over a change"
    assert same_bytes(lambda: draw_shift(found, changes), tmp_path)
