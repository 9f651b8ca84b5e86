"""Menus that are kept: searched once for equal arguments, and again for any other."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ddpsched.costs.cost_model import CostModel
from ddpsched.costs.step_times import KEPT
from ddpsched.data.lengths import KnownLengths
from ddpsched.orders.config import OrderConfig
from ddpsched.orders.epoch_order import Order
from ddpsched.planning.plan_spec import PlanSpec
from ddpsched.planning.policies.balanced import Balanced
from ddpsched.planning.policies.static import Static
from ddpsched.planning.shapes import kept, search
from ddpsched.planning.shapes.choose import choose_shapes
from ddpsched.planning.shapes.kept import kept_shapes

LENGTHS = np.random.default_rng(0).lognormal(2.4, 0.6, 400).clip(3, 66).astype(np.int64)
SPEC = PlanSpec(world_size=4, global_batch=16, policy=Balanced(), epochs=1, max_length=66)


@pytest.fixture(autouse=True)
def searches(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    monkeypatch.setenv(KEPT, str(tmp_path / "cache"))
    monkeypatch.setattr(search, "MOST", 100)  # how good a menu is makes no difference here
    asked: list[Any] = []

    def counted(*given: Any) -> Any:
        asked.append(given)
        return choose_shapes(*given)

    monkeypatch.setattr(kept, "choose_shapes", counted)
    return asked


def test_equal_arguments_are_searched_once(searches: list[Any]) -> None:
    first = kept_shapes(SPEC, KnownLengths(LENGTHS), 4)
    assert (
        first
        == kept_shapes(replace(SPEC), KnownLengths(LENGTHS.copy()), 4)
        == choose_shapes(SPEC, KnownLengths(LENGTHS), 4)
    )
    assert len(searches) == 1


@pytest.mark.parametrize(
    "changed",
    [
        {"policy": Static()}, {"policy": Balanced(max_microbatches=2)}, {"world_size": 2}, {"global_batch": 8},
        {"seed": 1}, {"cost": CostModel(1e-3, 1e-5, 0)}, {"order": Order(OrderConfig(kind="sequential"))},
        {"last": "join"}, {"batch_ranks": 2}, {"max_length": 67},
    ],
    ids=str,
)  # fmt: skip
def test_other_arguments_are_searched_again(searches: list[Any], changed: dict[str, Any]) -> None:
    kept_shapes(SPEC, KnownLengths(LENGTHS), 4)
    kept_shapes(replace(SPEC, **changed), KnownLengths(LENGTHS), 4)
    assert len(searches) == 2


def test_other_lengths_and_numbers_are_searched_again(searches: list[Any]) -> None:
    kept_shapes(SPEC, KnownLengths(LENGTHS), 4)
    kept_shapes(SPEC, KnownLengths(LENGTHS[::-1].copy()), 4)
    kept_shapes(SPEC, KnownLengths(LENGTHS), 3)
    assert len(searches) == 3


def test_a_damaged_file_is_searched_again(searches: list[Any], tmp_path: Path) -> None:
    found = kept_shapes(SPEC, KnownLengths(LENGTHS), 4)
    (file,) = (tmp_path / "cache" / "menus").iterdir()
    file.write_text("[[4, ")
    assert kept_shapes(SPEC, KnownLengths(LENGTHS), 4) == found
    assert len(searches) == 2
    assert kept_shapes(SPEC, KnownLengths(LENGTHS), 4) == found
    assert len(searches) == 2


def test_a_folder_that_cannot_be_written_keeps_nothing(searches: list[Any], tmp_path: Path) -> None:
    (tmp_path / "cache").write_text("a file")
    assert kept_shapes(SPEC, KnownLengths(LENGTHS), 4) == kept_shapes(SPEC, KnownLengths(LENGTHS), 4)
    assert len(searches) == 2
