"""Each sample's loss under given weights agrees with the model called on that sample alone."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from typer.testing import CliRunner

from ddpsched.cli import app
from ddpsched.config import RunConfig, parse
from ddpsched.data.embedded.sentences import compose, embedded_tokenizer
from ddpsched.data.order_file import OrderedFile
from ddpsched.data.table_files import Chunk
from ddpsched.data.tokenizer import Encoder
from ddpsched.errors import DataError
from ddpsched.training.evaluate import SampleLoss
from ddpsched.training.model import build_model

TEXTS, LABELS = compose(40, 3)


@pytest.fixture(params=["classification", "causal_lm"])
def config(request: pytest.FixtureRequest, tmp_path: Path) -> RunConfig:
    """Save a tiny model in a folder, as a user would, and return a config for it."""
    tokenizer = embedded_tokenizer()
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    values: dict[str, Any] = {"steps": 1, "model": {"task": request.param}}
    torch.manual_seed(0)
    model = build_model(parse(values).model, 2, tokenizer.get_vocab_size(), 0)
    model.save_pretrained(tmp_path / "model")  # type: ignore[operator]
    values["model"] |= {"name": str(tmp_path / "model"), "weights": "pretrained"}
    values["data"] = {"path": str(tmp_path / "train.tsv"), "tokenizer": str(tmp_path)}
    rows = [f"{text}\t{label}" for text, label in zip(TEXTS, LABELS, strict=True)]
    (tmp_path / "train.tsv").write_text("\n".join(["sentence\tlabel", *rows]) + "\n", encoding="utf-8")
    return parse(values)


def alone(config: RunConfig, loss: SampleLoss) -> list[float]:
    """Return the losses one sample at a time, with torch's functions only."""
    found = []
    for text, label in zip(TEXTS, LABELS, strict=True):
        ids = torch.tensor([embedded_tokenizer().encode(text).ids])
        with torch.no_grad():
            logits = loss._model(input_ids=ids, attention_mask=torch.ones_like(ids)).logits
        if config.model.task == "classification":
            found.append(float(F.cross_entropy(logits, torch.tensor([int(label)]))))
        else:
            found.append(float(F.cross_entropy(logits[0, :-1], ids[0, 1:])))
    return found


def test_as_one_sample_alone(config: RunConfig) -> None:
    loss = SampleLoss(config)
    encoded = Encoder(embedded_tokenizer(), 128).encode(TEXTS, None, range(1, 41))
    chunk = Chunk(0, 0, 40, {"label": [str(label) for label in LABELS]})
    found = loss(encoded, chunk)
    np.testing.assert_allclose(found, alone(config, loss), rtol=2e-5)
    assert np.ptp(found) > 0.01


def test_a_label_that_is_none(config: RunConfig) -> None:
    if config.model.task == "causal_lm":
        return
    encoded = Encoder(embedded_tokenizer(), 128).encode(TEXTS[:2], None, [5, 6])
    with pytest.raises(DataError, match=r"row 6, column 'label': '2' is not an integer from 0 to 1"):
        SampleLoss(config)(encoded, Chunk(0, 4, 2, {"label": ["1", "2"]}))


def test_sorted_by_it(config: RunConfig, tmp_path: Path) -> None:
    words = ["sort", str(tmp_path / "train.tsv"), f"model.name={config.model.name}", "model.weights=pretrained"]
    words += [f"model.task={config.model.task}", f"data.tokenizer={tmp_path}", "--metric", "loss", "--chunk", "16"]
    found = CliRunner().invoke(app, [*words, "--output", str(tmp_path / "order.npy")])
    assert found.exit_code == 0, found.output
    rows = OrderedFile.open(tmp_path / "order.npy").rows()
    np.testing.assert_allclose(rows["loss"], np.sort(alone(config, SampleLoss(config))), rtol=2e-5)
