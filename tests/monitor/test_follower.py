"""Records that are read while they are written: nothing twice, nothing half, and what is no record is counted."""

import json
from pathlib import Path

import pytest
from made_runs import line, record

from ddpsched.monitor import follower
from ddpsched.monitor.follower import Follower
from ddpsched.monitor.whole_steps import WholeSteps


def test_each_record_comes_once_and_whole(tmp_path: Path) -> None:
    path, found = tmp_path / "records-rank0.jsonl", Follower(tmp_path)
    assert found.read() == []
    path.write_text(line(record(0)) + line(record(1))[:50])
    assert found.read() == [record(0)]
    assert found.read() == []
    path.write_text(line(record(0)) + line(record(1)))
    assert found.read() == [record(1)]
    (tmp_path / "records-rank1.jsonl").write_text(line(record(0, rank=1)))
    assert found.read() == [record(0, rank=1)]
    assert (found.num_left_out, found.num_restarts) == (0, 0)


def test_a_cut_off_line_of_an_ended_run_is_left_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, found = tmp_path / "records-rank0.jsonl", Follower(tmp_path)
    text = line(record(0)) + line(record(1))[:50]
    path.write_text(text)
    monkeypatch.setattr(follower, "MOST_AT_ONCE", len(text))
    assert found.read(ended=True) == [record(0)]
    assert found.num_left_out == 0, "what was read may be cut by the reader"
    assert found.read(ended=True) == []
    assert (found.num_left_out, found.first_left_out) == (1, "records-rank0.jsonl, line 2: it ends in the middle")
    assert found.read(ended=True) == []
    assert found.num_left_out == 1


def test_lines_that_are_no_records_are_named_and_counted(tmp_path: Path) -> None:
    old = {name: value for name, value in vars(record(1)).items() if name != "padded_tokens"}
    lines = [
        line(record(0)),
        json.dumps(old) + "\n",  # of a schema without that column
        line(record(2)).replace('"step": 2', '"step": 3'),  # its checksum is another line's
        "{\n",
        line(record(4)),
    ]
    (tmp_path / "records-rank0.jsonl").write_text("".join(lines))
    found = Follower(tmp_path)
    assert [each.step for each in found.read()] == [0, 4]
    assert found.num_left_out == 3
    assert found.first_left_out == "records-rank0.jsonl, line 2: padded_tokens is missing"


def test_the_end_of_a_long_file_is_read_alone(tmp_path: Path) -> None:
    lines = [line(record(step)) for step in range(100)]
    path = tmp_path / "records-rank0.jsonl"
    path.write_text("".join(lines) + "{\n")
    found = Follower(tmp_path, tail=5 * len(lines[-1]))
    steps = [each.step for each in found.read()]
    assert steps in ([*range(95, 100)], [*range(96, 100)])
    assert "line 101:" in found.first_left_out


def test_a_file_begun_anew_is_read_from_its_beginning(tmp_path: Path) -> None:
    path, found = tmp_path / "records-rank0.jsonl", Follower(tmp_path)
    path.write_text(line(record(0)) + line(record(1)))
    found.read()
    path.unlink()
    path.write_text(line(record(0)))
    assert [each.step for each in found.read()] == [0]
    assert found.num_restarts == 1


def test_a_large_file_comes_in_pieces(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lines = [line(record(step)) for step in range(10)]
    (tmp_path / "records-rank0.jsonl").write_text("".join(lines))
    monkeypatch.setattr(follower, "MOST_AT_ONCE", 3 * len(lines[0]) + 10)
    found = Follower(tmp_path)
    assert [len(found.read()) for _ in range(4)] == [3, 3, 3, 1]


@pytest.mark.parametrize("damage", ["{\n" * 1000, "{" * 2500 + "\n"], ids=["many lines", "a long line"])
def test_records_behind_a_piece_without_any_are_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, damage: str
) -> None:
    path, found = tmp_path / "records-rank0.jsonl", Follower(tmp_path)
    path.write_text(line(record(0)) + damage + line(record(1)))
    monkeypatch.setattr(follower, "MOST_AT_ONCE", 1000)
    assert len(line(record(0))) < 1000, "a record fits into a piece"
    assert [each.step for piece in found.read_all() for each in piece] == [0, 1]
    assert found.num_left_out >= 1
    assert list(found.read_all()) == []
    with path.open("a") as file:
        file.write(line(record(2)))
    assert list(found.read_all()) == [[record(2)]]


def test_what_is_there_can_be_passed_over(tmp_path: Path) -> None:
    path, found = tmp_path / "records-rank0.jsonl", Follower(tmp_path)
    path.write_text(line(record(0)))
    found.pass_over()
    with path.open("a") as file:
        file.write(line(record(1)))
    assert [each.step for each in found.read()] == [1]


def test_steps_are_whole_once_all_ranks_are_there() -> None:
    steps = WholeSteps()
    assert steps.add([record(0), record(1), record(2)]) == []
    whole = steps.add([record(0, rank=1), record(2, rank=1)])
    assert [[each.step for each in step] for step in whole] == [[0, 0], [2, 2]]
    assert [each.rank for each in whole[0]] == [0, 1]
    assert steps.add([record(1, rank=1)]) == []  # given up, as a later one is whole
