"""`ddpsched.lengths`: each form in which samples are at hand, and what is refused, with a way out."""

import tracemalloc
import warnings
from collections import UserDict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import datasets
import numpy as np
import pandas as pd
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.utils.data import TensorDataset
from transformers import PreTrainedTokenizerFast

import ddpsched
from ddpsched.data.embedded.sentences import embedded_tokenizer
from ddpsched.data.length_files import read_lengths
from ddpsched.errors import DataError

ROWS = [[7] * n for n in (3, 1, 8, 2)]
COUNTS = [3, 1, 8, 2]
TEXTS = ["a film", "fine", "a fine film indeed"]


class Samples(torch.utils.data.Dataset[Any]):
    """A torch data set of (features, label), without an iterator of its own."""

    def __len__(self) -> int:
        return len(ROWS)

    def __getitem__(self, id: int) -> tuple[torch.Tensor, int]:
        return torch.zeros(COUNTS[id], 5), 1


FORMS: dict[str, Callable[[], Any]] = {
    "lists of token ids": lambda: ROWS,
    "tuples of token ids": lambda: [tuple(row) for row in ROWS],
    "samples with columns": lambda: [{"label": 0, "input_ids": row} for row in ROWS],
    "what a tokenizer returned": lambda: UserDict({"input_ids": ROWS, "attention_mask": ROWS}),
    "lengths": lambda: COUNTS,
    "an array": lambda: np.array(COUNTS, dtype=np.int32),
    "a tensor": lambda: torch.tensor(COUNTS),
    "a series": lambda: pd.Series(COUNTS),
    "a frame": lambda: pd.DataFrame({"length": COUNTS, "label": 0}),
    "a series of lists": lambda: pd.Series(ROWS),
    "tensors": lambda: [torch.tensor(row) for row in ROWS],
    "features and labels": Samples,
    "arrow": lambda: datasets.Dataset.from_dict({"input_ids": ROWS, "label": [0] * 4}),
    "arrow, formatted": lambda: datasets.Dataset.from_dict({"input_ids": ROWS}).with_format("torch"),
    "arrow, selected": lambda: datasets.Dataset.from_dict({"input_ids": ROWS[::-1]}).select([3, 2, 1, 0]),
    "arrow, numbers": lambda: datasets.Dataset.from_dict({"label": [0] * 4, "lengths": COUNTS}),
}


@pytest.mark.parametrize("form", FORMS)
def test_every_form(form: str) -> None:
    found = ddpsched.lengths(FORMS[form]())
    assert found.dtype == np.int64
    assert found.tolist() == COUNTS
    assert ddpsched.lengths(FORMS[form](), max_length=2).tolist() == [2, 1, 2, 2]


@given(st.lists(st.integers(1, 9), min_size=1, max_size=50), st.randoms())
def test_a_shuffled_arrow_column(counts: list[int], random: Any) -> None:
    """A data set that was shuffled or cut keeps its table, and an order over it."""
    order = random.sample(range(len(counts)), random.randint(1, len(counts)))
    table = datasets.Dataset.from_dict({"input_ids": [[0] * n for n in counts]}).select(order)
    assert ddpsched.lengths(table).tolist() == [counts[id] for id in order]


def test_an_arrow_column_is_not_made_into_lists() -> None:
    """As lists, these ids would take 16 MB."""
    table = datasets.Dataset.from_dict({"input_ids": [[1] * 100] * 20_000})
    tracemalloc.start()
    try:
        assert ddpsched.lengths(table).sum() == 2_000_000
        assert tracemalloc.get_traced_memory()[1] < 4e6
    finally:
        tracemalloc.stop()


def test_arrays_of_features_in_arrow() -> None:
    """Audio and video: (T, features) counts T."""
    features = datasets.Features({"audio": datasets.Array2D((None, 3), "float32")})
    table = datasets.Dataset.from_dict({"audio": [np.zeros((n, 3)) for n in COUNTS]}, features=features)
    assert ddpsched.lengths(table, "audio").tolist() == COUNTS
    assert ddpsched.lengths([np.zeros((n, 3)) for n in COUNTS]).tolist() == COUNTS
    assert ddpsched.lengths(TensorDataset(torch.zeros(2, 4), torch.zeros(2))).tolist() == [4, 4]


def test_a_folder_and_files(tmp_path: Path) -> None:
    table = datasets.Dataset.from_dict({"input_ids": ROWS})
    table.save_to_disk(tmp_path / "saved")
    table.to_parquet(tmp_path / "rows.parquet")
    np.save(tmp_path / "lengths.npy", COUNTS)
    for name in ("saved", "rows.parquet", "lengths.npy"):
        assert ddpsched.lengths(tmp_path / name).tolist() == COUNTS
        assert ddpsched.lengths(str(tmp_path / name)).tolist() == COUNTS


def test_texts_are_counted_by_any_tokenizer(tmp_path: Path) -> None:
    """Each gives the same counts: our files', the fast library's, transformers', and a slow one that is called."""
    fast = embedded_tokenizer()
    expected = [len(fast.encode(text).ids) for text in TEXTS]
    fast.save(str(tmp_path / "tokenizer.json"))
    wrapped = PreTrainedTokenizerFast(tokenizer_object=fast)

    def slow(texts: list[str]) -> dict[str, list[list[int]]]:
        return {"input_ids": [fast.encode(text).ids for text in texts]}

    table = datasets.Dataset.from_dict({"text": TEXTS})
    table.to_json(tmp_path / "t.jsonl")
    for tokenizer in (str(tmp_path), fast, wrapped, slow):
        assert ddpsched.lengths(TEXTS, tokenizer=tokenizer).tolist() == expected
        assert ddpsched.lengths(table, "text", tokenizer=tokenizer).tolist() == expected
        assert ddpsched.lengths(tmp_path / "t.jsonl", "text", tokenizer=tokenizer).tolist() == expected
    cut = ddpsched.lengths(TEXTS, tokenizer=fast, max_length=4)
    assert cut.tolist() == [min(4, count) for count in expected]


@pytest.mark.parametrize("sample", [lambda ids: (ids, 1), lambda ids: (1, ids), lambda ids: ({"input_ids": ids}, 1),
                                    lambda ids: (1, np.array(ids)), lambda ids: (torch.tensor(ids), ids)])  # fmt: skip
def test_the_part_of_a_tuple_that_is_counted(sample: Callable[[list[int]], Any]) -> None:
    assert ddpsched.lengths([sample(ids) for ids in ROWS]).tolist() == COUNTS


def test_a_tuple_of_label_and_text() -> None:
    fast = embedded_tokenizer()
    expected = [len(fast.encode(text).ids) for text in TEXTS]
    assert ddpsched.lengths([(1, text) for text in TEXTS], tokenizer=fast).tolist() == expected


def test_equal_lengths_are_no_lengths_of_samples() -> None:
    with pytest.warns(UserWarning, match="all 3 samples are 2 long, .*padded already, .*give length_fn"):
        ddpsched.lengths([np.zeros((2, n)) for n in (5, 7, 9)])
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        ddpsched.lengths([[1]])
        ddpsched.lengths([[1], [2, 3]])


@pytest.mark.parametrize("widths", [[8, 8, 8, 8], [3, 3, 8, 8]])
@pytest.mark.parametrize("left", [False, True])
def test_padding_does_not_count_where_there_is_a_mask(widths: list[int], left: bool, tmp_path: Path) -> None:
    rows = [[1] * n + [0] * (width - n) for n, width in zip(COUNTS, widths, strict=True)]
    ids = [torch.tensor(row[::-1] if left else row) for row in rows]
    masks = [(row > 0).long() for row in ids]
    lists = {"input_ids": [row.tolist() for row in ids], "attention_mask": [mask.tolist() for mask in masks]}
    table = datasets.Dataset.from_dict(lists)
    table.save_to_disk(str(tmp_path))
    forms: list[Any] = [
        lists, table, table.select([0, 1, 2, 3]),
        [{"input_ids": i, "attention_mask": m} for i, m in zip(ids, masks, strict=True)],
    ]  # fmt: skip
    for form in forms:
        assert ddpsched.lengths(form).tolist() == COUNTS
        assert ddpsched.lengths(form, "input_ids").tolist() == widths, "the column that was named"
        assert ddpsched.lengths(form, length_fn=lambda row: int(sum(row["attention_mask"]))).tolist() == COUNTS
    assert ddpsched.lengths(tmp_path).tolist() == COUNTS
    assert ddpsched.lengths(list(zip(ids, masks, [0, 1, 0, 1], strict=True))).tolist() == COUNTS
    if len(set(widths)) == 1:
        samples = torch.utils.data.TensorDataset(torch.stack(ids), torch.stack(masks), torch.arange(4))
        assert ddpsched.lengths(samples).tolist() == COUNTS


def test_labels_of_tokens_are_no_mask() -> None:
    """They may be 0 and 1, too; over padding alone all tokens are the same."""
    rows = [(torch.tensor([5, 6, 7]), torch.tensor([0, 0, 1])), (torch.tensor([5, 6]), torch.tensor([0, 1]))]
    assert ddpsched.lengths(rows).tolist() == [3, 2]
    assert ddpsched.lengths([(ids, torch.ones_like(ids)) for ids, _ in rows]).tolist() == [3, 2]


def test_a_function_of_a_sample() -> None:
    assert ddpsched.lengths([{"frames": 3}, {"frames": 5}], length_fn=lambda sample: sample["frames"]).tolist() == [
        3,
        5,
    ]


ARROW = datasets.Dataset.from_dict({"text": ["a b"], "label": [0]})
BAD: dict[str, tuple[Callable[[], Any], str]] = {
    "an iterator": (lambda: ddpsched.lengths(iter([1])), "no samples by id.*iterable dataset"),
    "a stream": (lambda: ddpsched.lengths(ARROW.to_iterable_dataset()), "no samples by id.*iterable dataset"),
    "splits": (lambda: ddpsched.lengths(datasets.DatasetDict(train=ARROW)), "splits 'train'; give one of them"),
    "texts": (lambda: ddpsched.lengths(["a b"]), "a sample is the text 'a b'; give tokenizer="),
    "pairs of text and label": (lambda: ddpsched.lengths([("a b", 1)]), "a sample is the text 'a b'; give tokenizer="),
    "pairs of numbers": (lambda: ddpsched.lengths([(0.5, 1)]), "a tuple of float, int, none of which has a length"),
    "a column of texts": (lambda: ddpsched.lengths(ARROW, "text"), "'a b' is not a number; .*a tokenizer"),
    "no column": (lambda: ddpsched.lengths(ARROW), "it has 'text', 'label'; name a column of texts, such as 'text'"),
    "a column of numbers as texts": (
        lambda: ddpsched.lengths(ARROW, "label", tokenizer=embedded_tokenizer()),
        r"row 1: \(0,\) holds a number; name a column of texts",
    ),
    "lengths of another name": (lambda: ddpsched.lengths([{"text": "a", "num_frames": 3}]), "such as 'num_frames' or"),
    "no columns": (lambda: ddpsched.lengths({"a": 1}), "'a' is 1, no column; give a mapping of columns, or a list"),
    "no such file": (lambda: ddpsched.lengths("/nope"), "/nope: no such file or folder"),
    "arrays of other names": (lambda: ddpsched.lengths([{"x": np.ones((5, 3)), "y": 1}]), "arrays, such as 'x'$"),
    "texts alone": (lambda: ddpsched.lengths([{"question": "how many"}]), "name a column of texts, such as 'question'"),
    "another column": (lambda: ddpsched.lengths(ARROW, "txt"), "no column 'txt'; .*did you mean .*text"),
    "an empty sample": (lambda: ddpsched.lengths([[1], []]), r"row 2: \[\] has no token ids; correct or remove"),
    "a sample without it": (lambda: ddpsched.lengths([{"length": 1}, {}]), "sample 1: it has no 'length'"),
    "no samples": (lambda: ddpsched.lengths([]), "give one length a sample"),
    "no rows": (lambda: ddpsched.lengths(ARROW.select([])), "no rows"),
    "padded": (lambda: ddpsched.lengths(torch.ones(3, 4)), r"shape \(3, 4\).*attention_mask\.sum\(1\)"),
    "a column of lists": (lambda: ddpsched.lengths(ROWS, "input_ids"), "without columns; leave it out"),
    "zero": (lambda: ddpsched.lengths([3, 0]), "length 2: 0 is not a whole number from 1"),
    "cut to nothing": (lambda: ddpsched.lengths([3], max_length=0), "max_length = 0, needs an integer of 1 or more"),
    "a blank text": (lambda: ddpsched.lengths(["a", " "], tokenizer=embedded_tokenizer()), "row 2: .*blank"),
}


@pytest.mark.parametrize("case", BAD)
def test_refused_with_a_way_out(case: str) -> None:
    call, words = BAD[case]
    with pytest.raises(DataError, match=words):
        call()


def test_several_choices_are_not_counted_as_tokens() -> None:
    rows: list[Any] = [{"input_ids": [[1, 2, 3], [4, 5]], "attention_mask": [[1, 1, 1], [1, 1]], "label": 0}] * 3
    plain = [{"input_ids": row["input_ids"]} for row in rows]
    columns = {"input_ids": [row["input_ids"] for row in rows]}
    for form in (rows, plain, columns, datasets.Dataset.from_dict(columns)):
        with pytest.raises(DataError, match="'input_ids' of a sample are 2 lists, as of several choices; give"):
            ddpsched.lengths(form)
    assert ddpsched.lengths(rows, length_fn=lambda sample: sum(map(len, sample["input_ids"]))).tolist() == [5] * 3


def test_a_mask_that_is_added_to_scores_is_none() -> None:
    masks: list[Any] = [[0.0, 0.0, -1e9], [1, 1]]
    rows = [{"input_ids": [5, 6, 7][: len(mask)], "attention_mask": mask} for mask in masks]
    assert ddpsched.lengths(rows).tolist() == [3, 2]


def test_a_loader_is_no_list_of_lengths() -> None:
    loader: Any = torch.utils.data.DataLoader([{"input_ids": [1]}, {"input_ids": [1, 2]}], 2)  # type: ignore[arg-type]
    with pytest.raises(DataError, match=r"a DataLoader is no list of lengths; give ddpsched\.lengths\(dataset\)"):
        ddpsched.plan(loader, world_size=2, global_batch=2)


def test_numbers_with_a_byte_order_mark(tmp_path: Path) -> None:
    (tmp_path / "l.txt").write_text("51\n7\n", encoding="utf-8-sig")
    assert ddpsched.lengths(tmp_path / "l.txt").tolist() == [51, 7]
    with pytest.raises(DataError, match="it holds numbers, and no column of texts; leave out --text x"):
        read_lengths(tmp_path / "l.txt", texts=["x"], tokenizer=tmp_path)
