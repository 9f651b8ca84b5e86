"""Packed ids are read as they were, and anything else is refused."""

import json
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ddpsched.errors import ConfigError
from ddpsched.packed_ids import pack, unpack
from ddpsched.step_plan import Position

WINDOWS = st.lists(st.lists(st.integers(0, 2**63 - 1), max_size=9), max_size=5)


@given(WINDOWS)
def test_what_was_packed_is_read(windows: list[list[int]]) -> None:
    position = Position(1, 2, 3, tuple(np.array(ids, dtype=np.int64) for ids in windows))
    stored = json.loads(json.dumps(position.as_packed()))
    assert Position.from_dict(stored).as_dict() == position.as_dict()


def test_an_id_takes_few_bits() -> None:
    ids = np.random.default_rng(0).permutation(1_000_000)[:10_000]
    assert len(json.dumps(pack([ids]))) < 10_000 * 20 / 8 * 4 / 3 + 100
    assert len(json.dumps(ids.tolist(), indent=2)) > 80_000


GOOD: dict[str, Any] = {"sizes": [2, 1], "bits": 3, "ids": "xQE="}


@pytest.mark.parametrize(
    "change",
    [
        {"sizes": [2, 4]}, {"sizes": [2, -1]}, {"sizes": [2.0, 1]}, {"sizes": [True, 2]}, {"sizes": 3},
        {"sizes": [10**30]}, {"bits": 6}, {"bits": 0}, {"bits": 64}, {"bits": "3"}, {"bits": True}, {"bits": 10**30},
        {"ids": "xQE"}, {"ids": "xQH="}, {"ids": "xQEA"}, {"ids": "xQM="}, {"ids": "x E="}, {"ids": 3}, {"ids": "é"},
        {"ids": ""}, {"more": 1},
    ],
    ids=str,
)  # fmt: skip
def test_anything_else_is_refused(change: dict[str, Any]) -> None:
    assert [ids.tolist() for ids in unpack(GOOD)] == [[5, 0], [7]]
    with pytest.raises(ValueError, match=r"."):
        unpack(GOOD | change)
    with pytest.raises(ConfigError, match="position: windows are not what was packed"):
        Position.from_dict({"epoch": 0, "step": 1, "cursor": 2, "windows": GOOD | change})


@given(
    st.dictionaries(st.sampled_from(["sizes", "bits", "ids"]), st.one_of(st.none(), st.integers(), st.text("xQE=A é")))
)
def test_no_other_error_is_raised(change: dict[str, Any]) -> None:
    try:
        unpack(GOOD | change)
    except ValueError:
        return
    assert unpack(GOOD | change) is not None


def test_an_unpacked_list_is_read_as_before() -> None:
    assert Position.from_dict({"epoch": 0, "step": 1, "cursor": 3, "windows": [[2], [0]]}).windows[0].tolist() == [2]
