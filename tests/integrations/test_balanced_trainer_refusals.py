"""A balanced Trainer in one process: refusals and warnings, lengths, evaluation."""

import logging
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers_trainers import LENGTHS, SIZE, Sentences, collate, model_of, train

from ddpsched.errors import ConfigError
from ddpsched.integrations import tested_versions
from ddpsched.integrations.transformers import BalancedTrainerMixin, balance

pytest.importorskip("accelerate")
from transformers import Trainer, TrainingArguments, default_data_collator


def arguments(folder: Path, **more: Any) -> TrainingArguments:
    words = {"per_device_train_batch_size": 4, "use_cpu": True, "report_to": [], "max_steps": 1, **more}
    return TrainingArguments(str(folder), **words)


def made(folder: Path, kind: str = "own", **more: Any) -> Trainer:
    return Trainer(model_of(kind), arguments(folder, **more), collate, Sentences(kind == "language"))


@pytest.mark.parametrize(
    ("balancing", "given", "named"),
    [
        (
            {"global_batch": 8},
            {},
            r"global_batch = 8, but per_device_train_batch_size = 4 x gradient_.* 1 processes = 4",
        ),
        ({"polcy": "packed"}, {}, "polcy is none of policy, lengths"),
        ({}, {"train_sampling_strategy": "group_by_length"}, "train_sampling_strategy = 'group_by_length', but"),
        ({}, {"auto_find_batch_size": True}, "auto_find_batch_size = True, but the batch size is that of the plans"),
        ({}, {"average_tokens_across_devices": False}, "average_tokens_across_devices = False, but"),
        ({"policy": "static"}, {"gradient_accumulation_steps": 2}, "'static' gives each rank one micro-batch"),
        ({"policy": "packed"}, {"gradient_accumulation_steps": 2}, "give memory="),
        ({"policy": {"kind": "balanced", "max_microbatches": 3}}, {}, "up to 3 micro-batches.*gradient_.*=3"),
        ({"policy": "best"}, {}, "policy.kind = 'best'"),
        ({"mean_loss": "no"}, {}, "mean_loss = 'no' is none of 'scale', 'refuse'"),
        ({"lengths": LENGTHS[:9]}, {}, "the data set has 45 samples, but there are 9 lengths"),
        ({"lengths": Sentences()}, {}, r"ddpsched\.lengths\("),
    ],
)
def test_refused_before_the_first_step(
    balancing: dict[str, Any], given: dict[str, Any], named: str, tmp_path: Path
) -> None:
    trainer = balance(made(tmp_path, **given), **balancing)
    with pytest.raises(ValueError, match=named):
        trainer.train()
    assert not list(tmp_path.glob("checkpoint-*"))


def test_a_stream_is_refused(tmp_path: Path) -> None:
    class Stream(torch.utils.data.IterableDataset[Any]):
        def __iter__(self) -> Any:
            yield from (Sentences()[id] for id in range(SIZE))

    trainer = balance(Trainer(model_of("own"), arguments(tmp_path), collate, Stream()))
    with pytest.raises(ValueError, match=r"use ddpsched\.StreamScheduler"):
        trainer.train()


def test_balanced_once(tmp_path: Path) -> None:
    trainer = balance(made(tmp_path))
    with pytest.raises(ConfigError, match="BalancedTrainer is balanced already"):
        balance(trainer)


def test_a_loader_of_ones_own_is_refused(tmp_path: Path) -> None:
    class Own(BalancedTrainerMixin, Trainer):
        def get_train_dataloader(self) -> Any:
            return torch.utils.data.DataLoader(Sentences(), batch_size=4, collate_fn=collate)

    with pytest.raises(ConfigError, match="Own: its get_train_dataloader is not BalancedTrainerMixin's"):
        Own(model_of("own"), arguments(tmp_path), collate, Sentences()).train()


@pytest.mark.parametrize("kind", ["classifier", "tokens"])
def test_a_head_that_takes_the_mean_is_named_or_refused(
    kind: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    weighed = "labels"  # of a classifier, too: a sample whose label is -100 has none
    with caplog.at_level(logging.WARNING):
        train(kind, {}, max_steps=1)
    said = [record.getMessage() for record in caplog.records if record.name.startswith("ddpsched")]
    assert len(said) == 1
    assert f"Classification: its loss is the mean over the {weighed} of a batch, whatever" in said[0]
    with pytest.raises(ConfigError, match=f"the mean over the {weighed} of a batch, and mean_loss = 'refuse'"):
        train(kind, {"mean_loss": "refuse"}, max_steps=1)


def test_a_head_that_divides_by_the_count_is_not(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        train("language", {"mean_loss": "refuse"}, max_steps=1)
    assert not [record for record in caplog.records if record.name.startswith("ddpsched")]


@pytest.mark.parametrize("kind", ["contrast", "sum", "weights of classes", "weights of classes, a head of zeros"])
def test_a_loss_that_is_neither_is_refused(kind: str, tmp_path: Path) -> None:
    """It compares the samples of a batch with one another, is a sum over them, or weighs them by class."""

    class Own(BalancedTrainerMixin, Trainer):
        def compute_loss(self, model: Any, inputs: Any, return_outputs: bool = False, **more: Any) -> Any:
            labels = inputs.pop("labels")
            logits = model(**inputs)["logits"]
            if "weights" in kind:
                return torch.nn.functional.cross_entropy(logits, labels, weight=logits.new_tensor([1.0, 3.0]))
            return logits.logsumexp(0).sum() if kind == "contrast" else logits.square().sum()

    model: Any = model_of("own")
    if "zeros" in kind:  # all samples have one loss, and other gradients
        torch.nn.init.zeros_(model.head.weight)
        torch.nn.init.zeros_(model.head.bias)
    own = Own(model, arguments(tmp_path), collate, Sentences())
    with pytest.raises(ConfigError, match="is neither a sum divided by num_items_in_batch nor their mean"):
        own.train()


def test_lengths_are_those_of_a_column_or_counted(tmp_path: Path) -> None:
    datasets = pytest.importorskip("datasets")
    rows = [Sentences()[id] for id in range(SIZE)]
    data = datasets.Dataset.from_list(
        [{**row, "length": 2 + number % 3, "text": "x"} for number, row in enumerate(rows)]
    )
    for given, expected in ((data, [2 + n % 3 for n in range(SIZE)]), (data.remove_columns("length"), LENGTHS)):
        trainer = balance(Trainer(model_of("own"), arguments(tmp_path), collate, given))
        loader = trainer.get_train_dataloader()
        np.testing.assert_array_equal(loader.steps.plan_source.lengths.lengths(np.arange(SIZE)), expected)
        batches = list(loader)
        assert [set(batch) for batch in batches] == [{"input_ids", "attention_mask", "labels"}] * len(loader)
        assert len(loader) == 12


def test_length_is_exact_with_accumulation(tmp_path: Path) -> None:
    trainer = balance(made(tmp_path, gradient_accumulation_steps=3))
    loader = trainer.get_train_dataloader()
    items = list(loader)
    assert (len(loader), len(items)) == (12, 12)
    assert all(items[number] for number in range(2, 12, 3)), "the last of each step is a batch"


def test_evaluation_is_untouched(tmp_path: Path) -> None:
    plain, ours = made(tmp_path, "classifier"), balance(made(tmp_path, "classifier"))
    ours.train()
    plain.model.load_state_dict(ours.model.state_dict())
    figures = [trainer.evaluate(Sentences())["eval_loss"] for trainer in (plain, ours)]
    assert figures[0] == figures[1]


def test_another_version_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tested_versions, "version", lambda name: "6.1.0.dev0")
    with pytest.warns(UserWarning, match=r"tested with transformers 5\.18 to 5\.23, not 6\.1\.0\.dev0"):
        balance(made(tmp_path)).get_train_dataloader()
    monkeypatch.undo()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        balance(made(tmp_path)).get_train_dataloader()


def test_the_mix_in_comes_first() -> None:
    with pytest.raises(ConfigError, match=r"write class Mine\(BalancedTrainerMixin, Trainer\)"):
        type("Mine", (Trainer, BalancedTrainerMixin), {})


def test_a_model_is_no_trainer() -> None:
    model = model_of("own")
    with pytest.raises(ConfigError, match="balance: Head is no Trainer of transformers; give balance"):
        balance(model)
    assert type(model).__name__ == "Head"


def test_a_checkpoint_without_a_plan_is_named(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    train("own", {}, folder=str(tmp_path), save_strategy="steps", save_steps=2, max_steps=4)
    checkpoint = tmp_path / "checkpoint-2"
    (checkpoint / "ddpsched.json").unlink()
    train("own", {}, folder=str(tmp_path), resume=str(checkpoint), max_steps=4)
    assert "ddpsched.json is missing: the checkpoint is of a Trainer without a plan" in caplog.text


@pytest.mark.parametrize("after", [True, False])
def test_a_training_step_that_is_not_scaled_is_refused(after: bool, tmp_path: Path) -> None:
    """It calls backward itself, or comes before the mix-in's and does not call that."""

    def training_step(self: Any, model: Any, inputs: Any, num_items_in_batch: Any = None) -> torch.Tensor:
        model.train()
        loss: torch.Tensor = self.compute_loss(model, self._prepare_inputs(inputs))
        loss.backward() if after else self.accelerator.backward(loss)
        return loss.detach()

    bases = (BalancedTrainerMixin, type("Base", (Trainer,), {"training_step": training_step}))
    kind = type("Own", bases, {} if after else {"training_step": training_step})
    given = arguments(tmp_path, max_steps=3)
    words = "calls loss.backward\\(\\), which nothing can scale" if after else "does not come to BalancedTrainerMixin's"
    with pytest.raises(ConfigError, match=words):
        kind(model_of("own"), given, collate, Sentences()).train()


def test_packed_rows_have_no_labels_of_tokens_but_of_causal_models(tmp_path: Path) -> None:
    own = Trainer(model_of("tokens"), arguments(tmp_path), default_data_collator, Sentences(by_token=True))
    with pytest.raises(
        ConfigError, match="DistilBertForTokenClassification has a label for each token; use 'balanced'"
    ):
        balance(own, policy="packed").train()


def test_a_class_that_comes_late_is_tried_as_it_comes(tmp_path: Path) -> None:
    """One sample of 400 has it, which is not among those that are tried before the first step."""

    class Rare(Sentences):
        def __len__(self) -> int:
            return 400

        def __getitem__(self, id: int) -> dict[str, Any]:
            return {**super().__getitem__(id % SIZE), "labels": int(id == 1)}

    class Own(BalancedTrainerMixin, Trainer):
        def compute_loss(self, model: Any, inputs: Any, return_outputs: bool = False, **more: Any) -> Any:
            labels, logits = inputs.pop("labels"), model(**inputs)["logits"]
            return torch.nn.functional.cross_entropy(logits, labels, weight=logits.new_tensor([1.0, 3.0]))

    own = Own(model_of("own"), arguments(tmp_path, max_steps=100), collate, Rare())
    with pytest.raises(ConfigError, match="is neither a sum divided by num_items_in_batch nor their mean"):
        own.train()
    assert own.state.global_step > 0
