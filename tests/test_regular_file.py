"""A device or a pipe where a file is expected: one message at once, and nothing is left behind."""

import os
from pathlib import Path

import pytest
from typer.testing import CliRunner

from ddpsched import regular_file
from ddpsched.cli import app
from ddpsched.regular_file import check_regular, read_regular

RUN = 'outputs = "{out}"\nsteps = 2\nglobal_batch = 4\nworld_size = 2\nexecutor = {{ kind = "virtual" }}\n'
PLACES = {
    "data": "data.path={pipe}.jsonl",
    "data, bad rows left out": "data.path={pipe}.jsonl data.on_bad=skip",
    "tokenizer": "data.path={rows} data.text=text data.tokenizer=/dev/null",
    "order": "order.kind=curriculum order.path=/dev/null",
    "calibration": "cost.kind=calibrated cost.path=/dev/null",
    "fit": "cost.kind=affine_quadratic cost.path=/dev/null",
    "memory": "memory.path=/dev/null memory.budget_bytes=1000000",
}


@pytest.mark.parametrize("place", PLACES)
def test_named_by_a_config(place: str, tmp_path: Path) -> None:
    (tmp_path / "run.toml").write_text(RUN.format(out=tmp_path / "out"))
    (tmp_path / "rows.jsonl").write_text('{"label": 1, "text": "a fine film"}\n' * 8)
    os.mkfifo(tmp_path / "pipe.jsonl")
    words = PLACES[place].format(pipe=tmp_path / "pipe", rows=tmp_path / "rows.jsonl").split()
    result = CliRunner().invoke(app, ["run", str(tmp_path / "run.toml"), *words])
    assert isinstance(result.exception, SystemExit), result.exception
    assert result.exit_code == 1
    assert "a device or a pipe, where only a file is read" in " ".join(result.stderr.split())
    assert result.stderr.count("error:") == 1
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    "words", [["run", "/dev/null"], ["plan", "{pipe}", "--world-size", "2", "--global-batch", "4"]]
)
def test_given_to_a_command(words: list[str], tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "lengths.npy")
    result = CliRunner().invoke(app, [word.replace("{pipe}", str(tmp_path / "lengths.npy")) for word in words])
    assert result.exit_code == 1
    assert "a device or a pipe" in result.stderr


def test_a_file_that_is_too_large(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "a").write_bytes(b"1234")
    assert read_regular(tmp_path / "a") == b"1234"
    check_regular(tmp_path)
    monkeypatch.setattr(regular_file, "LARGEST", 3)
    with pytest.raises(OSError, match="4 bytes, at most 3 are read"):
        read_regular(tmp_path / "a")
    with pytest.raises(FileNotFoundError):
        check_regular(tmp_path / "b")
