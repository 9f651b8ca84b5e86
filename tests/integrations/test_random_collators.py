"""A balanced Trainer whose collate function draws at random, as one that masks words does."""

import random
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from transformers_trainers import SIZE, WORDS, Sentences, collate

from ddpsched.errors import ConfigError
from ddpsched.integrations.transformers import balance

pytest.importorskip("accelerate")
from transformers import (
    DistilBertConfig,
    DistilBertForMaskedLM,
    Trainer,
    TrainerCallback,
    TrainingArguments,
)

MASK = SIZE  # no sample has this token


def masked(samples: list[dict[str, Any]]) -> dict[str, torch.Tensor]:
    batch = collate(samples)
    ids = batch["input_ids"]
    chosen = (torch.rand(ids.shape) < 0.3) & (ids > 0)
    return {**batch, "input_ids": ids.where(~chosen, MASK), "labels": ids.where(chosen, -100)}


def model() -> Any:
    torch.manual_seed(0)
    shape = DistilBertConfig(
        vocab_size=WORDS, dim=16, n_layers=1, n_heads=2, hidden_dim=32, max_position_embeddings=64, dropout=0.0,
        attention_dropout=0.0,
    )  # fmt: skip
    return DistilBertForMaskedLM(shape).double()


def train(folder: Any, collate_fn: Any, steps: int = 6) -> tuple[list[list[Any]], list[torch.Tensor]]:
    """Return the batches of each step, and its gradient; the weights stay as they are."""
    net, batches, gradients = model(), [list[Any]()], list[torch.Tensor]()

    class Notes(TrainerCallback):
        def on_pre_optimizer_step(self, *_: Any, **__: Any) -> None:
            gradients.append(torch.cat([p.grad.flatten() for p in net.parameters()]))
            batches.append([])

    def note(module: Any, _: Any, inputs: dict[str, Any]) -> None:
        if module.training:
            batches[-1].append(dict(inputs))

    net.register_forward_pre_hook(note, with_kwargs=True)
    arguments = TrainingArguments(
        str(folder), max_steps=steps, per_device_train_batch_size=4, gradient_accumulation_steps=2, use_cpu=True,
        report_to=[], save_strategy="no", max_grad_norm=0.0, learning_rate=0.0, dataloader_pin_memory=False,
    )  # fmt: skip
    balance(Trainer(net, arguments, collate_fn, Sentences(), callbacks=[Notes()])).train()
    return batches[:-1], gradients


def test_the_gradient_is_that_of_the_mean_over_the_masked_words_of_a_step(tmp_path: Any) -> None:
    batches, gradients = train(tmp_path, masked)
    assert len({sum(int((each["labels"] != -100).sum()) for each in step) for step in batches}) > 1
    for step, gradient in zip(batches, gradients, strict=True):
        net, total = model(), sum(int((each["labels"] != -100).sum()) for each in step)
        for batch in step:
            logits = net(batch["input_ids"], batch["attention_mask"]).logits
            (F.cross_entropy(logits.flatten(0, 1), batch["labels"].flatten(), reduction="sum") / total).backward()
        expected = torch.cat([p.grad.flatten() for p in net.parameters()])
        assert float((gradient - expected).norm() / expected.norm()) <= 1e-12


def test_trying_the_loss_draws_nothing_from_the_run(tmp_path: Any) -> None:
    """Else a run that is resumed, and tries it again, would go on with other numbers."""
    drawn: list[Any] = []

    class Draws(TrainerCallback):
        def on_pre_optimizer_step(self, *_: Any, **__: Any) -> None:
            drawn.append((random.random(), np.random.random(), float(torch.rand(()))))  # noqa: NPY002

    def drawing(samples: list[dict[str, Any]]) -> dict[str, torch.Tensor]:
        random.random(), np.random.random()  # noqa: NPY002
        return masked(samples)

    for tried in (True, False):
        trainer = balance(Trainer(
            model(), TrainingArguments(str(tmp_path), max_steps=1, use_cpu=True, report_to=[], save_strategy="no"),
            drawing, Sentences(), callbacks=[Draws()],
        ))  # fmt: skip
        if not tried:
            trainer._found_rule = lambda _: "step"
        trainer.train()
    assert drawn[0] == drawn[1]


def test_random_batches_that_have_no_rows_are_refused(tmp_path: Any) -> None:
    def transposed(samples: list[dict[str, Any]]) -> dict[str, torch.Tensor]:
        return {**masked(samples), "lengths": torch.tensor([0])}

    with pytest.raises(ConfigError, match=r"another batch of the same \d+ samples.*its 'lengths' has not"):
        train(tmp_path, transposed)
