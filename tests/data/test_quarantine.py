"""Rows that cannot be used: an error by default, or left out and named, the same on every rank."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from runs import config_of
from typer.testing import CliRunner

from ddpsched.cli import app
from ddpsched.config import parse
from ddpsched.data import quarantine
from ddpsched.data.config import DataConfig
from ddpsched.data.quarantine import QUARANTINE
from ddpsched.data.samples import Dataset, load_dataset
from ddpsched.errors import ConfigError, DataError
from ddpsched.run_loop import run

GOOD = [json.dumps({"sentence": f"a sentence {i}", "label": i % 2}) for i in range(12)]


def load(path: Path, **data: Any) -> Dataset:
    return load_dataset(DataConfig(path=str(path), on_bad="skip", **data), seed=0)


def write(path: Path, lines: Sequence[str | bytes]) -> Path:
    path.write_bytes(b"".join((line if isinstance(line, bytes) else line.encode()) + b"\n" for line in lines))
    return path


BAD = {
    '{"sentence": "cut off': "not JSON",
    "[1]": "not an object",
    '{"sentence": "x"}': "no column 'label'",
    '{"sentence": null, "label": 0}': "is null, blank or no valid text",
    '{"sentence": "  ", "label": 0}': "is null, blank or no valid text",
    '{"sentence": 3, "label": 0}': "is null, blank or no valid text",
    '{"sentence": "\\ud800", "label": 0}': "is null, blank or no valid text",
    '{"sentence": "x", "label": 2}': "is not an integer from 0 to 1",
    '{"sentence": "x", "label": "one"}': "is not an integer from 0 to 1",
    '{"sentence": "x", "label": true}': "is not an integer from 0 to 1",
    '{"sentence": "x\0", "label": 1}': "NUL character",
    '{"sentence": "%s", "label": 1}' % ("x" * 3000): "characters, at most",
    '{"a": ' * 100_000: "nested",
}


@pytest.mark.parametrize("bad", BAD)
def test_a_bad_line_is_left_out_and_named(tmp_path: Path, bad: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(quarantine, "LONGEST_LINE", 2500 if "characters" in BAD[bad] else 2**24)
    path = write(tmp_path / "train.jsonl", [*GOOD[:3], "", bad, *GOOD[3:]])
    found = load(path)
    assert list(found.train.texts) == [json.loads(line)["sentence"] for line in GOOD]
    assert found.train.rows == [1, 2, 3, *range(5, 14)]
    (row,) = found.quarantined
    assert (row.file, row.line, row.row) == (str(path), 5, 4)
    assert BAD[bad] in row.reason
    assert len(row.reason) < 300
    if "NUL" not in BAD[bad] and "at most" not in BAD[bad]:  # by default each is an error, as these two may be text
        with pytest.raises(DataError):
            load_dataset(DataConfig(path=str(path)), seed=0)


def test_bytes_that_are_no_text(tmp_path: Path) -> None:
    path = write(tmp_path / "train.jsonl", [GOOD[0], b'{"sentence": "\xff\xfe", "label": 0}', *GOOD[1:]])
    assert load(path).quarantined[0].reason == "not UTF-8 text"


def test_rows_of_separated_files(tmp_path: Path) -> None:
    rows = [f"text {i}\t{i % 2}" for i in range(10)]
    path = write(
        tmp_path / "a.tsv", ["sentence\tlabel", rows[0], 'x "y\t1\t2', b"\xff\t1", "\t0", 'a "b\t1', *rows[1:]]
    )
    found = load(path)
    assert [(row.line, row.reason.partition(":")[0]) for row in found.quarantined] == [
        (3, "3 fields where the header has 2"), (4, "not UTF-8 text"), (5, "column 'sentence'"),
    ]  # fmt: skip
    assert found.train.texts[1] == 'a "b'
    rows = [f"text {i},{i % 2}" for i in range(10)]
    path = write(tmp_path / "a.csv", ["sentence,label", rows[0], '"two\nlines",1', '"x" y,1', "z,7", *rows[1:]])
    found = load(path)
    assert [row.line for row in found.quarantined] == [5, 6]
    assert found.train.texts[1] == "two\nlines"


def test_a_lone_quote_makes_no_sample_of_what_it_swallows(tmp_path: Path) -> None:
    rows = [f"text {i},{i % 2}" for i in range(40)]
    path = write(tmp_path / "a.csv", ["sentence,label", *rows, '"never ended,1', *rows[:5]])
    found = load(path)
    assert len(found.train) == 40
    assert [row.line for row in found.quarantined] == [42]


def test_rows_of_parquet(tmp_path: Path) -> None:
    path = tmp_path / "a.parquet"
    texts = ["a", None, "b", "c", "d"]
    pd.DataFrame({"sentence": texts, "label": [0, 1, 9, 1, 0]}).to_parquet(path)
    found = load(path)
    assert found.train.rows == [1, 4, 5]
    assert [row.line for row in found.quarantined] == [2, 3]


def test_a_file_that_is_bad_for_the_most_part_is_refused(tmp_path: Path) -> None:
    half = write(tmp_path / "half.jsonl", [*GOOD, *["x"] * len(GOOD)])
    assert len(load(half).quarantined) == len(GOOD)
    with pytest.raises(DataError, match=r"13 of 25 lines cannot be used \(line 13: not JSON .*: correct the file"):
        load(write(tmp_path / "more.jsonl", [*GOOD, *["x"] * 13]))
    with pytest.raises(DataError, match="24 of 24 lines cannot be used"):
        load(write(tmp_path / "other.jsonl", GOOD * 2), text="text")
    with pytest.raises(DataError, match="no such file"):
        load(tmp_path / "absent.jsonl", dev=str(tmp_path / "absent.jsonl"))
    with pytest.raises(DataError, match="no column 'label'"):
        load(write(tmp_path / "b.csv", ["sentence", "a", "b"]))


def test_options_that_it_does_not_go_with(tmp_path: Path) -> None:
    for data in ({"name": "nyu-mll/glue"}, {}):
        with pytest.raises(ConfigError, match="on_bad = 'skip' leaves out rows of a file"):
            parse({"steps": 1, "data": {"on_bad": "skip", **data}})
    with pytest.raises(ConfigError, match=r"order\.path = 'o\.npy' orders all rows"):
        parse(
            {"steps": 1, "order": {"kind": "curriculum", "path": "o.npy"}, "data": {"on_bad": "skip", "path": "a.tsv"}}
        )
    path = write(tmp_path / "train.jsonl", GOOD)
    words = ["sort", str(path), "--output", str(tmp_path / "order.npy"), "data.on_bad=skip"]
    assert "data.on_bad = 'skip'" in CliRunner().invoke(app, words).output


def test_a_run_names_them_and_its_audit_declares_them(tmp_path: Path) -> None:
    path = write(tmp_path / "train.jsonl", [*GOOD, *["\x1b[31mnot json"] * 11])
    dev = write(tmp_path / "dev.jsonl", [*GOOD, "x"])
    data = {"path": str(path), "on_bad": "skip", "tokenizer": str(vocabulary(tmp_path))}
    folder = run(config_of(tmp_path, "simulated", "static", data=data))
    named = [json.loads(line) for line in (folder / QUARANTINE).read_text().splitlines()]
    assert [(row["file"], row["line"]) for row in named] == [*((str(path), 13 + i) for i in range(11)), (str(dev), 13)]
    environment = json.loads((folder / "environment.json").read_text())
    assert (environment["num_samples"], environment["num_quarantined"]) == (12, 12)
    log = (folder / "logs" / "rank0.log").read_text()
    assert log.count("left out: ") == quarantine.LOGGED
    assert "12 rows of the data files were left out" in log
    audit = CliRunner().invoke(app, ["audit", str(folder)])
    assert audit.exit_code == 0, audit.output
    assert "12 rows of the data files were left out" in audit.output
    (folder / QUARANTINE).write_text("")
    assert "FAULT: environment.json declares 12 rows" in CliRunner().invoke(app, ["audit", str(folder)]).output
    data |= {"on_bad": "error", "path": str(write(path, GOOD)), "dev": str(path)}
    run(config_of(tmp_path, "simulated", "static", data=data), overwrite=True)
    assert not (folder / QUARANTINE).exists()


def vocabulary(folder: Path) -> Path:
    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "a", "sentence"]
    (folder / "vocab.txt").write_text("\n".join(words) + "\n")
    return folder / "vocab.txt"
