"""Metrics turn a chunk of rows into numbers, and refuse rows that have none."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ddpsched.config import parse
from ddpsched.data.table_files import Chunk
from ddpsched.errors import ConfigError, DataError
from ddpsched.sort.measure import column_values, metrics_of, rarities

CONFIG = parse({"steps": 1})


def chunk_of(values: list[Any], first: int = 0) -> Chunk:
    return Chunk(0, first, len(values), {"score": values})


def test_a_column_of_numbers() -> None:
    result = column_values(chunk_of([3, 2.5, "7", "1e3", "-0.5"]), "score")
    assert result.tolist() == [3.0, 2.5, 7.0, 1000.0, -0.5]
    assert np.isnan(column_values(chunk_of([None, "", "nan", 1]), "score")).tolist() == [True, True, True, False]


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ([1, "hard"], "row 12, column 'score': 'hard' is str, not a number"),
        ([True], "True is bool"),
        ([1, 2, [3]], r"row 13, .*\[3\] is list"),
        ([2**53 + 1], "beyond 2\\*\\*53"),
        (["9007199254740993"], "beyond 2\\*\\*53"),
    ],
)
def test_columns_of_mixed_types(values: list[Any], words: str) -> None:
    with pytest.raises(DataError, match=words):
        column_values(chunk_of(values, first=10), "score")


def test_rarity_against_its_definition() -> None:
    samples = [[3, 3, 5], [5], [3, 9, 9, 9]]
    flat = np.concatenate(samples).astype(np.int32)
    counts = np.bincount(flat, minlength=12)
    expected = [sum(-np.log(counts[token] / len(flat)) for token in sample) for sample in samples]
    result = rarities(flat, np.array([len(sample) for sample in samples]), counts)
    np.testing.assert_allclose(result, expected, rtol=1e-12)
    assert rarities(flat[:0], np.zeros(0, np.int64), counts).tolist() == []


def test_a_function_of_ones_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "mine_of_this_test.py").write_text(
        "def commas(columns): return [text.count(',') for text in columns['text']]\n"
        "def short(columns): return [1]\n"
        "def words(columns): return ['a'] * 2\n"
        "def broken(columns): raise KeyError('other')\n"
    )
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    chunk = Chunk(1, 4, 2, {"text": ["a, b, c", "d"]})

    def of(name: str) -> Any:
        (metric,) = metrics_of([f"mine_of_this_test:{name}"], CONFIG)
        assert metric.wanted is None, "it may read every column"
        assert metric.values is not None
        return metric.values(None, chunk)

    assert of("commas").tolist() == [2.0, 0.0]
    with pytest.raises(DataError, match=r"returned int64 of shape \(1,\) for 2 rows"):
        of("short")
    with pytest.raises(DataError, match="return one number for each"):
        of("words")
    with pytest.raises(DataError, match="raised KeyError at rows 5 to 6: 'other'"):
        of("broken")
    with pytest.raises(ConfigError, match="has no attribute 'none'"):
        of("none")


def test_names_that_are_none() -> None:
    for names, words in (
        (["lenght"], "'lenght' is none of length, rarity, loss, column:NAME or module:function"),
        (["column:"], "is none of"),
        (["length", "length"], "--metric length is given twice"),
        (["loss"], "name it with model.name=FOLDER .* and model.weights=pretrained"),
    ):
        with pytest.raises(ConfigError, match=words):
            metrics_of(names, CONFIG)
