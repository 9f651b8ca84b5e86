"""A small loss or addition in a real model's gradient is not called rounding.

The error of a lower precision is, and the evidence is named.
"""

import copy
from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from ddpsched.certify.gradient_comparison import TOLERANCES, Likeness, compare
from ddpsched.certify.reference import reference
from ddpsched.certify.target import Target

Batch = dict[str, torch.Tensor]
Losses = Callable[[Any, Batch], torch.Tensor]
VOCABULARY, ROWS, LENGTH = 64, 24, 40
SHORTER = {"bfloat16": torch.bfloat16, "float16": torch.float16, "float32": torch.float32}


class LanguageModel(torch.nn.Module):
    """Predicts from the mean of the embeddings up to each token."""

    def __init__(self) -> None:
        super().__init__()
        self.tokens, self.hidden = torch.nn.Embedding(VOCABULARY, 16), torch.nn.Linear(16, 16)
        self.head = torch.nn.Linear(16, VOCABULARY)

    def forward(self, ids: torch.Tensor) -> Any:
        features = self.tokens(ids)
        seen = torch.arange(1, ids.shape[1] + 1, dtype=features.dtype)
        return self.head(torch.tanh(self.hidden(features.cumsum(1) / seen[None, :, None])))


def next_tokens(model: Any, batch: Batch, smoothing: float = 0.0) -> torch.Tensor:
    logits = model(batch["ids"])[:, :-1].flatten(0, 1)
    return F.cross_entropy(logits, batch["ids"][:, 1:].flatten(), reduction="none", label_smoothing=smoothing)


def under_autocast(model: Any, batch: Batch) -> torch.Tensor:
    with torch.autocast("cpu", torch.bfloat16):
        logits = model(batch["ids"])
    return F.cross_entropy(logits[:, :-1].float().flatten(0, 1), batch["ids"][:, 1:].flatten(), reduction="none")


def weighted(model: Any, batch: Batch) -> torch.Tensor:
    return batch["weight"] * F.cross_entropy(model(batch["x"]), batch["labels"], reduction="none")


def gradient_of(model: Any, losses: Losses, rows: Sequence[Batch], total: float) -> np.ndarray:
    model = copy.deepcopy(model)
    (torch.stack([losses(model, row).sum() for row in rows]).sum() / total).backward()
    return np.concatenate([parameter.grad.double().numpy().ravel() for parameter in model.parameters()])


Language = tuple[LanguageModel, list[Batch], Target]


@cache
def language(dtype: torch.dtype) -> Language:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = LanguageModel().to(dtype)
        rows = [{"ids": torch.randint(VOCABULARY, (1, LENGTH))} for _ in range(ROWS)]
    ranks = [m // (ROWS // 2) for m in range(ROWS)]
    return (
        model,
        rows,
        reference(model, rows, next_tokens, ranks, unit="tokens", names=[f"row {m}" for m in range(ROWS)]),
    )


def judged(dtype: torch.dtype, gradient: np.ndarray) -> Likeness:
    target = language(dtype)[2]
    return compare(gradient.astype(target.gradient.dtype), target, TOLERANCES[target.gradient.dtype.name])


def keep(row: int | None, which: slice) -> Losses:
    """Return losses that keep only some tokens, of one row or of all."""
    rows = language(torch.float32)[1]

    def losses(model: Any, batch: Batch) -> torch.Tensor:
        values = next_tokens(model, batch)
        return values[which] if row is None or torch.equal(batch["ids"], rows[row]["ids"]) else values

    return losses


WRONG: dict[str, Losses] = {
    "a token": keep(12, slice(1, None)),
    "five tokens": keep(12, slice(5, None)),
    "the last token of every row": keep(None, slice(0, -1)),
    "label smoothing": lambda model, batch: next_tokens(model, batch, 1e-3),
    "less label smoothing": lambda model, batch: next_tokens(model, batch, 1e-4),
}


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("what", WRONG)
def test_a_little_of_the_loss_is_not_rounding(what: str, dtype: torch.dtype) -> None:
    model, rows, target = language(dtype)
    cause = judged(dtype, gradient_of(model, WRONG[what], rows, target.total)).cause
    assert cause is not None
    assert cause.startswith("unexplained"), cause
    assert "a lost token, row or part, another loss (label smoothing), a term added to the gradient" in cause


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("decay", [1e-4, 1e-5, 1e-6])
def test_weight_decay_in_the_gradient_is_not_rounding(decay: float, dtype: torch.dtype) -> None:
    model, _, target = language(dtype)
    weights = np.concatenate([parameter.detach().numpy().ravel() for parameter in model.parameters()])
    cause = judged(dtype, target.gradient + decay * weights).cause or ""
    assert cause.startswith("unexplained"), cause


def test_it_is_said_where_most_of_it_lies() -> None:
    model, rows, target = language(torch.float32)
    cause = judged(torch.float32, gradient_of(model, WRONG["a token"], rows, target.total)).cause or ""
    assert cause.startswith("unexplained (most of it at "), cause
    assert f"of the {target.gradient.size:,} coordinates looked at): nearly the target" in cause


@pytest.mark.parametrize("beyond", [2e-6, -2e-6, 1e-5])
def test_a_common_factor_wins_over_weights_in_float32(beyond: float) -> None:
    """The gradients' rounding is noise beside the factor."""
    _, _, target = language(torch.float32)
    noise = 3e-7 * np.random.default_rng(0).normal(size=target.gradient.size) * np.abs(target.gradient)
    cause = judged(torch.float32, target.gradient * (1 + beyond) + noise).cause or ""
    assert cause.startswith(f"{1 + beyond:.6f}".rstrip("0")), cause
    assert "times what it should be: " in cause


@pytest.mark.parametrize("shorter", SHORTER)
@pytest.mark.parametrize("num_ranks", [1, 2])
def test_a_gradient_sent_in_a_shorter_format_is_rounding(num_ranks: int, shorter: str) -> None:
    dtype = torch.float64 if shorter == "float32" else torch.float32
    model, rows, target = language(dtype)
    shares = [rows[rank::num_ranks] for rank in range(num_ranks)]
    sent = [torch.from_numpy(gradient_of(model, next_tokens, share, target.total)) for share in shares]
    gradient = sum(each.to(SHORTER[shorter]).double() for each in sent)
    assert isinstance(gradient, torch.Tensor)
    cause = judged(dtype, gradient.numpy()).cause or ""
    assert cause.startswith("rounding: "), cause
    assert f"the gradient's numbers are numbers of {shorter}" in cause or "float16" in cause


def test_a_token_lost_beside_a_shorter_format_is_not_rounding() -> None:
    model, rows, target = language(torch.float32)
    for what in ("a token", "five tokens", "the last token of every row"):
        gradient = torch.from_numpy(gradient_of(model, WRONG[what], rows, target.total)).bfloat16().double().numpy()
        cause = judged(torch.float32, gradient).cause or ""
        assert cause.startswith("unexplained"), cause


@pytest.mark.parametrize("how", ["autocast", "bfloat16", "float32"])
def test_a_step_computed_in_a_lower_precision_is_rounding(how: str) -> None:
    dtype = torch.float64 if how == "float32" else torch.float32
    model, rows, target = language(dtype)
    lower = copy.deepcopy(model).to(torch.float32 if how == "autocast" else SHORTER[how])
    losses = under_autocast if how == "autocast" else next_tokens
    # summed over rows in full precision, so that no number is exact in a shorter format
    gradient = sum(gradient_of(lower, losses, [row], 1) for row in rows) / target.total
    assert isinstance(gradient, np.ndarray)
    cause = judged(dtype, gradient).cause or ""
    assert cause.startswith("rounding: computed, or added up, in a lower precision; the difference has no dir"), cause
    assert cause.endswith(("a 16-bit format" if dtype is torch.float32 else "float32") + " leaves it")


@pytest.mark.parametrize("weight", [1.0, 1e-6])
@pytest.mark.parametrize("kept", [0.0, 0.5])
def test_a_row_of_more_rows_than_coordinates_is_named(kept: float, weight: float) -> None:
    """There are too many rows to solve for all their weights, but one row's weight can be found."""
    rng = torch.Generator().manual_seed(0)
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = torch.nn.Linear(5, 4).double()
    one = torch.ones(1, dtype=torch.float64)
    rows = [
        {"x": torch.randn(1, 5, generator=rng).double(), "labels": torch.randint(4, (1,), generator=rng), "weight": one}
        for _ in range(70)
    ]
    rows[35]["weight"] = weight * one
    target = reference(model, rows, weighted, [0] * 35 + [1] * 35,
                       names=[f"row {m}" for m in range(70)])  # fmt: skip
    gradient = target.gradient - (1 - kept) * target.parts[35] / 70
    cause = compare(gradient, target, TOLERANCES["float64"]).cause or ""
    assert cause.startswith("the right samples, weighted wrongly; in units of the right weight, row 35: "), cause
    assert float(cause.split("row 35: ")[1].split()[0]) == pytest.approx(kept, abs=0.01)
    two = target.gradient - (target.parts[3] + target.parts[9]) / 70
    assert (compare(two, target, TOLERANCES["float64"]).cause or "").startswith("unexplained")
