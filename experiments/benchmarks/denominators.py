"""Denominators: the gradient over random divisions of a step, and the faults of others, as Markdown.

    python -m experiments.benchmarks.denominators [--partitions N]

The first table: a causal language model in float64 on 48 samples of 6 prompts and 3 generation windows, divided at
random into ranks and micro-batches of any sizes, some of them empty; each micro-batch's losses are multiplied by
``ddpsched.token_weights``, and the gradients added up. Beside it is the gradient of the mean by its definition, over
all samples at once. The second: ``ddpsched certify`` on two gloo ranks of loops that divide by another number.
"""

import argparse
from collections.abc import Iterator

import numpy as np
import torch
import torch.nn.functional as F

from ddpsched.certify.certify_step import certify_step
from ddpsched.denominators import TARGETS, Floats, token_weights
from experiments.denominator_faults import FAULTS
from experiments.loops import VOCABULARY, predictor

SAMPLES, LENGTH = 48, 31.0
WINDOWS = {0: 9.5, 1: 14.0, 2: 20.25}  # mean label tokens, of samples of this step and of others


class Step:
    """Samples of one step: token ids, their label tokens, prompts and windows."""

    def __init__(self, seed: int = 0) -> None:
        rng = np.random.default_rng(seed)
        self.rows = [torch.from_numpy(rng.integers(1, VOCABULARY, size)) for size in rng.integers(4, 40, SAMPLES)]
        self.firsts = [int(rng.integers(1, len(row))) for row in self.rows]  # of what is learnt
        self.prompts, self.windows = rng.integers(0, 6, SAMPLES), rng.integers(0, 3, SAMPLES)
        self.label_tokens = np.array([len(row) - first for row, first in zip(self.rows, self.firsts, strict=True)])

    def losses(self, model: torch.nn.Module, position: int) -> torch.Tensor:
        """Return the losses of one sample's label tokens."""
        row, first = self.rows[position], self.firsts[position]
        return F.cross_entropy(model(row[None])[0, first - 1 : -1], row[first:], reduction="none")

    def padded(self, model: torch.nn.Module, positions: list[int]) -> torch.Tensor:
        """Return each sample's summed loss, of samples that are padded into one batch."""
        rows = torch.nn.utils.rnn.pad_sequence([self.rows[i] for i in positions], batch_first=True)
        labels = torch.full_like(rows, -100)
        for line, i in zip(labels, positions, strict=True):
            line[self.firsts[i] : len(self.rows[i])] = self.rows[i][self.firsts[i] :]
        logits = model(rows)[:, :-1].transpose(1, 2)
        return F.cross_entropy(logits, labels[:, 1:], reduction="none").sum(1)

    def mean(self, model: torch.nn.Module, target: str) -> torch.Tensor:
        """Return the mean by its definition."""
        losses = [self.losses(model, i) for i in range(SAMPLES)]
        if target == "sample_mean":
            return torch.stack([each.mean() for each in losses]).mean()
        if target == "token_mean":
            return torch.cat(losses).mean()
        if target == "constant_length":
            return torch.stack([each.sum() / LENGTH for each in losses]).mean()
        if target == "group_mean":
            members = [np.flatnonzero(self.prompts == prompt) for prompt in np.unique(self.prompts)]
            return torch.stack([torch.cat([losses[i] for i in each]).mean() for each in members]).mean()
        return torch.stack([each.sum() / WINDOWS[int(self.windows[i])] for i, each in enumerate(losses)]).mean()

    def weights(self, target: str) -> Floats:
        """Return the weights by the public call."""
        if target == "group_mean":
            return token_weights(target, self.label_tokens, groups=self.prompts)
        if target == "constant_length":
            return token_weights(target, self.label_tokens, length=LENGTH)
        if target == "window_token_mean":
            return token_weights(target, self.label_tokens, length=[WINDOWS[each] for each in self.windows.tolist()])
        return token_weights(target, self.label_tokens)


def divided(rng: np.random.Generator) -> Iterator[list[int]]:
    """Yield the micro-batches of all ranks: a random order cut at random places."""
    order, count = rng.permutation(SAMPLES), int(rng.integers(1, 25))
    for piece in np.split(order, np.sort(rng.integers(0, SAMPLES + 1, count - 1))):
        if len(piece):
            yield piece.tolist()


def worst_error(target: str, partitions: int) -> float:
    """Return the largest relative error of the gradient over so many divisions."""
    step, rng = Step(), np.random.default_rng(1)
    torch.manual_seed(0)
    model = predictor(causal=True)
    parameters = list(model.parameters())

    def flat(loss: torch.Tensor) -> torch.Tensor:
        return torch.cat([each.flatten() for each in torch.autograd.grad(loss, parameters)])

    goal, weights, worst = flat(step.mean(model, target)), torch.from_numpy(step.weights(target)), 0.0
    for _ in range(partitions):
        parts = [flat((step.padded(model, each) * weights[each]).sum()) for each in divided(rng)]
        worst = max(worst, float((torch.stack(parts).sum(0) - goal).norm() / goal.norm()))
    return worst


def main() -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(
        prog="python -m experiments.benchmarks.denominators", description=str(__doc__).partition("\n")[0]
    )
    parser.add_argument("--partitions", type=int, default=200, help="random divisions of each target")
    partitions = parser.parse_args().partitions
    print(f"| target | largest relative error, {partitions} divisions |\n|:--|--:|")
    for target in TARGETS:
        print(f"| {target} | {worst_error(target, partitions):.1e} |", flush=True)
    print("\n| divided by | target | factor | found in | certify says |\n|:--|:--|--:|:--|:--|")
    for name, fault in FAULTS.items():
        mean, build = fault.mean, predictor_of_labels
        certificate = certify_step(fault.step, build, fault.batches, mean.target, length=mean.length)  # type: ignore[arg-type]
        cause = next(check.cause for check in certificate.checks if check.name == "gradient") or "nothing"
        print(f"| {name} | {mean.target} | {fault.factor} | {fault.found_in} | {cause} |", flush=True)


def predictor_of_labels() -> torch.nn.Module:
    """Return the causal model, as ranks import it."""
    return predictor(causal=True)


if __name__ == "__main__":
    main()
