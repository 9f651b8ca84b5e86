"""Lengths from files: every kind that is read, and what is refused, with its place and a way out."""

import json
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ddpsched.config import parse
from ddpsched.data.length_files import read_lengths
from ddpsched.data.tokenizer import load_tokenizer
from ddpsched.errors import DataError

LENGTHS = [5, 3, 12, 1, 66]


def lines(path: Path, values: Sequence[Any]) -> None:
    path.write_text("".join(f"{value}\n" for value in values), encoding="utf-8")


def jsonl(path: Path, values: Sequence[Any]) -> None:
    lines(path, [json.dumps({"id": i, "length": value}) for i, value in enumerate(values)])


def separated(path: Path, values: Sequence[Any]) -> None:
    """The wanted column is not the first, nor the only one with numbers; None is an empty field."""
    between = "\t" if path.suffix == ".tsv" else ","
    fields = ["" if value is None else str(value) for value in values]
    lines(path, [between.join(("tokens", "length")), *(f"7{between}{field}" for field in fields)])


def parquet(path: Path, values: Sequence[Any]) -> None:
    pd.DataFrame({"tokens": [7] * len(values), "length": values}).to_parquet(path, index=False)


WRITE: dict[str, Callable[[Path, Any], None]] = {
    "a.npy": lambda path, values: np.save(path, np.array(values)),
    "floats.npy": lambda path, values: np.save(path, np.array(values, dtype=np.float32)),
    "a.txt": lines,
    "a.csv": separated,
    "UPPER.CSV": separated,
    "a.tsv": separated,
    "a.jsonl": jsonl,
    "a.parquet": parquet,
}


@pytest.mark.parametrize("name", WRITE)
def test_every_kind_is_read(name: str, tmp_path: Path) -> None:
    WRITE[name](tmp_path / name, LENGTHS)
    found = read_lengths(tmp_path / name)
    assert found.dtype == np.int64
    assert found.tolist() == LENGTHS


@given(st.sampled_from(sorted(WRITE.keys() - {"floats.npy"})), st.lists(st.integers(1, 2**40), min_size=1, max_size=20))
def test_what_is_written_is_read(tmp_path_factory: pytest.TempPathFactory, name: str, values: list[int]) -> None:
    path = tmp_path_factory.mktemp("lengths") / name
    WRITE[name](path, values)
    assert read_lengths(path).tolist() == values


def test_the_column_is_chosen(tmp_path: Path) -> None:
    WRITE["a.csv"](tmp_path / "a.csv", LENGTHS)
    assert read_lengths(tmp_path / "a.csv", column="tokens").tolist() == [7] * 5


@pytest.mark.parametrize("name", sorted(WRITE.keys() - {"UPPER.CSV"}))
@pytest.mark.parametrize("value", [0, -4, 2.5, float("nan"), float("inf"), 2.0**41])
def test_a_number_that_is_no_length(name: str, value: float, tmp_path: Path) -> None:
    WRITE[name](tmp_path / name, [5, 3, value, 1, value])
    with pytest.raises(
        DataError, match=rf"{name}, length 3: .* is not a whole number from 1 to 2\*\*40; 2 of 5.*remove"
    ):
        read_lengths(tmp_path / name)


@pytest.mark.parametrize("name", ["a.txt", "a.csv", "a.tsv", "a.jsonl", "a.parquet"])
def test_a_word_is_no_length(name: str, tmp_path: Path) -> None:
    WRITE[name](tmp_path / name, ["5", "3", "seven"])
    with pytest.raises(DataError, match=rf"{name}, length 3: 'seven' is not a number; .*--text"):
        read_lengths(tmp_path / name)


@pytest.mark.parametrize("name", ["a.csv", "a.jsonl", "a.parquet"])
def test_a_missing_length(name: str, tmp_path: Path) -> None:
    WRITE[name](tmp_path / name, ["5", None, "3"])
    with pytest.raises(DataError, match=rf"{name}, length 2: "):
        read_lengths(tmp_path / name)


def test_token_ids_are_counted(tmp_path: Path) -> None:
    rows = [[7, 8, 9], [7], [5] * 66]
    lines(tmp_path / "a.jsonl", [json.dumps({"input_ids": row, "length": 2}) for row in rows])
    pd.DataFrame({"input_ids": rows, "label": 1}).to_parquet(tmp_path / "a.parquet")
    for name in ("a.jsonl", "a.parquet"):
        assert read_lengths(tmp_path / name).tolist() == [3, 1, 66]
    assert read_lengths(tmp_path / "a.jsonl", column="length").tolist() == [2] * 3


@pytest.mark.parametrize(("values", "row"), [([[3], []], 2), ([[3], None], 2), ([3, [4, 5]], 2), ([[4], 3], 2)])
def test_lists_among_others(values: list[Any], row: int, tmp_path: Path) -> None:
    jsonl(tmp_path / "a.jsonl", values)
    with pytest.raises(DataError, match=rf"a\.jsonl, (row|length) {row}: .*correct or remove"):
        read_lengths(tmp_path / "a.jsonl")
    if values[0] == [3]:
        parquet(tmp_path / "a.parquet", values)
        with pytest.raises(DataError, match=rf"a\.parquet, row {row}: it has no token ids; correct or remove"):
            read_lengths(tmp_path / "a.parquet")


@pytest.mark.parametrize(
    ("array", "named"),
    [
        (np.zeros(0), r"shape \(0,\)"),
        (np.ones((3, 2)), r"shape \(3, 2\)"),
        (np.array(5), r"shape \(\)"),
        (np.array(["5", "x"]), "length 2: 'x' is not a number"),
        (np.array([5, None]), r"not an array of numbers .* numpy\.save"),
    ],
)
def test_arrays_that_are_refused(array: Any, named: str, tmp_path: Path) -> None:
    """The last is pickled: unpickling runs what the file says."""
    np.save(tmp_path / "a.npy", array)
    with pytest.raises(DataError, match=rf"a\.npy.*{named}"):
        read_lengths(tmp_path / "a.npy")


def test_files_that_are_not_what_their_suffix_says(tmp_path: Path) -> None:
    bad = {"a.npy": b"12\n13\n", "empty.npy": b"", "a.parquet": b"12", "a.jsonl": b"12\n", "a.txt": b"12\n\xff\xfe9\n"}
    with (tmp_path / "zip.npy").open("wb") as file:
        np.savez(file, lengths=LENGTHS)
    for name, content in bad.items():
        (tmp_path / name).write_bytes(content)
    for name in [*bad, "zip.npy"]:
        with pytest.raises(DataError, match=re.escape(name)):
            read_lengths(tmp_path / name)


@pytest.mark.parametrize("name", ["a.txt", "a.csv", "a.jsonl"])
def test_nothing_in_the_file(name: str, tmp_path: Path) -> None:
    for content in ("", "length\n" if name == "a.csv" else "\n"):
        (tmp_path / name).write_text(content)
        with pytest.raises(DataError, match=rf"{name}.*(empty|shape \(0,\))"):
            read_lengths(tmp_path / name)


def test_missing_file_column_and_unknown_suffix(tmp_path: Path) -> None:
    for name in ("no.npy", "no.csv"):
        with pytest.raises(DataError, match=rf"{name}: no such file; check the path"):
            read_lengths(tmp_path / name)
    WRITE["a.csv"](tmp_path / "a.csv", LENGTHS)
    with pytest.raises(DataError, match=r"no column 'lenght'; it has 'tokens', 'length'; did you mean column=length"):
        read_lengths(tmp_path / "a.csv", column="lenght")
    (tmp_path / "t.csv").write_text("label,sentence\n1,a fine film\n")
    ways = "no column 'input_ids', 'length' or 'lengths'; it has 'label', 'sentence'; name a column of texts"
    with pytest.raises(DataError, match=ways):
        read_lengths(tmp_path / "t.csv")
    (tmp_path / "a.xlsx").write_text("5")
    with pytest.raises(DataError, match=r"suffix '.xlsx' is not known; give one of \.npy, \.txt, .*\.parquet"):
        read_lengths(tmp_path / "a.xlsx")


@pytest.fixture
def tokenizer(tmp_path: Path) -> str:
    """One token a word that it knows: a, b and, were they joined by nothing, ab."""
    lines(tmp_path / "vocab.txt", ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "a", "b", "ab"])
    return str(tmp_path)


TEXTS = {"question": ["a", "a b a", "a a a a a"], "answer": ["b", "b", "b b b b b"]}


@pytest.mark.parametrize("name", ["t.csv", "t.tsv", "t.jsonl", "t.parquet"])
def test_texts_are_joined_and_counted(name: str, tokenizer: str, tmp_path: Path) -> None:
    table, path = pd.DataFrame(TEXTS), tmp_path / name
    if name == "t.jsonl":
        table.to_json(path, orient="records", lines=True)
    elif name == "t.parquet":
        table.to_parquet(path)
    else:
        table.to_csv(path, index=False, sep="\t" if name == "t.tsv" else ",")
    both = ("question", "answer")
    assert read_lengths(path, texts=("question",), tokenizer=tokenizer).tolist() == [3, 5, 7]
    assert read_lengths(path, texts=both, tokenizer=tokenizer).tolist() == [4, 6, 12], "[CLS] and [SEP] are counted"


def test_a_prompt_is_counted_as_a_run_counts_it(tokenizer: str, tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    pd.DataFrame(TEXTS).to_csv(path, index=False)
    more = {"texts": ("answer",), "prompt": "question", "tokenizer": tokenizer}
    assert read_lengths(path, **more).tolist() == [5, 7, 13], "one [SEP] more than joined"
    keys = {"path": str(path), "text": "answer", "prompt": "question", "tokenizer": tokenizer}
    samples = parse({"steps": 1, "data": keys, "model": {"task": "causal_lm"}}).load_samples()
    assert samples.train.lengths(np.arange(3)).tolist() == [5, 7, 13]
    with pytest.raises(DataError, match=r"a prompt is named \(question\), but no column of texts behind it"):
        read_lengths(path, prompt="question", tokenizer=tokenizer)
    with pytest.raises(DataError, match=r"did you mean --prompt=question\?"):
        read_lengths(path, texts=("answer",), prompt="questn", tokenizer=tokenizer)


def test_what_of_texts_is_refused(tokenizer: str, tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    pd.DataFrame(TEXTS).to_csv(path, index=False)
    with pytest.raises(DataError, match=r"no tokenizer to count them; name its folder \(--tokenizer FOLDER"):
        read_lengths(path, texts=("question",))
    with pytest.raises(DataError, match=r"no column of texts to count; name it \(--text NAME"):
        read_lengths(path, tokenizer=tokenizer)
    with pytest.raises(DataError, match=r"no column 'answr'.*did you mean --text=answer\?"):
        read_lengths(path, texts=("question", "answr"), tokenizer=tokenizer)
    with pytest.raises(DataError, match="nowhere: no such file or folder"):
        read_lengths(path, texts=("question",), tokenizer=str(tmp_path / "no" / "nowhere"))
    with pytest.raises(DataError, match=r"a\.npy: it holds numbers, and no column of texts"):
        read_lengths(tmp_path / "a.npy", texts=("question",), tokenizer=tokenizer)


@pytest.mark.parametrize("blank", ["", "   ", None, 5])
def test_a_blank_text(blank: Any, tokenizer: str, tmp_path: Path) -> None:
    rows = [{"question": "a", "answer": "b"}, {"question": "a", "answer": blank}]
    lines(tmp_path / "t.jsonl", [json.dumps(row) for row in rows])
    with pytest.raises(
        DataError, match=r"t\.jsonl, row 2: .*has a text that is missing, blank or not valid; correct or remove"
    ):
        read_lengths(tmp_path / "t.jsonl", texts=("question", "answer"), tokenizer=tokenizer)


def test_a_real_file_of_texts(data_dir: Path) -> None:
    """GSM8K's dialogues, counted here one by one."""
    path, folder = data_dir / "gsm8k" / "train.jsonl", str(data_dir / "bert-uncased")
    if not path.exists():  # real data is not part of the project
        pytest.skip(f"no {path}; point DDPSCHED_DATA at a folder that has it")
    rows = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    found = read_lengths(path, texts=("question", "answer"), tokenizer=folder)
    tokenizer = load_tokenizer(folder)
    for i in range(0, len(rows), 400):
        assert found[i] == len(tokenizer.encode(f"{rows[i]['question']}\n{rows[i]['answer']}").ids)
    assert (len(found), found.max(), round(found.mean())) == (7473, 448, 158)
    pairs = read_lengths(path, texts=("answer",), prompt="question", tokenizer=folder)
    np.testing.assert_array_equal(pairs, found + 1)
