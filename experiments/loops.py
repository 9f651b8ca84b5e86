"""Common training loops, each with and without the factor that makes its gradient exact.

``python -m experiments.certificates`` runs them on real ranks with unequal micro-batches and certifies both.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial

import torch
import torch.distributed as dist

from ddpsched.certify.certificate import Certificate
from ddpsched.certify.certify_step import certify_step
from ddpsched.certify.step_reference import DEFAULTS
from ddpsched.denominators import Target as Mean

VOCABULARY, WIDTH = 64, 16
Batch = dict[str, torch.Tensor]
# of G, A, b_m, b_r, B; with target token_mean the last three count label tokens
Factor = Callable[[int, int, int, int, int], float]


@dataclass(frozen=True)
class Loop:
    """A training loop.

    Attributes:
        name: its name in the table.
        loss: the loss that each micro-batch backpropagates: "rank mean", "micro mean / A" or "sum".
        averages: whether gradients are averaged over ranks, as in DDP, or added.
        factor: the factor of the loss that makes the gradient exact.
        counts: samples by rank and micro-batch.
        target: the mean whose gradient is exact.
    """

    name: str
    loss: str
    averages: bool
    factor: Factor
    counts: tuple[tuple[int, ...], ...] = ((6, 1), (2, 3, 4))
    target: Mean = "sample_mean"


LOOPS = (
    Loop(
        "one process, mean of each micro-batch / A",
        "micro mean / A",
        True,
        lambda G, A, b_m, b_r, B: A * b_m / B,
        ((6, 1, 2),),
    ),
    Loop("averaging ranks, mean of each", "rank mean", True, lambda G, A, b_m, b_r, B: G * b_r / B),
    Loop(
        "averaging ranks, mean of each micro-batch / A",
        "micro mean / A",
        True,
        lambda G, A, b_m, b_r, B: G * A * b_m / B,
    ),
    Loop("averaging ranks, sum", "sum", True, lambda G, A, b_m, b_r, B: G / B),
    Loop("adding ranks, sum", "sum", False, lambda G, A, b_m, b_r, B: 1 / B),
    Loop("adding ranks, mean of each", "rank mean", False, lambda G, A, b_m, b_r, B: b_r / B),
    Loop(
        "averaging ranks, mean over label tokens of each",
        "rank mean",
        True,
        lambda G, A, n_m, n_r, N: G * n_r / N,
        target="token_mean",
    ),
    Loop("adding ranks, sum over label tokens", "sum", False, lambda G, A, n_m, n_r, N: 1 / N, target="token_mean"),
)


class Predictor(torch.nn.Module):
    """A classifier of rows, or a causal language model: means of the embeddings so far, and one hidden layer."""

    def __init__(self, causal: bool) -> None:
        super().__init__()
        self.causal = causal
        self.tokens = torch.nn.Embedding(VOCABULARY, WIDTH)
        self.hidden = torch.nn.Linear(WIDTH, WIDTH)
        self.head = torch.nn.Linear(WIDTH, VOCABULARY if causal else 3)

    def forward(self, input_ids: torch.Tensor) -> torch.Tensor:
        """Return logits, (rows, 3) or (rows, tokens, vocabulary), of (rows, tokens) ids."""
        so_far = torch.arange(1, input_ids.shape[1] + 1)[:, None]
        means = self.tokens(input_ids).cumsum(1) / so_far
        return self.head(torch.tanh(self.hidden(means if self.causal else means[:, -1])))


def predictor(causal: bool) -> torch.nn.Module:
    """Return the model in float64."""
    return Predictor(causal).double()


def train_step(model: torch.nn.Module, microbatches: Sequence[Batch], index: int, scaled: bool) -> None:
    """Run this rank's part of a step of ``LOOPS[index]``, with its exact factor where ``scaled``."""
    loop = LOOPS[index]
    losses = [DEFAULTS[loop.target](model, batch) for batch in microbatches]
    rank_count = sum(map(len, losses))
    total = torch.tensor(rank_count)
    dist.all_reduce(total)
    world_size = dist.get_world_size()
    for each in losses:
        value = {"rank mean": each.sum() / rank_count, "micro mean / A": each.mean() / len(losses), "sum": each.sum()}[
            loop.loss
        ]
        factor = loop.factor(world_size, len(losses), len(each), rank_count, int(total)) if scaled else 1.0
        (value * factor).backward()
    for parameter in model.parameters():
        assert parameter.grad is not None
        dist.all_reduce(parameter.grad)
        if loop.averages:
            parameter.grad.div_(world_size)


def batches(loop: Loop) -> list[list[Batch]]:
    """Return micro-batches by rank, in rows of 12 tokens; for a causal model, prompts of unequal length are masked."""
    rng = torch.Generator().manual_seed(0)

    def batch(count: int) -> Batch:
        ids = torch.randint(VOCABULARY, (count, 12), generator=rng)
        if loop.target == "sample_mean":
            return {"input_ids": ids, "labels": torch.randint(3, (count,), generator=rng)}
        prompts = torch.randint(1, 11, (count, 1), generator=rng)
        return {"input_ids": ids, "labels": ids.masked_fill(torch.arange(12) < prompts, -100)}

    return [[batch(count) for count in counts] for counts in loop.counts]


def both(index: int) -> tuple[Certificate, Certificate]:
    """Return the certificates of ``LOOPS[index]`` without and with its factor."""
    loop = LOOPS[index]
    build = partial(predictor, loop.target == "token_mean")
    without, with_factor = (
        certify_step(partial(train_step, index=index, scaled=scaled), build, batches(loop), loop.target)
        for scaled in (False, True)
    )
    return without, with_factor


def certificates() -> Iterator[tuple[str, Certificate, Certificate]]:
    """Yield the name of each loop, and its certificates without and with its factor."""
    for index, loop in enumerate(LOOPS):
        yield loop.name, *both(index)
