"""Labels stand where they belong and do not meet, whatever lies close together."""

import numpy as np
import pytest
from drawn import drawn_texts, faults
from hypothesis import given
from hypothesis import strategies as st

from analysis.labels import EndLabel, label_ends, label_points, name_beside, named, settle, spread
from analysis.style import dash, page, shown_arms, tint

ARMS = ["static", "batch_rebalance", "minmax", "balanced", "balanced (M = 4)", "packed"]


@given(st.lists(st.tuples(st.floats(-5, 5), st.floats(0.1, 1)), min_size=1, max_size=8))
def test_spread_keeps_order_distance_and_limits(labels: list[tuple[float, float]]) -> None:
    wanted, heights = map(list, zip(*labels, strict=True))
    places = spread(wanted, heights, -10, 10)
    order = np.argsort(wanted, kind="stable")
    tall, found = np.array(heights)[order], np.array(places)[order]
    assert (np.diff(found) >= (tall[1:] + tall[:-1]) / 2 - 1e-9).all()
    assert found[0] - tall[0] / 2 >= -10 - 1e-9
    assert found[-1] + tall[-1] / 2 <= 10 + 1e-9


def test_labels_that_do_not_meet_stay() -> None:
    assert spread([3.0, 1.0, 5.0], [1.0, 1.0, 1.0]) == [3.0, 1.0, 5.0]
    assert spread([1.0, 1.0], [1.0, 1.0], 0.9, 9) == pytest.approx([1.4, 2.4]), "moved up from the lower limit"


@pytest.mark.parametrize("ends", [[1.0] * 6, [0, 0, 0, 0, 0, 9], [1, 2, 3, 4, 5, 6], [5, 5, 5, np.nan, 0, 0]])
def test_ends_of_lines_are_named_apart(ends: list[float]) -> None:
    figure, (ax,) = page(height_cm=5)
    for arm, end in zip(ARMS, ends, strict=True):
        ax.plot([0, 1], [2.0, end], color=tint(arm, ARMS), label=arm)
    ax.plot([0, 1], [3, 3], label="_hidden")
    label_ends(ax)
    assert not faults(figure)
    assert {text.get_text() for text, _ in drawn_texts(figure)} >= set(ARMS)
    assert "_hidden" not in {text.get_text() for text, _ in drawn_texts(figure)}


def test_a_label_is_level_with_its_line_and_joined_only_where_it_was_moved() -> None:
    figure, (ax,) = page(height_cm=5)
    for arm, end in (("static", 0.9), ("packed", 0.1), ("minmax", 0.1)):
        ax.plot([0, 1], [0.5, end], label=arm)
    ax.set(xlim=(0, 1), ylim=(0, 1))
    label_ends(ax)
    settle(figure)
    notes = {each.get_text(): each for each in ax.texts if isinstance(each, EndLabel)}
    assert notes["static"].get_position()[1] == pytest.approx(0.9)
    joined = {name: bool(note.arrow_patch and note.arrow_patch.get_visible()) for name, note in notes.items()}
    assert joined == {"static": False, "packed": True, "minmax": True}


def test_points_in_one_place_are_named_apart() -> None:
    figure, (ax,) = page(height_cm=9)
    xs, ys = [1.0] * 6, [1.0, 1.0, 1.01, 1.02, 1.3, 0.7]
    ax.plot(xs, ys, "o")
    ax.set(xlim=(0, 2), ylim=(0, 2))
    label_points(ax, xs, ys, ARMS, ["black"] * 6)
    assert not faults(figure)
    assert {text.get_text() for text, _ in drawn_texts(figure)} >= set(ARMS)


def test_faults_are_found() -> None:
    figure, (ax,) = page(height_cm=5)
    ax.text(0.5, 0.5, "one", fontsize=9)
    ax.text(0.5, 0.5, "two", fontsize=6)
    ax.text(1.2, 0.5, "far", fontsize=9).set_in_layout(False)
    assert faults(figure) == ["'one' meets 'two'", "'two' has 6.0 points", "'far' is cut off"]


def test_names_beside_a_panel() -> None:
    figure, (ax,) = page(height_cm=5)
    name_beside(ax, ARMS, ["black"] * 6)
    assert not faults(figure)


def test_names_that_others_wrote_are_shown_as_they_are() -> None:
    figure, (ax,) = page(height_cm=5)
    arms = ["_mine", "$x_{$ of someone with a long name", "a\x1b[31m b"]
    for place, arm in enumerate(arms):
        ax.plot([0, 1], [0, place], label=named(arm))
    label_ends(ax)
    assert not faults(figure)
    words = {text.get_text().strip() for text, _ in drawn_texts(figure)}
    assert {"_mine", "$x_{$ of someone\nwith a long name", "a\\x1b[31m b"} <= words


def test_six_arms_at_most_and_those_of_one_policy_differ() -> None:
    many = ["static", "A/A", "static (length_grouped)", "minmax", "balanced", "balanced (M = 4)", "packed", "bins"]
    assert shown_arms([*many, "batch_rebalance"]) == [
        "static", "minmax", "balanced", "balanced (M = 4)", "packed", "batch_rebalance",
    ]  # fmt: skip
    looks = {(tint(arm, ARMS), str(dash(arm, ARMS))) for arm in ARMS}
    assert len(looks) == len({look for look, _ in looks}) == len(ARMS)
