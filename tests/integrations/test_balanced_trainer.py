"""transformers' Trainer by every policy on two real ranks: the gradient of each step is that of one process."""

from collections import Counter
from functools import partial
from typing import Any

import pytest
import torch.nn.functional as F
from ranks import run_ranks
from transformers_trainers import (
    LENGTHS,
    SIZE,
    UNLABELLED,
    Case,
    Logged,
    Step,
    largest_error,
    on_ranks,
    own_loss,
)

from ddpsched import summed_cross_entropy
from ddpsched.integrations.transformers import BalancedTrainerMixin

pytest.importorskip("accelerate")
from transformers import Trainer, default_data_collator


class Mixed(BalancedTrainerMixin, Trainer):
    balancing = {"policy": {"kind": "balanced", "max_microbatches": 1}, "lengths": LENGTHS}  # noqa: RUF012


class OwnLoss(BalancedTrainerMixin, Trainer):
    """A Trainer with a loss of its own, the mean of a batch, as many people write it."""

    def compute_loss(self, model: Any, inputs: Any, return_outputs: bool = False, **more: Any) -> Any:
        labels = inputs.pop("labels")
        return F.cross_entropy(model(**inputs)["logits"], labels)


class MeanOfMeans(BalancedTrainerMixin, Trainer):
    """A loss of its own: the mean over samples of each one's mean over tokens."""

    def compute_loss(self, model: Any, inputs: Any, return_outputs: bool = False, **more: Any) -> Any:
        labels = inputs.pop("labels")[:, 1:]
        logits = model(**inputs)["logits"][:, :-1]
        losses = F.cross_entropy(logits.transpose(1, 2), labels, reduction="none")
        learnt = labels != -100
        return ((losses * learnt).sum(1) / learnt.sum(1).clamp(min=1)).mean()


SECONDS = {"kind": "affine_quadratic", "beta": 1e-5}
TWO, THREE = {"gradient_accumulation_steps": 2}, {"gradient_accumulation_steps": 3}
CASES: dict[str, Case] = {
    "own model": ("own", {}, {}),
    "some without a label": (UNLABELLED, {}, TWO),
    "classifier": ("classifier", {}, {}),
    "classifier, accumulation of 3": ("classifier", {}, THREE),
    "token classifier": ("tokens", {}, {}),
    "token classifier, accumulation of 2": ("tokens", {}, TWO),
    "language model": ("language", {}, {}),
    "language model, accumulation of 2": ("language", {}, TWO),
    "static": ("classifier", {"policy": "static"}, {}),
    "minmax": ("language", {"policy": "minmax"}, {}),
    "auto, accumulation of 2": ("classifier", {"policy": "auto", "cost": SECONDS}, TWO),
    "packed classifier": ("classifier", {"policy": "packed"}, {"given": {"data_collator": default_data_collator}}),
    "packed language model": ("language", {"policy": "packed"}, {"given": {"data_collator": default_data_collator}}),
    "bins": ("classifier", {"policy": {"kind": "bins", "median_batch": 5}}, {}),
    "token budget": ("language", {"policy": {"kind": "token_budget", "max_tokens_for_batch": 90}}, TWO),
    "pool": ("classifier", {"policy": {"kind": "pool", "max_tokens_for_batch": 90}}, TWO),
    "mix-in": ("own", {}, {"given": {"base": Mixed}}),
    "a loss of its own": ("classifier", {}, {"given": {"base": OwnLoss}}),
    "mean of means": ("language", {}, {"given": {"base": MeanOfMeans}, **TWO}),
    "a loss function": ("classifier", {}, {"given": {"compute_loss_func": summed_cross_entropy}, **TWO}),
    "drop": ("own", {}, {"dataloader_drop_last": True, "per_device_train_batch_size": 2}),
    "workers": ("own", {}, {"dataloader_num_workers": 1, "dataloader_persistent_workers": True}),
}  # fmt: skip


@pytest.fixture(scope="module")
def on_both() -> list[tuple[list[list[Step]], Logged]]:
    return run_ranks(on_ranks, 2, list(CASES.values()), (1, 500), timeout_s=200)


@pytest.fixture(scope="module")
def ran(on_both: list[tuple[list[list[Step]], Logged]]) -> list[list[list[Step]]]:
    return [steps for steps, _ in on_both]


@pytest.mark.parametrize("name", CASES)
def test_the_gradient_is_that_of_one_process(ran: list[list[list[Step]]], name: str) -> None:
    """All samples also run once in each epoch, in another order in the second."""
    ranks = [rank[list(CASES).index(name)] for rank in ran]
    loss = partial(MeanOfMeans.compute_loss, None) if name == "mean of means" else own_loss
    assert largest_error(CASES[name][0], ranks, loss) <= 1e-12
    steps = [sorted(id for ids, _, _ in step for id in ids) for step in zip(*ranks, strict=True)]
    counts = Counter(id for step in steps for id in step)
    if name == "drop":  # each epoch's last step, which had one sample for two ranks
        assert sum(counts.values()) == 2 * (SIZE - 1)
    else:
        assert (len(counts), set(counts.values())) == (SIZE, {2})
    assert steps[0] not in steps[1:]
    if "accumulation" in name:
        assert max(len(sizes) for rank in ranks for _, sizes, _ in rank) > 1


def test_a_rank_without_samples_is_among_them(ran: list[list[list[Step]]]) -> None:
    alone = [step for rank in ran for case in rank for step in case if not step[0]]
    assert alone
    assert all(sizes == [1] for _, sizes, _ in alone)


def test_the_mean_loss_counts_steps_that_were_not_logged(on_both: list[tuple[list[list[Step]], Logged]]) -> None:
    """Each rank knows its own share of these alone."""
    (first, _), (other, _) = (logged for _, logged in on_both)
    assert len(first[1]) > 1
    for found, losses in (logged for _, each in on_both for logged in each):
        assert found == pytest.approx(first[0], rel=1e-6) == pytest.approx(other[0], rel=1e-6)
        assert not losses or found == pytest.approx(sum(losses) / len(losses), rel=1e-4)
