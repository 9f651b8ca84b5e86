"""Rows without padding for models of other loops: the logits of each sample are those that it has alone."""

import warnings
from typing import Any
from weakref import WeakSet

import numpy as np
import pytest
import torch
from transformers import (
    BertConfig,
    BertModel,
    DistilBertConfig,
    DistilBertForSequenceClassification,
    LlamaConfig,
    LlamaForCausalLM,
)

import ddpsched
from ddpsched import ConfigError, DataError, StepLoader, World
from ddpsched.training import packed as training_packed

LENGTHS = [5, 9, 2, 9, 14, 3]
SMALL: dict[str, Any] = {"vocab_size": 40, "max_position_embeddings": 32}


def samples(by_token: bool) -> list[dict[str, Any]]:
    rng = np.random.default_rng(0)
    ids = [rng.integers(1, 40, length).tolist() for length in LENGTHS]
    return [
        {"input_ids": each, "attention_mask": [1] * len(each), "labels": each if by_token else number % 2}
        for number, each in enumerate(ids)
    ]


def order() -> list[int]:
    return sorted(range(len(LENGTHS)), key=lambda number: LENGTHS[number])


def test_a_classifier() -> None:
    torch.manual_seed(0)
    model = DistilBertForSequenceClassification(DistilBertConfig(**SMALL, dim=16, n_layers=2, n_heads=2, hidden_dim=32))
    model.eval()
    alone = torch.cat([model(torch.tensor([each["input_ids"]])).logits for each in samples(False)])
    ddpsched.enable_packing(model)
    batch = ddpsched.packed_collate(samples(False))
    labels = batch.pop("labels")
    torch.testing.assert_close(model(**batch).logits, alone[order()], rtol=1e-5, atol=1e-6)
    assert labels.tolist() == [number % 2 for number in order()]


def test_a_language_model() -> None:
    torch.manual_seed(0)
    model = LlamaForCausalLM(LlamaConfig(**SMALL, hidden_size=16, intermediate_size=32, num_hidden_layers=2,
                                         num_attention_heads=2, num_key_value_heads=1))  # fmt: skip
    model.eval()
    alone = [model(torch.tensor([each["input_ids"]])).logits[0] for each in samples(True)]
    ddpsched.enable_packing(model, max_length=32)
    batch = ddpsched.packed_collate(samples(True))
    labels = batch.pop("labels")
    expected = torch.cat([alone[number] for number in order()])
    torch.testing.assert_close(model(**batch).logits[0], expected, rtol=1e-5, atol=1e-6)
    starts = np.cumsum([0, *sorted(LENGTHS)])[:-1]
    assert (labels[0, starts] == -100).all(), "nothing predicts a sample's first token"
    assert (labels != -100).sum() == sum(LENGTHS) - len(LENGTHS)


def test_a_mask_of_pairs() -> None:
    torch.manual_seed(0)
    shape = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 32}
    model = BertModel(BertConfig(**SMALL, **shape))
    model.eval()
    alone = [model(torch.tensor([each["input_ids"]])).last_hidden_state[0] for each in samples(False)]
    batch = ddpsched.packed_collate(samples(False), "mask")
    del batch["labels"]
    found = model(**batch).last_hidden_state[0]
    torch.testing.assert_close(found, torch.cat([alone[number] for number in order()]), rtol=1e-4, atol=1e-5)
    mixed = model(batch["input_ids"], position_ids=batch["position_ids"]).last_hidden_state[0]
    assert not torch.allclose(mixed, found, atol=1e-3), "without it samples see one another"


def test_the_keywords_of_flash_attention_and_of_others() -> None:
    flash = ddpsched.packed_collate(samples(False), "flash")
    own = ddpsched.packed_collate(samples(False), "cu_seqlens")
    ends = np.cumsum([0, *sorted(LENGTHS)]).tolist()
    assert flash["cu_seq_lens_q"].tolist() == flash["cu_seq_lens_k"].tolist() == own["cu_seqlens"].tolist() == ends
    assert flash["max_length_q"] == flash["max_length_k"] == own["max_seqlen"] == 14
    assert own["cu_seqlens"].dtype == torch.int32
    assert own["position_ids"][0].tolist() == [place for length in sorted(LENGTHS) for place in range(length)]


@pytest.mark.parametrize("workers", [0, 2])
def test_through_a_loader_with_workers(workers: int) -> None:
    words = {"world": World(0, 1), "policy": "packed", "global_batch": 4, "num_workers": workers}
    loader = StepLoader(samples(False), LENGTHS, collate_fn=ddpsched.packed_collate, **words)
    rows = [batch for batches in loader for batch in batches]
    assert sum(batch["input_ids"].numel() for batch in rows) == sum(LENGTHS)
    assert sum(len(batch["packing"].lengths) for batch in rows) == len(LENGTHS)
    moved = rows[0]["packing"].to("cpu")
    assert moved.offsets.tolist() == rows[0]["packing"].offsets.tolist()


def packed(collate: Any) -> StepLoader:
    words = {"world": World(0, 1), "policy": "packed", "global_batch": 3}
    return StepLoader(samples(False), LENGTHS, collate_fn=collate, **words)


def padded(rows: list[dict[str, Any]]) -> dict[str, torch.Tensor]:
    ids = [torch.tensor(row["input_ids"]) for row in rows]
    return {"input_ids": torch.nn.utils.rnn.pad_sequence(ids, batch_first=True)}


def test_packed_rows_that_would_not_be_as_planned(monkeypatch: pytest.MonkeyPatch) -> None:
    for collate in (padded, lambda rows: padded(rows)["input_ids"].T):
        with pytest.warns(UserWarning, match="made 3 rows of a micro-batch that policy 'packed' planned as one"):
            list(packed(collate))
    monkeypatch.setattr(training_packed, "enabled", WeakSet())
    with pytest.warns(
        UserWarning, match=r"no model of this process was prepared.*call ddpsched\.enable_packing"
    ) as got:
        list(packed(ddpsched.packed_collate))
    assert len(got) == 1, "once, not at each step"
    ddpsched.enable_packing(classifier())  # the set is weak
    kept = classifier()
    ddpsched.enable_packing(kept)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        list(packed(ddpsched.packed_collate))
        list(packed(list))
        list(packed(lambda rows: torch.zeros(sum(len(row["input_ids"]) for row in rows), 3)))  # three features


def classifier() -> DistilBertForSequenceClassification:
    return DistilBertForSequenceClassification(DistilBertConfig(**SMALL, dim=16, n_layers=1, n_heads=2, hidden_dim=32))


def test_a_second_call_changes_nothing_and_other_models_are_refused() -> None:
    model = classifier().eval()
    ddpsched.enable_packing(model)
    batch = ddpsched.packed_collate(samples(False))
    del batch["labels"]
    once, hooks = model(**batch).logits, len(model.distilbert.transformer._forward_hooks)
    ddpsched.enable_packing(model)
    torch.testing.assert_close(model(**batch).logits, once)
    assert len(model.distilbert.transformer._forward_hooks) == hooks
    with pytest.raises(ConfigError, match=r"Linear is no model of transformers; .*packed_collate\(samples, .cu_seq"):
        ddpsched.enable_packing(torch.nn.Linear(2, 2))


@pytest.mark.parametrize(
    ("given", "named"),
    [
        ([{"labels": 1}], "sample 0 has no 'input_ids'; it has 'labels'"),
        (
            [{"input_ids": [1], "label": 0}, {"input_ids": [1]}],
            "sample 1 has no 'label' or 'labels'; it has 'input_ids'",
        ),
        ([{"input_ids": [1, 2], "labels": [1]}], r"input_ids of shape \(2,\) and labels of \(1,\); give flat ids"),
        ([[1, 2]], "sample 0 has no 'input_ids'; it has list"),
    ],
)
def test_refused_samples(given: Any, named: str) -> None:
    with pytest.raises(DataError, match=named):
        ddpsched.packed_collate(given)
    with pytest.raises(ConfigError, match="attention = 'sdpa' is none of 'packing', 'flash', 'mask', 'cu_seqlens'"):
        ddpsched.packed_collate(given, "sdpa")
