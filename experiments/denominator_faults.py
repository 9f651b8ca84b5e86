"""Loops whose loss is divided by another number than its name says, as code bases had them, and the right ones.

``python -m experiments.benchmarks.denominators`` certifies each on two ranks and prints what is found.
"""

from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel as DDP

from ddpsched.denominators import token_weights
from experiments.loops import VOCABULARY, Batch

RANKS, ACCUMULATED, LENGTH = 2, 4, 11.0


def batch(seed: int, window: int) -> Batch:
    """Return two rows with labels for some tokens, of one prompt or window."""
    rng = np.random.default_rng(seed)
    ids, labels = torch.from_numpy(rng.integers(1, VOCABULARY, (2, 9))), torch.full((2, 9), -100)
    for row in range(2):
        first, last = rng.integers(1, 4), rng.integers(5, 10)
        labels[row, first:last] = ids[row, first:last]
    return {"input_ids": ids, "labels": labels, "group_ids": torch.full((2,), window)}


BATCHES = [[batch(10 * rank + micro, window=micro % 2) for micro in range(ACCUMULATED)] for rank in range(RANKS)]
EQUAL = [[{**each, "labels": each["input_ids"]} for each in rank] for rank in BATCHES]  # as many label tokens in each
FLAT = [each for rank in BATCHES for each in rank]
COUNTS = [int(count) for each in FLAT for count in (each["labels"][:, 1:] != -100).sum(1)]
GROUPS = [int(group) for each in FLAT for group in each["group_ids"]]
TOKENS = [sum(count for count, group in zip(COUNTS, GROUPS, strict=True) if group == window) for window in (0, 1)]
WINDOWS: dict[str, dict[int, tuple[int, int]]] = {  # samples and label tokens of windows 0 and 1
    "other windows": {0: (8, TOKENS[0]), 1: (16, TOKENS[1] + 57)},  # the first is in this step, half of the second
    "half a window": dict.fromkeys((0, 1), (32, 2 * sum(COUNTS))),
    "four windows": dict.fromkeys((0, 1), (4, round(sum(COUNTS) / 4))),
}


@dataclass(frozen=True)
class Mean:
    """A mean that a loop may be of; ``windows``: those of WINDOWS."""

    target: str
    windows: str | None = None

    @property
    def length(self) -> Any:
        """The ``length`` of ``assert_gradient_exact``."""
        return LENGTH if self.target == "constant_length" else WINDOWS.get(self.windows or "")

    def weights(self) -> np.ndarray:
        """Return the weight of each sample's label tokens, by the public call."""
        more: dict[str, Any] = {"groups": GROUPS} if self.target == "group_mean" else {}
        if self.target == "constant_length":
            more = {"length": LENGTH}
        elif self.windows is not None:
            means = {window: tokens / samples for window, (samples, tokens) in WINDOWS[self.windows].items()}
            more = {"length": [means[group] for group in GROUPS]}
        return token_weights(self.target, COUNTS, world_size=RANKS, **more)


MEANS = (
    Mean("token_mean"), Mean("constant_length"), Mean("group_mean"), Mean("window_token_mean", "other windows"),
    Mean("window_token_mean", "half a window"), Mean("window_token_mean", "four windows"),
)  # fmt: skip
TOKEN, CONSTANT, GROUP, OTHER, HALF, FOUR = MEANS


def row_sums(model: Any, each: Batch) -> torch.Tensor:
    """Return the loss of each row, summed over its label tokens."""
    logits, labels = model(each["input_ids"])[:, :-1], each["labels"][:, 1:]
    return F.cross_entropy(logits.transpose(1, 2), labels, reduction="none").sum(1)


def weighted(model: Any, micros: list[Batch], mean: Mean, factor: float = 1.0) -> None:
    """Run a step whose samples have the weights of ``mean``, times a factor."""
    wrapped, weights = DDP(model), mean.weights()
    for number, each in enumerate(micros):
        first = 2 * (dist.get_rank() * ACCUMULATED + number)
        (row_sums(wrapped, each) * torch.from_numpy(weights[first : first + 2])).sum().mul(factor).backward()


def own_means(model: Any, micros: list[Batch]) -> None:
    """Run a step in which each micro-batch is divided by its own label tokens."""
    wrapped = DDP(model)
    for each in micros:
        (row_sums(wrapped, each).sum() / (each["labels"][:, 1:] != -100).sum()).backward()


@dataclass(frozen=True)
class Fault:
    """A wrong loop. ``found_in``: who had it. ``mean``: that it should have. ``cause``: the words it is found by."""

    found_in: str
    factor: str
    mean: Mean
    step: Any
    cause: str
    batches: list[list[Batch]]


WINDOW = "label tokens are divided by those of the whole generation window"
FAULTS = {
    "a window's tokens, in a step of half a window": Fault(
        "trl#6024", "0.5", HALF, partial(weighted, mean=HALF, factor=0.5), f"0.5 times what it should be: {WINDOW}",
        BATCHES,
    ),
    "each window's tokens, in a step of four windows": Fault(
        "trl#6024", "4", FOUR, partial(weighted, mean=FOUR, factor=4.0), f"4 times too large: {WINDOW}", BATCHES
    ),
    "the ranks' number, where they are averaged, is left out": Fault(
        "Arctic-Platform#119", "1 / G", GROUP, partial(weighted, mean=GROUP, factor=1 / RANKS),
        "0.5 times what it should be: averaged twice over the 2 ranks", BATCHES,
    ),
    "the micro-batches' number, though by the step's count too": Fault(
        "ms-swift#10117", "1 / M", TOKEN, partial(weighted, mean=TOKEN, factor=1 / ACCUMULATED),
        "0.25 times what it should be: divided by the 4 accumulation steps, though also by the count", BATCHES,
    ),
    "nothing for the average over ranks, which is a sum": Fault(
        "", "G", CONSTANT, partial(weighted, mean=CONSTANT, factor=RANKS),
        "2 times too large: summed over 2 ranks and not averaged", BATCHES,
    ),
    "each micro-batch's own label tokens": Fault(
        "verl#7200, NeMo-RL#3791", "M", TOKEN, own_means,
        "4 times too large: not divided by the 4 accumulation steps", EQUAL,
    ),
    "each micro-batch's own label tokens, and ranks are added": Fault(
        "Automodel#3830", "G M", TOKEN, partial(weighted, mean=TOKEN, factor=RANKS * ACCUMULATED),
        "8 times too large: summed over 2 ranks and 4 accumulation steps, and divided by neither", BATCHES,
    ),
    "all prompts' label tokens": Fault(
        "verl#2776", "not one", GROUP, partial(weighted, mean=TOKEN),
        "every label token weighs the same, whatever its sample, group or window", BATCHES,
    ),
    "the step's label tokens, in a step of other windows": Fault(
        "", "not one", OTHER, partial(weighted, mean=TOKEN),
        "every label token weighs the same, whatever its sample, group or window", BATCHES,
    ),
    "each sample's own label tokens": Fault(
        "trl#2881", "not one", CONSTANT, partial(weighted, mean=Mean("sample_mean")),
        "each sample's loss is the mean over its label tokens", BATCHES,
    ),
}  # fmt: skip
