"""transformers' Trainer, two gloo processes: time of an epoch and error of the gradient, by the way batches are made.

    python -m experiments.benchmarks.trainers [--data DIR] [--model distilbert|tiny] [--steps 5] [--rounds 8]
        [--launches 3]

``DIR`` holds ``sst2/train.tsv`` and ``bert-uncased/``; without it, the embedded sentences. The model has DistilBERT's
geometry, random weights and no dropout; the global batch is 32, AdamW steps. Arms take turns in blocks of so many
steps, ``random`` with the exact loss twice (A/A); each round has other samples, the same for all arms that draw them
equally. group_by_length sorts 25 steps' samples at a time, from long to short: so with Trainer's own samplers the
rounds' blocks are spread over the epoch's first 25 steps. A step lasts on the slower rank, from one optimizer step to
the next, loading included. The time of an epoch is extrapolated: a mean step times the steps that an epoch has. The
error is of the first step's gradient, against the mean over that step's samples in one process, relatively.
"""

import argparse
import sys
import tempfile
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import islice
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np
import numpy.typing as npt
from rich import box
from rich.table import Table

from ddpsched.cli import guarded
from ddpsched.config import parse
from ddpsched.local_ranks import answers, join_group, run_ranks
from ddpsched.terminal import plain_console
from experiments.benchmarks.bench import AA, Seconds, add_options, in_turn, judged

RANKS, PER_DEVICE = 2, 16
CYCLE = 25  # steps that group_by_length sorts together, from long to short: 50 batches of a rank


@dataclass(frozen=True)
class Arm:
    """A way to make batches. ``arguments``: of Trainer; ``exact``: its loss is summed; ``policy``: of ddpsched."""

    arguments: dict[str, Any] = field(default_factory=dict)
    exact: bool = False
    policy: str = ""


STRATEGIES: dict[str, dict[str, Any]] = {
    "random": {},
    "group_by_length": {"train_sampling_strategy": "group_by_length"},
    "batch_rebalance": {"train_sampling_strategy": "batch_rebalance"},
}
ARMS = {
    "random, exact loss": Arm(exact=True),
    "random": Arm(),
    "group_by_length": Arm(STRATEGIES["group_by_length"]),
    "group_by_length, exact loss": Arm(STRATEGIES["group_by_length"], exact=True),
    "batch_rebalance": Arm(STRATEGIES["batch_rebalance"]),
    "batch_rebalance, exact loss": Arm(STRATEGIES["batch_rebalance"], exact=True),
    "ddpsched, balanced": Arm(policy="balanced"),
    "ddpsched, packed": Arm(policy="packed"),
}
Rows = list[dict[str, Any]]


@dataclass(frozen=True)
class Task:
    """The work of a rank. ``data``: a folder, None: the embedded sentences; ``gradients``: where rank 0 saves them."""

    model: str
    data: str | None
    steps: int
    rounds: int
    gradients: Path
    seed: int = 0


def samples_of(task: Task) -> Rows:
    """Return the data set as Trainer takes it."""
    table: dict[str, Any] = {"size": 4_000}
    if task.data is not None:
        table = {"path": f"{task.data}/sst2", "tokenizer": f"{task.data}/bert-uncased", "max_length": 128}
    samples = parse({"data": table, "steps": 1}, source="trainers").load_samples()
    labels = np.asarray(samples.dataset.train.labels)
    return [
        {"input_ids": samples.train.row(id).tolist(), "labels": int(labels[id])} for id in range(len(samples.train))
    ]


def model_of(name: str) -> Any:
    """Return the classifier, with the same weights each time."""
    import torch
    from transformers import DistilBertConfig, DistilBertForSequenceClassification

    small = {"dim": 32, "n_layers": 2, "n_heads": 2, "hidden_dim": 64} if name == "tiny" else {}
    torch.manual_seed(0)
    none = {"dropout": 0.0, "attention_dropout": 0.0, "seq_classif_dropout": 0.0}
    return DistilBertForSequenceClassification(DistilBertConfig(vocab_size=30_522, **none, **small))


def padded(rows: Rows) -> dict[str, Any]:
    """Return samples as a batch, padded to the longest."""
    import torch
    from torch.nn.utils.rnn import pad_sequence

    ids = pad_sequence([torch.tensor(row["input_ids"]) for row in rows], batch_first=True)
    labels = torch.tensor([row["labels"] for row in rows])
    return {"input_ids": ids, "attention_mask": (ids > 0).long(), "labels": labels}


class Noting:
    """A collate function that keeps the first batch's samples."""

    def __init__(self, collate: Callable[[Rows], dict[str, Any]]) -> None:
        self._collate, self.first = collate, Rows()

    def __call__(self, rows: Rows) -> dict[str, Any]:
        self.first = self.first or rows
        return self._collate(rows)


def trained(task: Task, arm: Arm, rows: Rows, turn: int, gradient: Path | None) -> tuple[list[float], Rows]:
    """Return the times at which optimizer steps ended, and the first samples loaded; ``gradient`` gets the first."""
    from transformers import Trainer, TrainerCallback, TrainingArguments

    import ddpsched
    from ddpsched.integrations.transformers import balance

    model, ends, skipped = model_of(task.model), list[float](), 0 if arm.policy else turn * CYCLE // task.rounds

    class Later(Trainer):
        def get_batch_samples(self, epoch_iterator: Any, *words: Any) -> Any:
            nonlocal skipped
            deque(islice(epoch_iterator, skipped), maxlen=0)
            skipped = 0
            return super().get_batch_samples(epoch_iterator, *words)

    class Clock(TrainerCallback):
        def on_pre_optimizer_step(self, *_: Any, **__: Any) -> None:
            if gradient is not None and not ends:
                np.save(gradient, flat_gradient(model))

        def on_step_end(self, *_: Any, **__: Any) -> None:
            ends.append(perf_counter())

    if arm.policy == "packed":
        ddpsched.enable_packing(model)
    collate = Noting(ddpsched.packed_collate if arm.policy == "packed" else padded)
    with tempfile.TemporaryDirectory() as folder:
        arguments = TrainingArguments(
            folder, max_steps=task.steps + 1, per_device_train_batch_size=PER_DEVICE, use_cpu=True,
            seed=1000 * task.seed + turn,
            max_grad_norm=0.0, report_to=[], save_strategy="no", logging_strategy="no", disable_tqdm=True,
            dataloader_pin_memory=False, **arm.arguments,
        )  # fmt: skip
        loss: Any = ddpsched.summed_cross_entropy if arm.exact else None
        trainer = Later(model, arguments, collate, rows, callbacks=[Clock()], compute_loss_func=loss)
        (balance(trainer, policy=arm.policy) if arm.policy else trainer).train()
    return ends, collate.first


def flat_gradient(model: Any) -> npt.NDArray[np.float32]:
    """Return all parameters' gradients in one row."""
    return np.concatenate([each.grad.reshape(-1).numpy() for each in model.parameters()])


def on_rank(task: Task) -> tuple[Seconds, dict[str, Rows]]:
    """Return the mean step of each arm and round, over ranks the longest, and this rank's first samples."""
    import torch
    import torch.distributed as dist

    join_group()
    rows, first, turns = samples_of(task), dict[str, Rows](), dict[str, int]()

    def block(name: str, arm: Arm) -> float:
        turn = turns[name] = turns.get(name, -1) + 1
        path = task.gradients / f"{name}.npy" if name in ARMS and not turn and dist.get_rank() == 0 else None
        ends, samples = trained(task, arm, rows, turn, path)
        first.setdefault(name, samples)
        longest = torch.tensor((ends[-1] - ends[0]) / task.steps, dtype=torch.float64)
        dist.all_reduce(longest, dist.ReduceOp.MAX)
        return float(longest)

    arms = {name: partial(block, name, arm) for name, arm in ARMS.items()}
    again = partial(block, AA, next(iter(ARMS.values())))
    return in_turn({**arms, AA: again}, task.rounds, task.seed), first


def error_of(task: Task, name: str, ranks: Sequence[Rows]) -> float:
    """Return the relative error of an arm's first gradient against the mean over these samples in one process."""
    import torch.nn.functional as F

    model, batch = model_of(task.model), padded([row for rows in ranks for row in rows])
    F.cross_entropy(
        model(**{key: batch[key] for key in ("input_ids", "attention_mask")}).logits, batch["labels"]
    ).backward()
    right = flat_gradient(model).astype(np.float64)
    return float(np.linalg.norm(np.load(task.gradients / f"{name}.npy") - right) / np.linalg.norm(right))


def main(words: Sequence[str]) -> int:
    """Measure and print; return the exit code."""
    parser = argparse.ArgumentParser(prog="python -m experiments.benchmarks.trainers", description=__doc__)
    parser.add_argument("--data", help="folder of sst2/ and bert-uncased/; the embedded sentences without")
    parser.add_argument("--model", choices=["distilbert", "tiny"], default="distilbert")
    parser.add_argument("--steps", type=int, default=5, help="of a block (5)")
    add_options(parser)
    given = parser.parse_args(words)

    def body() -> None:
        with tempfile.TemporaryDirectory(prefix="ddpsched-trainers-") as folder:
            task = Task(given.model, given.data, given.steps, given.rounds, Path(folder))
            launches = [
                answers(run_ranks(on_rank, RANKS, replace(task, seed=seed), timeout_s=600.0, limit_s=4 * 3600.0))
                for seed in range(given.launches)
            ]
            errors = {name: error_of(task, name, [first[name] for _, first in launches[-1]]) for name in ARMS}
            steps = -(-len(samples_of(task)) // (RANKS * PER_DEVICE))
        plain_console(at_least=120).print(table([ranks[0][0] for ranks in launches], errors, task, steps))

    return guarded(body)


def table(launches: list[Seconds], errors: dict[str, float], task: Task, steps: int) -> Table:
    """Return the page's table: a row an arm."""
    (arms,) = judged([launches])
    shown = Table(title=f"{task.model}, {steps:,} steps an epoch", title_justify="left", box=box.SIMPLE_HEAD)
    shown.add_column("arm", no_wrap=True)
    for heading in ("s a step", "s an epoch", "/ first (95 %)", "error"):
        shown.add_column(heading, justify="right", no_wrap=True)
    shown.add_column("verdict")
    for name, each in arms.items():
        error = f"{errors[name]:.2g}" if name in errors else ""
        shown.add_row(name, f"{each.seconds:.3f}", f"{each.seconds * steps:,.0f}", each.text, error, each.verdict)
    return shown


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
