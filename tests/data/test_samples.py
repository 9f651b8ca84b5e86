"""The data of a run, for a classifier and for a language model."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from prompted import write_prompted

from ddpsched.config import parse
from ddpsched.data.samples import Samples
from ddpsched.data.token_table import OnlineTokens, TokenTable
from ddpsched.data.tokenizer import load_tokenizer
from ddpsched.errors import DataError

LANGUAGE_MODEL = {"task": "causal_lm"}


def samples_of(data: dict[str, Any], **values: Any) -> Samples:
    return parse({"steps": 1, "data": data, "model": LANGUAGE_MODEL, **values}).load_samples()


def test_the_embedded_sentences_are_learnt_but_for_their_first_token() -> None:
    samples = samples_of({"size": 40})
    assert isinstance(samples.train, TokenTable)
    ids = np.arange(40)
    assert samples.train.num_targets(ids).tolist() == (samples.train.lengths(ids) - 1).tolist()
    assert samples.dev is not None
    classifier = parse({"steps": 1, "data": {"size": 40}}).load_samples()
    assert classifier.train.row(3).tolist() == samples.train.row(3).tolist()


def test_prompts_at_once_and_online(tmp_path: Path) -> None:
    data = write_prompted(tmp_path / "data", 30)
    policy = {"kind": "minmax", "prefetch": 32}
    known, online = (samples_of({**data, "lengths": how}, policy=policy).train for how in ("known", "online"))
    assert isinstance(online, OnlineTokens)
    ids = np.arange(30)
    np.testing.assert_array_equal(online.num_targets(ids), known.num_targets(ids))
    np.testing.assert_array_equal(online.parts(ids), known.parts(ids))
    assert all(online.labels(i).tolist() == known.labels(i).tolist() for i in range(30))
    prompts = known.parts(ids)[:, 0]
    assert prompts.max() > 3 * prompts.min(), "they are unequal"


def test_a_held_out_row_is_named_by_its_place_in_the_file(tmp_path: Path) -> None:
    data = write_prompted(tmp_path / "data", 12)
    rows = [json.loads(line) for line in Path(data["path"]).read_text().splitlines()]
    rows[7]["question"] = " ".join(["film"] * 200)
    Path(data["path"]).write_text("".join(json.dumps(row) + "\n" for row in rows))
    for seed in range(4):  # the row falls into either split
        with pytest.raises(DataError, match=r"1 texts have no token .* \(rows 8\)"):
            samples_of({**data, "held_out": 0.5}, seed=seed)


def test_real_pairs(data_dir: Path) -> None:
    """On GSM8K, with the answers to be learnt, every row equals the tokenizer's encoding."""
    folder = data_dir / "gsm8k"
    if not folder.exists():  # real data is not part of the project
        pytest.skip(f"no {folder}; point DDPSCHED_DATA at a folder that has it")
    vocabulary = str(data_dir / "bert-uncased")
    data = {"path": str(folder), "prompt": "question", "text": "answer", "tokenizer": vocabulary, "max_length": 512}
    samples = samples_of({**data, "rows": 1000, "held_out": 0.1})
    assert (len(samples.train), len(samples.dev or []), samples.train.num_truncated) == (900, 100, 0)
    rows = [json.loads(line) for line in (folder / "train.jsonl").read_text(encoding="utf-8").splitlines()]
    tokenizer = load_tokenizer(vocabulary)
    for split, table in ((samples.dataset.train, samples.train), (samples.dataset.dev, samples.dev)):
        assert split is not None
        assert table is not None
        for id in range(0, len(split), 9):
            row = rows[(split.rows or [])[id] - 1]
            question, both = tokenizer.encode(row["question"]), tokenizer.encode(row["question"], row["answer"])
            assert table.row(id).tolist() == both.ids
            labels = table.labels(id)
            np.testing.assert_array_equal(labels, np.where(np.arange(len(labels)) < len(question.ids), -100, both.ids))
    short = samples_of({**data, "rows": 400, "max_length": 256})
    lengths = short.train.lengths(np.arange(400))
    whole = samples_of({**data, "rows": 400}).train.lengths(np.arange(400))
    np.testing.assert_array_equal(lengths, np.minimum(whole, 256))
    assert short.train.num_truncated == (whole > 256).sum() > 0
    with pytest.raises(DataError, match=r"raise data\.max_length, or remove the rows"):
        samples_of({**data, "rows": 400, "max_length": 64})
