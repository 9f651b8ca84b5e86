"""All sources give the same checked value, and each fault raises one error that names its place."""

import csv
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from ddpsched.data.config import DataConfig
from ddpsched.data.samples import Dataset, load_dataset
from ddpsched.errors import DataError

ROWS = [("a superb film", 1), ('one lone " quote', 0), ("a third , with a comma", 1), ('" two " quotes', 0)]


def write_tsv(path: Path, rows: list[tuple[Any, Any]]) -> None:
    path.write_text("label\tsentence\n" + "".join(f"{label}\t{text}\n" for text, label in rows), encoding="utf-8")


def write_csv(path: Path, rows: list[tuple[Any, Any]]) -> None:
    with path.open("w", encoding="utf-8", newline="") as file:
        csv.writer(file).writerows([("sentence", "label"), *rows])


def write_jsonl(path: Path, rows: list[tuple[Any, Any]]) -> None:
    path.write_text("".join(json.dumps({"sentence": t, "label": y}) + "\n" for t, y in rows), encoding="utf-8")


def write_parquet(path: Path, rows: list[tuple[Any, Any]]) -> None:
    texts, labels = zip(*rows, strict=True) if rows else ((), ())
    pq.write_table(pa.table({"idx": range(len(rows)), "sentence": list(texts), "label": list(labels)}), path)


WRITERS: dict[str, Callable[[Path, list[tuple[Any, Any]]], None]] = {
    ".tsv": write_tsv,
    ".csv": write_csv,
    ".jsonl": write_jsonl,
    ".json": write_jsonl,
    ".parquet": write_parquet,
}
every_suffix = pytest.mark.parametrize("suffix", WRITERS)


def load(path: Path, **keys: Any) -> Dataset:
    return load_dataset(DataConfig(path=str(path), **keys), seed=0)


def refusal(path: Path, **keys: Any) -> str:
    with pytest.raises(DataError) as caught:
        load(path, **keys)
    return str(caught.value)


@every_suffix
def test_every_format_gives_the_same_rows(tmp_path: Path, suffix: str) -> None:
    file = tmp_path / f"some{suffix}"
    WRITERS[suffix](file, ROWS)
    dataset = load(file)
    assert list(dataset.train.texts) == [text for text, _ in ROWS]
    assert dataset.train.labels.tolist() == [label for _, label in ROWS]
    assert dataset.train.labels.dtype == np.int64
    assert dataset.dev is None
    assert dataset.source == str(file)


def test_a_lone_quote_in_a_tsv_merges_no_rows(tmp_path: Path) -> None:
    file = tmp_path / "train.tsv"
    file.write_text('label\tsentence\n1\t" a quote left open\n0\tnext\n1\tlast " one\n', encoding="utf-8")
    assert list(load(file).train.texts) == ['" a quote left open', "next", 'last " one']
    with file.open(newline="") as rows:  # the csv module's default reading
        assert len(list(csv.reader(rows, delimiter="\t"))) - 1 < 3


def test_windows_line_ends_and_a_byte_order_mark_are_no_matter(tmp_path: Path) -> None:
    file = tmp_path / "a.tsv"
    file.write_bytes(b"\xef\xbb\xbflabel\tsentence\r\n1\tgood\r\n0\tbad\r\n\r\n")
    assert list(load(file).train.texts) == ["good", "bad"]


@every_suffix
@pytest.mark.parametrize("name", ["dev", "validation", "val"])
def test_a_dev_split_beside_train_is_found(tmp_path: Path, suffix: str, name: str) -> None:
    WRITERS[suffix](tmp_path / f"train{suffix}", ROWS)
    WRITERS[suffix](tmp_path / f"{name}{suffix}", ROWS[:1])
    for path in (tmp_path, tmp_path / f"train{suffix}"):
        dataset = load(path)
        assert dataset.dev is not None
        assert (len(dataset.train), len(dataset.dev)) == (4, 1)


def test_a_dev_split_is_not_guessed_for_another_name_and_can_be_given(tmp_path: Path) -> None:
    for name, rows in (("mine", ROWS), ("train", ROWS), ("dev", ROWS[:1]), ("held_out", ROWS[:2])):
        write_tsv(tmp_path / f"{name}.tsv", rows)
    assert load(tmp_path / "mine.tsv").dev is None
    (tmp_path / "dev.tsv").write_text("not to be read where another file is given")
    dataset = load(tmp_path / "train.tsv", dev=str(tmp_path / "held_out.tsv"))
    assert dataset.dev is not None
    assert len(dataset.dev) == 2
    assert "held_out" in dataset.source


def test_columns_and_number_of_labels_are_the_configs(tmp_path: Path) -> None:
    file = tmp_path / "a.jsonl"
    file.write_text("".join(json.dumps({"body": f"text {i}", "stars": i}) + "\n" for i in range(5)))
    dataset = load(file, text="body", label="stars", num_labels=5)
    assert dataset.train.labels.tolist() == [0, 1, 2, 3, 4]


PAIRS = [("what is 2 + 2 ?", "4"), ("and 3 + 3 ?", "it is 6"), ("and 1 ?", "1")]


def write_pairs(path: Path, rows: list[tuple[Any, Any]]) -> None:
    path.write_text("".join(json.dumps({"question": q, "answer": a}) + "\n" for q, a in rows), encoding="utf-8")


def load_pairs(path: Path, **keys: Any) -> Dataset:
    return load_dataset(DataConfig(path=str(path), **{"text": "answer", "prompt": "question"} | keys), 0, "causal_lm")


def test_a_language_model_needs_texts_and_no_labels(tmp_path: Path) -> None:
    file = tmp_path / "train.jsonl"
    write_pairs(file, PAIRS)
    write_pairs(tmp_path / "dev.jsonl", PAIRS[:1])
    dataset = load_pairs(file)
    assert (list(dataset.train.prompts or []), list(dataset.train.texts)) == tuple(map(list, zip(*PAIRS, strict=True)))
    assert dataset.train.labels is None
    assert dataset.dev is not None
    assert list(dataset.dev.prompts or []) == [PAIRS[0][0]]
    alone = load_pairs(file, prompt=None)
    assert alone.train.prompts is None
    assert list(alone.train.texts) == [answer for _, answer in PAIRS]
    import datasets

    datasets.Dataset.from_list([{"question": q, "answer": a} for q, a in PAIRS]).save_to_disk(str(tmp_path / "saved"))
    saved = load_pairs(tmp_path / "saved")
    assert list(saved.train.prompts or []) == list(dataset.train.prompts or [])


def test_the_embedded_sentences_are_a_language_models_too() -> None:
    dataset = load_dataset(DataConfig(size=50), 3, "causal_lm")
    assert dataset.train.texts == load_dataset(DataConfig(size=50), 3).train.texts
    assert dataset.train.labels is dataset.train.prompts is None
    with pytest.raises(DataError, match=r"data.prompt = 'question': the embedded sentences have no prompts; leave it"):
        load_dataset(DataConfig(size=50, prompt="question"), 3, "causal_lm")


def test_prompts_that_cannot_be_used(tmp_path: Path) -> None:
    file = tmp_path / "a.jsonl"
    write_pairs(file, PAIRS)
    with pytest.raises(DataError, match=r"no column 'questions'; .* did you mean data.prompt=question\?"):
        load_pairs(file, prompt="questions")
    for at, column in enumerate(("question", "answer")):
        for nothing in ("", "  ", None):
            pair = tuple(nothing if i == at else text for i, text in enumerate(PAIRS[0]))
            write_pairs(file, [*PAIRS, pair])
            with pytest.raises(DataError, match=rf"row 4, column '{column}': .* is null, blank .* or remove the rows"):
                load_pairs(file)


def test_only_the_first_rows(tmp_path: Path) -> None:
    for suffix in (".tsv", ".parquet"):
        WRITERS[suffix](tmp_path / f"train{suffix}", [*ROWS, ("", 7)])  # an unused row need not be valid
        WRITERS[suffix](tmp_path / f"dev{suffix}", ROWS)
        dataset = load(tmp_path / f"train{suffix}", rows=3)
        assert dataset.dev is not None
        assert (list(dataset.train.texts), len(dataset.dev)) == ([text for text, _ in ROWS[:3]], 4)
    assert "row 5" in refusal(tmp_path / "train.tsv", rows=5)
    assert "1 row; training needs at least 2" in refusal(tmp_path / "train.tsv", rows=1)
    embedded, few = (load_dataset(DataConfig(size=100, rows=rows), 0) for rows in (None, 7))
    assert few.train.texts == embedded.train.texts[:7]
    assert len(few.train.labels if few.train.labels is not None else []) == 7
    assert len(few.dev or []) == 200
    import datasets

    rows = datasets.Dataset.from_dict({"sentence": ["a", "b", "c"], "label": [0, 1, 1]})
    datasets.DatasetDict(train=rows, validation=rows).save_to_disk(str(tmp_path / "saved"))
    saved = load(tmp_path / "saved", rows=2)
    assert (len(saved.train), len(saved.dev or [])) == (2, 3)


@pytest.mark.parametrize("share", [0.25, 0.01])
def test_rows_held_out(tmp_path: Path, share: float) -> None:
    file = tmp_path / "a.tsv"
    texts = [f"text {i}" for i in range(40)]
    write_tsv(file, [(text, i % 2) for i, text in enumerate(texts)])
    config = DataConfig(path=str(file), held_out=share, rows=32)
    first, again, other = (load_dataset(config, seed) for seed in (5, 5, 6))
    assert first.dev is not None
    assert other.dev is not None
    count = max(1, round(32 * share))
    assert (len(first.train), len(first.dev)) == (32 - count, count)
    assert sorted([*first.train.texts, *first.dev.texts]) == sorted(texts[:32])
    for split in (first.train, first.dev):
        numbers = [int(text.split()[1]) for text in split.texts]
        assert numbers == sorted(numbers), "in the order of the file"
        assert split.labels is not None
        assert split.labels.tolist() == [number % 2 for number in numbers]
        assert split.rows == [number + 1 for number in numbers], "errors name the file's own rows"
    assert first.train.texts == again.train.texts != other.train.texts
    assert f"{count} of 32 rows held out (seed 5)" in first.source


def test_nothing_is_held_out_where_there_is_a_dev_split(tmp_path: Path) -> None:
    write_tsv(tmp_path / "train.tsv", ROWS)
    write_tsv(tmp_path / "dev.tsv", ROWS[:1])
    dataset = load(tmp_path / "train.tsv", held_out=0.5)
    assert (len(dataset.train), len(dataset.dev or [])) == (4, 1)


def test_two_rows_must_be_left_to_train_on(tmp_path: Path) -> None:
    file = tmp_path / "a.tsv"
    write_tsv(file, ROWS)
    assert len(load(file, held_out=0.5).train) == 2
    assert "data.held_out = 0.75 takes 3 of 4 rows; training needs at least 2 of them" in refusal(file, held_out=0.75)


def test_real_sst2(data_dir: Path) -> None:
    dataset = load(data_dir / "sst2" / "train.tsv")
    assert dataset.dev is not None
    assert (len(dataset.train), len(dataset.dev)) == (67_349, 872)
    assert dataset.train.labels.mean() == pytest.approx(0.5578, abs=1e-4)


def test_embedded_sentences_need_nothing_and_follow_the_seed() -> None:
    first, again, other = (load_dataset(DataConfig(size=1000), seed) for seed in (3, 3, 4))
    assert first.dev is not None
    assert (len(first.train), len(first.dev)) == (1000, 200)
    assert first.train.texts == again.train.texts != other.train.texts
    train_lengths, dev_lengths = ([len(t.split()) for t in split.texts[:200]] for split in (first.train, first.dev))
    assert train_lengths != dev_lengths, "the dev sentences are draws of their own"
    assert "embedded" in first.source
    assert len(load_dataset(DataConfig(size=4096), 0).dev or []) == 512


def test_folders_saved_by_datasets(tmp_path: Path) -> None:
    import datasets

    texts, labels = zip(*ROWS, strict=True)
    features = datasets.Features(
        {"sentence": datasets.Value("string"), "label": datasets.ClassLabel(names=["neg", "pos"])}
    )
    rows = datasets.Dataset.from_dict({"sentence": list(texts), "label": list(labels)}, features=features)
    datasets.DatasetDict(train=rows.select([3, 0]), validation=rows.select([1])).save_to_disk(str(tmp_path / "dict"))
    rows.save_to_disk(str(tmp_path / "rows"))
    both = load(tmp_path / "dict")
    assert list(both.train.texts) == [texts[3], texts[0]]
    assert both.train.labels.tolist() == [0, 1]
    assert both.dev is not None
    assert list(both.dev.texts) == [texts[1]]
    single = load(tmp_path / "rows")
    assert list(single.train.texts) == list(texts)
    assert single.dev is None
    datasets.DatasetDict(test=rows).save_to_disk(str(tmp_path / "test_only"))
    assert "no train split; it has test" in refusal(tmp_path / "test_only")


def test_a_missing_path_an_unknown_suffix_and_a_folder_without_train(tmp_path: Path) -> None:
    assert "no such file or folder" in refusal(tmp_path / "none.tsv")
    (tmp_path / "a.xlsx").write_text("x")
    assert "'.xlsx' is not known; give one of .tsv, .csv" in refusal(tmp_path / "a.xlsx")
    assert "no train file" in refusal(tmp_path)
    for suffix in (".tsv", ".csv"):
        WRITERS[suffix](tmp_path / f"train{suffix}", ROWS)
    assert "train.tsv and train.csv" in refusal(tmp_path)
    assert "none.csv: no such file" in refusal(tmp_path / "train.tsv", dev=str(tmp_path / "none.csv"))


@pytest.mark.parametrize(
    ("name", "content", "expected"),
    [
        ("a.tsv", b"", "the file is empty"),
        ("a.csv", b"", "the file is empty"),
        ("a.jsonl", b"\n", "the file is empty"),
        ("a.tsv", b"label\tsentence\n", "no rows"),
        ("a.tsv", b"label\tsentence\n1\tgood\n", "1 row; training needs at least 2"),
        ("a.tsv", b"label\tsentense\n1\tgood\n", "no column 'sentence'; it has 'label', 'sentense'; did you mean"),
        ("a.csv", b"sentence,y\ngood,1\n", "no column 'label'; it has 'sentence', 'y'; set data.label"),
        ("a.tsv", b"label\tsentence\n1\tgood\n0\tbad\tworse\n", "row 2 (line 3): 3 fields where the header has 2"),
        ("a.tsv", b"label\tsentence\n1\tgood\n0\n", "row 2 (line 3): 1 fields where the header has 2"),
        ("a.csv", b'sentence,label\n"open,1\n', "line 2: unexpected end of data"),
        ("a.tsv", b"label\tsentence\n1\t\xff\xfe\n", "not UTF-8"),
        ("a.jsonl", b'{"sentence": "x", "label": 1}\n{"sentence": \n', "line 2: not JSON"),
        ("a.jsonl", b"[1, 2]\n", 'line 1: \'[1, 2]\' is not an object like {"sentence": "some text", "label": 0}'),
        ("a.parquet", b"label\tsentence\n", "not a Parquet file"),
        ("a.parquet", b"", "not a Parquet file"),
        ("tokens/dataset_info.json", b"{", "cannot be read as a saved data set"),
    ],
)
def test_a_file_that_is_not_what_its_name_says(tmp_path: Path, name: str, content: bytes, expected: str) -> None:
    file = tmp_path / name
    file.parent.mkdir(exist_ok=True)
    file.write_bytes(content)
    given = file if file.parent == tmp_path else file.parent
    message = refusal(given)
    assert message.startswith(str(given)) or str(given) in message
    assert expected in message


@every_suffix
@pytest.mark.parametrize("label", [-1, 2])
def test_labels_out_of_range_are_counted_and_placed(tmp_path: Path, suffix: str, label: int) -> None:
    file = tmp_path / f"a{suffix}"
    WRITERS[suffix](file, [ROWS[0], ("bad", label), ROWS[1], ("bad", label)])
    message = refusal(file)
    assert f"{file}, row 2, column 'label'" in message
    assert f"{label}" in message
    assert "not an integer from 0 to 1 (data.num_labels = 2); 2 of 4 rows are like this (2, 4)" in message


@pytest.mark.parametrize(
    ("suffix", "label"),
    [(".tsv", "good"), (".tsv", ""), (".csv", "1.0"), (".jsonl", True), (".jsonl", None), (".parquet", 0.5)],
)
def test_labels_that_are_no_integers(tmp_path: Path, suffix: str, label: object) -> None:
    file = tmp_path / f"a{suffix}"
    first = 1.0 if isinstance(label, float) else 1
    WRITERS[suffix](file, [("x", first), ("y", label)])
    assert "column 'label'" in refusal(file)
    assert f"{label!r} is not an integer" in refusal(file) or f"{first!r} is not an integer" in refusal(file)


@pytest.mark.parametrize(
    ("suffix", "text"),
    [
        (".tsv", ""),
        (".tsv", "  "),
        (".csv", ""),
        (".jsonl", None),
        (".jsonl", 5),
        (".jsonl", "\ud800"),
        (".parquet", None),
    ],
)
def test_texts_that_say_nothing(tmp_path: Path, suffix: str, text: object) -> None:
    file = tmp_path / f"a{suffix}"
    WRITERS[suffix](file, [("x", 1), ("y", 0), (text, 1), *([(text, 0)] * 6)])
    message = refusal(file)
    assert f"{file}, row 3, column 'sentence': {text!r} is null, blank or no valid text" in message
    assert "7 of 9 rows are like this (3, 4, 5, 6, 7, ...)" in message


def test_one_embedded_sentence_cannot_be_trained_on() -> None:
    with pytest.raises(DataError, match="training needs at least 2"):
        load_dataset(DataConfig(size=1), seed=0)
