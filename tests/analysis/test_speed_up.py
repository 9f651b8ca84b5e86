"""Speed-ups over ranks as a table and a figure."""

from typing import Any

from analysis.speed_up import draw_speed_up, speed_up_table

SLOW = "some ranks 1.5 times as slow"


def row(size: int, policy: str, speed_up: float, share: float = 0.0) -> dict[str, Any]:
    return {
        "world_size": size, "policy": policy, "slow_share": share, "slowness": 1.5, "step_s": 1 / speed_up,
        "network_s": 0.0, "waiting": 0.1, "speed_up": speed_up,
    }  # fmt: skip


ROWS = [
    row(4, "static", 1.0), row(4, "balanced", 2.0), row(64, "static", 1.0), row(64, "balanced", 3.0),
    row(4, "static", 1.0, 0.25), row(4, "balanced", 1.8, 0.25), row(4, "balanced, speeds known", 2.5, 0.25),
]  # fmt: skip


def test_the_table_has_a_row_for_each_policy_and_speed_in_their_order() -> None:
    table = speed_up_table(ROWS)
    assert list(table.columns) == [4, 64]
    assert [policy for slow, policy in table.index if slow == SLOW] == ["static", "balanced", "balanced, speeds known"]
    assert table.loc[("ranks of equal speed", "balanced")].tolist() == [2.0, 3.0]
    assert table.loc[(SLOW, "balanced")].isna().tolist() == [False, True]
    assert speed_up_table(ROWS, "step_s").loc[("ranks of equal speed", "balanced"), 64] == 1 / 3


def test_the_figure_has_a_panel_for_each_and_all_policies_in_view() -> None:
    figure = draw_speed_up(ROWS, "a title with $ and [brackets]")
    left, right = figure.axes
    assert [len(ax.lines) for ax in (left, right)] == [2, 3]
    assert left.get_ylim()[1] >= 3.0
    assert len(draw_speed_up(ROWS[:4], "one").axes) == 1


def test_measured_points_are_rings_in_the_first_panel() -> None:
    measured = [row(4, policy, at) | {"low": 4.0, "high": 5.0} for policy, at in (("balanced", 4.5), ("unknown", 9.0))]
    left, right = draw_speed_up(ROWS, measured=measured).axes
    assert [len(ax.lines) for ax in (left, right)] == [3, 3]  # a policy without a line has no ring
    assert left.get_ylim()[1] >= 4.5
    measured = [row(4, policy, 2.0) | {"low": 1.9, "high": 2.1} for policy in ("balanced", "packed")]
    rows = [*ROWS, row(4, "packed", 2.2), row(4, "packed", 1.9, 0.25)]
    rings = [
        line for line in draw_speed_up(rows, measured=measured).axes[0].lines if line.get_markerfacecolor() == "white"
    ]
    assert len({float(line.get_xdata()[0]) for line in rings}) == len(rings) == 2, "none hides another"
