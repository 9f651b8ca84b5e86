"""Trainers, models and data of the tests of ``ddpsched.integrations.transformers``."""

import tempfile
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
import torch.nn.functional as F

from ddpsched.integrations.transformers import BalancedTrainerMixin, balance

SIZE, PER_DEVICE = 45, 4  # samples; of a micro-batch
WORDS = SIZE + 40  # of the vocabulary
BY_TOKEN = ("language", "tokens")  # kinds of models with labels for tokens
UNLABELLED = "classifier, some without a label"
LENGTHS = np.random.default_rng(3).integers(3, 30, SIZE)


class Sentences:
    """Samples whose first token is their number; some tokens of a language model's are no labels."""

    def __init__(self, by_token: bool = False, unlabelled: bool = False) -> None:
        self.by_token, self.unlabelled = by_token, unlabelled

    def __len__(self) -> int:
        return SIZE

    def __getitem__(self, id: int) -> dict[str, Any]:
        tokens = np.random.default_rng([7, id]).integers(SIZE + 1, WORDS, LENGTHS[id])
        tokens[0] = id + 1
        labels = np.where(np.arange(len(tokens)) < id % 5, -100, tokens) if self.by_token else int(tokens[1]) % 2
        if self.unlabelled and id % 4 == 0:
            labels = -100
        return {"input_ids": tokens.tolist(), "labels": labels.tolist() if self.by_token else labels}


def collate(samples: list[dict[str, Any]]) -> dict[str, torch.Tensor]:
    def padded(name: str, fill: int) -> torch.Tensor:
        rows = [torch.tensor(each[name]) for each in samples]  # fails on an empty list, as most collate functions do
        return torch.nn.utils.rnn.pad_sequence(rows, batch_first=True, padding_value=fill)

    ids = padded("input_ids", 0)
    by_token = isinstance(samples[0]["labels"], list)
    labels = padded("labels", -100) if by_token else torch.tensor([each["labels"] for each in samples])
    return {"input_ids": ids, "attention_mask": (ids > 0).long(), "labels": labels}


class Head(torch.nn.Module):
    """A classifier of one's own, whose forward takes the mean loss, and no keywords."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.embedding, self.head = torch.nn.Embedding(WORDS, 8), torch.nn.Linear(8, 2)

    def forward(self, input_ids: torch.Tensor, attention_mask: torch.Tensor, labels: Any = None) -> dict[str, Any]:
        real = attention_mask[..., None]
        logits = self.head((self.embedding(input_ids).tanh() * real).sum(1) / real.sum(1))
        return {"logits": logits} if labels is None else {"loss": F.cross_entropy(logits, labels), "logits": logits}


def model_of(kind: str) -> torch.nn.Module:
    from transformers import (
        DistilBertConfig,
        DistilBertForSequenceClassification,
        DistilBertForTokenClassification,
        LlamaConfig,
        LlamaForCausalLM,
    )

    torch.manual_seed(0)
    if kind == "own":
        return Head().double()
    if kind in ("classifier", UNLABELLED, "tokens"):  # takes **kwargs, and the mean all the same
        shape = DistilBertConfig(
            vocab_size=WORDS, dim=16, n_layers=1, n_heads=2, hidden_dim=32, max_position_embeddings=64,
            dropout=0.0, attention_dropout=0.0, seq_classif_dropout=0.0,
            num_labels=WORDS if kind == "tokens" else 2,
        )  # fmt: skip
        head = DistilBertForTokenClassification if kind == "tokens" else DistilBertForSequenceClassification
        return head(shape).double()
    small = LlamaConfig(
        vocab_size=WORDS, hidden_size=16, intermediate_size=24, num_hidden_layers=1, num_attention_heads=2,
        num_key_value_heads=1, max_position_embeddings=64,
    )  # fmt: skip
    return LlamaForCausalLM(small).double()


Step = tuple[list[int], list[int], np.ndarray]  # ids that count; samples of each micro-batch; the gradient


def train(
    kind: str, balancing: Mapping[str, Any], folder: str | None = None, resume: str | None = None, epochs: int = 2,
    stop: int = -1, given: Mapping[str, Any] | None = None, **arguments: Any,
) -> list[Step]:  # fmt: skip
    """Return the optimizer steps of this rank, or of the only one. ``given``: more for Trainer, ``base``: its class."""
    from transformers import Trainer, TrainerCallback, TrainerControl, TrainerState, TrainingArguments

    more = dict(given or {})
    base = more.pop("base", Trainer)

    model, steps, running = model_of(kind), list[Step](), list[list[int]]()

    class Notes(TrainerCallback):
        def on_pre_optimizer_step(self, *_: Any, **__: Any) -> None:
            gradient = torch.cat([p.grad.reshape(-1) for p in model.parameters() if p.grad is not None])
            share = trainer._microbatches.steps.step
            ids = [id for each in running for id in each] if share.rank_samples else []
            steps.append((ids, [len(each) for each in running], gradient.numpy().copy()))
            running.clear()

        def on_step_end(self, a: Any, state: TrainerState, control: TrainerControl, **more: Any) -> None:
            if state.global_step == stop:
                control.should_save = control.should_training_stop = True

    def note(_: Any, __: Any, inputs: Mapping[str, Any]) -> None:
        if model.training:
            ids = inputs["input_ids"]
            firsts = ids[0, inputs["packing"].offsets[:-1]] if "packing" in inputs else ids[:, 0]
            running.append((firsts - 1).tolist())

    model.register_forward_pre_hook(note, with_kwargs=True)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.3)
    with tempfile.TemporaryDirectory() as temporary:
        settings = {
            "output_dir": folder or temporary, "num_train_epochs": epochs, "max_grad_norm": 0.0, "use_cpu": True,
            "report_to": [], "save_strategy": "no", "logging_strategy": "no", "disable_tqdm": True,
            "per_device_train_batch_size": PER_DEVICE, "dataloader_pin_memory": False, **arguments,
        }  # fmt: skip
        words: Any = {
            "args": TrainingArguments(**settings), "train_dataset": Sentences(kind in BY_TOKEN, kind == UNLABELLED),
            "data_collator": collate, "callbacks": [Notes()],
            "optimizers": (optimizer, torch.optim.lr_scheduler.ConstantLR(optimizer, 1.0)), **more,
        }  # fmt: skip
        trainer: Any = base(model, **words)
        if not isinstance(trainer, BalancedTrainerMixin):
            balance(trainer, **balancing)
        trainer.train(resume_from_checkpoint=resume)
    return steps


def own_loss(model: Any, batch: dict[str, Any]) -> torch.Tensor:
    loss: torch.Tensor = model(**batch)["loss"]
    return loss


def largest_error(kind: str, ranks: list[list[Step]], loss: Any = own_loss) -> float:
    """Return the largest error of a step against one process that takes the mean loss of its samples in one batch."""
    model, worst, data = model_of(kind), 0.0, Sentences(kind in BY_TOKEN, kind == UNLABELLED)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.3)
    for step in zip(*ranks, strict=True):
        for _, _, other in step[1:]:
            np.testing.assert_array_equal(step[0][2], other)
        loss(model, collate([data[id] for ids, _, _ in step for id in ids])).backward()
        expected = torch.cat([p.grad.reshape(-1) for p in model.parameters() if p.grad is not None]).numpy()
        worst = max(worst, float(np.linalg.norm(step[0][2] - expected) / np.linalg.norm(expected)))
        optimizer.step()
        optimizer.zero_grad()
    return worst


def losses_on_rank(every: int) -> tuple[float, list[float]]:
    """Return train_loss, and the losses that were logged every so many steps, of an epoch of uneven batches."""
    from transformers import Trainer, TrainingArguments

    with tempfile.TemporaryDirectory() as folder:
        arguments = TrainingArguments(
            folder, num_train_epochs=1, per_device_train_batch_size=PER_DEVICE, use_cpu=True, report_to=[],
            save_strategy="no", disable_tqdm=True, dataloader_pin_memory=False, optim="sgd", logging_steps=every,
        )  # fmt: skip
        trainer = balance(Trainer(model_of("own"), arguments, collate, Sentences()))
        found = trainer.train().training_loss
    return found, [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]


Case = tuple[str, dict[str, Any], dict[str, Any]]  # the model, ``balancing``, and more for ``train``


Logged = list[tuple[float, list[float]]]


def on_ranks(cases: list[Case], logged_every: tuple[int, ...] = ()) -> tuple[list[list[Step]], Logged]:
    """Return the steps of each case, and the losses of a run for each number of steps between those logged."""
    dist.init_process_group("gloo")
    steps = [train(kind, balancing, **more) for kind, balancing, more in cases]
    return steps, [losses_on_rank(every) for every in logged_every]
