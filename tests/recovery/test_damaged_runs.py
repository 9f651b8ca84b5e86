"""A run that was stopped, and then damaged, goes on as it was, or is refused before anything is changed."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from runs import config_of

from ddpsched.config import RunConfig, parse
from ddpsched.errors import ConfigError, DataError
from ddpsched.recovery.audit import audit
from ddpsched.recovery.ledger import LEDGER
from ddpsched.run_loop import run

RECORDS = "records-rank0.jsonl"
STEPS, EVERY, AT = 8, 2, 5  # the run; steps between checkpoints; the step in which it is stopped


def config(outputs: Path, **values: Any) -> RunConfig:
    train = {"checkpoint_every": EVERY, "save_model": False}
    return config_of(outputs, **{"train": train, "steps": STEPS, "data": {"size": 60}, **values})


@pytest.fixture
def folder(tmp_path: Path, stopped: Any) -> Path:
    stopped(given := config(tmp_path), AT)
    return given.run_dir


def state(folder: Path) -> dict[str, bytes]:
    return {str(path): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}


def lines_of(path: Path) -> list[bytes]:
    return path.read_bytes().splitlines(keepends=True)


@pytest.mark.parametrize("line", [0, 3, 2 * AT - 3])
def test_a_damaged_record_before_the_checkpoint_is_refused(tmp_path: Path, folder: Path, line: int) -> None:
    lines = lines_of(folder / RECORDS)
    lines[line] = bytes([lines[line][0] ^ 1]) + lines[line][1:]
    (folder / RECORDS).write_bytes(b"".join(lines))
    before = {name: data for name, data in state(folder).items() if RECORDS in name or LEDGER in name}
    with pytest.raises(DataError, match=rf"{RECORDS}, line {line + 1}, is not what was written.* --restart"):
        run(config(tmp_path))
    after = state(folder)
    assert all(after[name] == data for name, data in before.items()), "something was cut off"


@pytest.mark.parametrize("damage", [b"\0" * 4096, b'{"step": 4, "rank"', b'{"step": 5}\n'])
def test_damage_behind_the_checkpoint_is_cut_off(tmp_path: Path, folder: Path, damage: bytes) -> None:
    """As after a loss of power: the file grew, and what was to be in it was not written."""
    lines = lines_of(folder / RECORDS)
    (folder / RECORDS).write_bytes(b"".join(lines[: 2 * (AT - AT % EVERY)]) + damage)
    assert audit(run(config(tmp_path))).faults == []


def test_records_that_are_gone_are_refused(tmp_path: Path, folder: Path) -> None:
    (folder / RECORDS).unlink()
    with pytest.raises(DataError, match="the record of step 0, rank 0 is missing, though the checkpoint is after 4"):
        run(config(tmp_path))


@pytest.mark.parametrize("text", [None, "{", '{"starts": 5}', '{"starts": [{"step": "x"}]}'])
def test_a_damaged_environment_is_written_anew(
    tmp_path: Path, folder: Path, text: str | None, caplog: pytest.LogCaptureFixture
) -> None:
    path = folder / "environment.json"
    path.unlink() if text is None else path.write_text(text)
    assert audit(run(config(tmp_path))).faults == []
    assert "lists its earlier starts no more" in caplog.text
    assert [start["step"] for start in json.loads(path.read_text())["starts"]] == [4]


def test_without_its_status_a_run_goes_on(tmp_path: Path, folder: Path) -> None:
    (folder / "status.json").write_text("{")
    with pytest.raises(DataError, match=r"status\.json: cannot be read .*; delete this file, to go on"):
        run(config(tmp_path))
    (folder / "status.json").unlink()
    assert audit(run(config(tmp_path))).faults == []


def test_a_file_that_no_checkpoint_wrote_is_not_read(
    tmp_path: Path, folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    newest = folder / "checkpoints" / "step-00000004"
    (newest / "weights-x.safetensors").write_bytes((newest / "weights.safetensors").read_bytes())
    assert audit(run(config(tmp_path))).faults == []
    assert "weights-x.safetensors is none of the files that were written; remove it; the checkpoint be" in caplog.text


def test_an_outputs_folder_that_can_be_none(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(DataError, match=r"it, or one above it, is no folder; give .* outputs="):
        run(config(tmp_path / "file"))


def rows(count: int, first: int = 0) -> str:
    words = ("good", "bad and long")
    lines = (f"the film number {first + row} is {words[row % 3 == 0]}\t{row % 2}" for row in range(count))
    return "sentence\tlabel\n" + "".join(f"{line}\n" for line in lines)


Change = Callable[[Path], object]
CHANGES: dict[str, tuple[Change, str]] = {
    "other rows": (lambda path: (path / "train.tsv").write_text(rows(60, first=1)), r"contents\.data"),
    "more rows": (lambda path: (path / "train.tsv").write_text(rows(70)), r"contents\.data"),
    "fewer rows": (lambda path: (path / "train.tsv").write_text(rows(40)), r"contents\.data"),
    "another cost": (lambda path: (path / "cost.json").write_text(cost(2e-4)), r"contents\.cost\.path"),
}


def cost(beta: float) -> str:
    return json.dumps({"kind": "affine_quadratic", "alpha": 0.01, "beta": beta, "gamma": 0.0, "residuals": {}})


@pytest.mark.parametrize("name", CHANGES)
def test_contents_that_changed_are_refused(tmp_path: Path, stopped: Any, name: str) -> None:
    """Each would train other samples than the ledger says, or in another order."""
    (tmp_path / "train.tsv").write_text(rows(60))
    (tmp_path / "cost.json").write_text(cost(1e-4))
    given = parse(
        {
            **config(tmp_path).model_dump(exclude_none=True),
            "data": {"path": str(tmp_path / "train.tsv"), "tokenizer": str(vocabulary(tmp_path)), "held_out": 0.1},
            "cost": {"kind": "affine_quadratic", "path": str(tmp_path / "cost.json")},
        }
    )
    stopped(given, AT)
    change, key = CHANGES[name]
    change(tmp_path)
    with pytest.raises(ConfigError, match=rf"holds an unfinished run that was begun with {key} = .*--restart"):
        run(given)


def vocabulary(folder: Path) -> Path:
    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "the", "film", "number", "is", "good", "bad", "and", "long"]
    (folder / "vocab.txt").write_text("\n".join([*words, *map(str, range(100))]) + "\n")
    return folder / "vocab.txt"


def test_an_outputs_folder_that_cannot_be_made(tmp_path: Path) -> None:
    if not Path("/proc").is_dir():  # Linux has it; elsewhere no folder is known in which not even root can make one
        pytest.skip("no /proc here, in which no folder can be made")
    with pytest.raises(DataError, match=r"/proc/none.*: this folder cannot be made \(.*\); give outputs=\.\.\."):
        run(config(Path("/proc/none")))
