"""Rectangles of a step hold its tokens, and figures of plans can be read."""

from pathlib import Path

import pandas as pd
import pytest
from drawn import drawn_texts, faults, same_bytes
from matplotlib.patches import Rectangle
from synthetic import write_run

from analysis.draw_scaling import draw_scaling
from analysis.draw_shift import draw_shift, draw_unequal
from analysis.draw_step_blocks import draw_step_blocks
from analysis.load import load_study
from analysis.measured import measured_loads
from analysis.metrics import per_step
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


def test_loads_of_a_run(tmp_path: Path) -> None:
    write_run(tmp_path / "s", "static", steps=8, world_size=4)
    steps = per_step(load_study(tmp_path / "s").runs[0].records)
    loads = measured_loads({"static": steps, "minmax": steps})
    assert list(loads["arm"].unique()) == ["static", "minmax"]
    assert loads["load"].iloc[3] == steps["max_padded_tokens"].iloc[3] / (steps["num_tokens"].iloc[3] / 4)
    assert not faults(draw_shift(loads, [(0, "as drawn")], column="step_s", label="seconds a step"))


def test_scaling_labels_six_lines(tmp_path: Path) -> None:
    rows = [
        {"arm": arm, "world_size": ranks, "yardstick": 1 + turn * 0.02 * ranks**0.3}
        for turn, arm in enumerate([*ARMS, "bins"])
        for ranks in (4, 64, 4096)
        if arm != "batch_rebalance" or ranks < 4096
    ]
    planned = pd.DataFrame(rows)
    figure = draw_scaling(planned)
    assert not faults(figure)
    words = {text.get_text() for text, _ in drawn_texts(figure)}
    assert {*ARMS, "4", "64", "4,096"} <= words
    assert "bins" not in words, "six lines at most"
    low, high = figure.axes[0].get_ylim()
    assert low > 0.9, "no empty decades"
    assert high < 1.1 * planned["yardstick"].max()
    assert same_bytes(lambda: draw_scaling(planned), tmp_path)


def test_shift_names_its_laws(tmp_path: Path) -> None:
    rows = [
        {"arm": arm, "step": step, "load": 1 + turn * (3 if 20 <= step < 40 else 1)}
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


def test_bars_of_unequal_ranks(tmp_path: Path) -> None:
    rows = [("static", False, 4.6), ("balanced", False, 2.2), ("balanced", True, 1.6), ("packed", True, 1.01)]
    found = pd.DataFrame(rows, columns=["arm", "learning", "step"])
    figure = draw_unequal(found, (1, 1.5, 2))
    assert not faults(figure)
    assert [round(bar.get_width(), 2) for bar in figure.axes[0].patches if isinstance(bar, Rectangle)] == [
        4.6, 2.2, 1.6, 1.01,
    ]  # fmt: skip
    assert same_bytes(lambda: draw_unequal(found, (1, 1.5, 2)), tmp_path)
