"""The ledger: lines that chain, cut back to a checkpoint."""

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ddpsched.errors import DataError
from ddpsched.recovery.ledger import LEDGER, Head, Ledger, cut, entries
from ddpsched.step_plan import StepPlan

NUM_STEPS = 5


def plan_of(step: int) -> StepPlan:
    return StepPlan.cut(0, step, np.arange(4 * step, 4 * step + 4), [[1], [2, 1]])


@pytest.fixture
def heads(tmp_path: Path) -> list[Head]:
    ledger = Ledger(tmp_path, Head())
    found = [ledger.head]
    for step in range(NUM_STEPS):
        ledger.commit(plan_of(step), skipped=step == 2)
        found.append(ledger.head)
    ledger.sync()
    ledger.close()
    return found


def test_steps_are_read_as_they_were_committed(tmp_path: Path, heads: list[Head]) -> None:
    read = list(entries(tmp_path))
    assert [entry.head for entry in read] == heads[1:]
    assert [entry.ranks for entry in read[:2]] == [[[0], [1, 2, 3]], [[4], [5, 6, 7]]]
    assert [entry.skipped for entry in read] == [False, False, True, False, False]
    assert read[1].plan == plan_of(1).digest_hex
    assert read[-1].end == (tmp_path / LEDGER).stat().st_size


def test_incomplete_last_line_is_left_out(tmp_path: Path, heads: list[Head]) -> None:
    path = tmp_path / LEDGER
    path.write_bytes(path.read_bytes()[:-1])
    assert [entry.step for entry in entries(tmp_path)] == [0, 1, 2, 3]


@given(place=st.integers(0, 10**6), bit=st.integers(0, 7))
def test_any_flipped_bit_is_found(tmp_path_factory: pytest.TempPathFactory, place: int, bit: int) -> None:
    folder = tmp_path_factory.mktemp("ledger")
    ledger = Ledger(folder, Head())
    for step in range(3):
        ledger.commit(plan_of(step), skipped=False)
    ledger.close()
    data = bytearray((folder / LEDGER).read_bytes())
    at = place % (len(data) - 1)  # without the last line's end, whose loss makes it an incomplete line
    data[at] ^= 1 << bit
    (folder / LEDGER).write_bytes(bytes(data))
    with pytest.raises(DataError, match=r"ledger\.jsonl, line \d"):
        list(entries(folder))


@pytest.mark.parametrize("line", range(NUM_STEPS - 1))
def test_lost_and_moved_lines_are_found(tmp_path: Path, heads: list[Head], line: int) -> None:
    path = tmp_path / LEDGER
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join(lines[:line] + lines[line + 1 :]))
    with pytest.raises(DataError, match=f"line {line + 1}: does not chain"):
        list(entries(tmp_path))
    lines[line], lines[line + 1] = lines[line + 1], lines[line]
    path.write_bytes(b"".join(lines))
    with pytest.raises(DataError, match=f"line {line + 1}: does not chain"):
        list(entries(tmp_path))


@pytest.mark.parametrize("steps", range(NUM_STEPS + 1))
def test_cut_leaves_the_steps_before_a_checkpoint(tmp_path: Path, heads: list[Head], steps: int) -> None:
    cut(tmp_path, heads[steps])
    ledger = Ledger(tmp_path, heads[steps])
    ledger.commit(plan_of(steps), skipped=False)
    ledger.close()
    assert [entry.step for entry in entries(tmp_path)] == list(range(steps + 1))


def test_ledger_of_another_run_is_not_cut(tmp_path: Path, heads: list[Head]) -> None:
    before = (tmp_path / LEDGER).read_bytes()
    for head in (Head(3, "f" * 32), Head(NUM_STEPS + 1, "0" * 32)):
        with pytest.raises(DataError, match="they are of different runs; begin anew with --restart"):
            cut(tmp_path, head)
    assert (tmp_path / LEDGER).read_bytes() == before
