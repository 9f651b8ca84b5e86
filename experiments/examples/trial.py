"""Runs of the examples on real ranks, each step compared with one process that takes the same samples."""

import os
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch.optim.optimizer import register_optimizer_step_post_hook

from ddpsched.local_ranks import answers, join_group, run_ranks
from experiments.examples.pairs import load

Script = tuple[str, str, bool]  # the pair, "before" or "after", and whether in float64
EPOCHS, STEPS = 2, 20  # of each script; steps after which parameters are compared


@dataclass(frozen=True)
class Step:
    """One rank's optimizer step: its samples, and its gradient and its parameters afterwards, (P,)."""

    ids: list[int]
    gradient: np.ndarray
    parameters: np.ndarray
    lr: float


@dataclass(frozen=True)
class Trial:
    """A script's steps against one process.

    ``gradient``: the largest relative error of a step's gradient, at the parameters that the ranks had there.
    ``parameters``: the relative error after 20 steps of both. ``exactly_once``: whether each epoch ran each sample
    once.
    """

    steps: int
    gradient: float
    parameters: float
    exactly_once: bool


def trials(scripts: Sequence[Script], world_size: int = 2) -> list[Trial]:
    """Run the scripts one after the other in one group of ranks. Raises RankFailure where one fails."""
    ranks = answers(run_ranks(_on_rank, world_size, list(scripts)))
    return [_judged(script, [rank[number] for rank in ranks]) for number, script in enumerate(scripts)]


def _on_rank(scripts: list[Script]) -> list[list[Step]]:
    join_group()
    os.environ["TORCHELASTIC_RUN_ID"] = "examples"  # as torchrun sets it, by which Lightning knows that there are ranks
    return [_steps(*script) for script in scripts]


def _steps(name: str, which: str, double: bool) -> list[Step]:
    built, running, steps = list[torch.nn.Module](), list[int](), list[Step]()
    script: Any = load(name, which)
    samples = [_row(sample) for sample in script.build_data()]
    numbers = {_key(row): number for number, row in enumerate(samples)}
    make = script.build_model

    def build_model() -> torch.nn.Module:
        model = make().to(torch.float64 if double else torch.float32)
        model.register_forward_pre_hook(note, with_kwargs=True)
        built.append(model)
        return model

    def note(module: Any, args: tuple[Any, ...], words: dict[str, Any]) -> Any:
        if module.training and hasattr(words.get("packing"), "ranges"):  # a part of a sample, which counts once
            running.extend(_whole(samples, words))
        elif module.training:
            running.extend(numbers[_key(row)] for row in _rows(args, words))
        return tuple(each.double() if double and each.is_floating_point() else each for each in args), words

    def noted(optimizer: Any, args: Any, words: Any) -> None:
        gradient, parameters = (
            _flat(tensors) for tensors in ([p.grad for p in built[0].parameters()], list(built[0].parameters()))
        )
        steps.append(Step(list(running), gradient, parameters, optimizer.param_groups[0]["lr"]))
        running.clear()

    script.build_model = build_model
    hook = register_optimizer_step_post_hook(noted)
    try:
        with _group_stays():
            script.main()
    finally:
        hook.remove()
    return steps


@contextmanager
def _group_stays() -> Iterator[None]:
    """Let scripts begin and end their process group within the one that there is."""
    group: Any = dist
    kept = group.init_process_group, group.destroy_process_group
    group.init_process_group = group.destroy_process_group = lambda *args, **words: None
    try:
        yield
    finally:
        group.init_process_group, group.destroy_process_group = kept


def _row(sample: Any) -> Any:
    return sample[0] if isinstance(sample, tuple) else np.array(sample["input_ids"])


def _key(row: Any) -> bytes:
    return np.ascontiguousarray(row, dtype=np.float32).tobytes()


def _rows(args: tuple[Any, ...], words: dict[str, Any]) -> Iterator[Any]:
    """Yield each sample of a batch, without padding."""
    rows = args[0] if args else words["input_ids"]
    if "position_ids" in words:  # packed
        yield from np.split(rows[0].numpy(), np.flatnonzero(words["position_ids"][0].numpy() == 0)[1:])
    elif rows.is_floating_point():
        yield from (row[~row[:, 0].isnan()].numpy() for row in rows)
    else:
        yield from (row[row > 0].numpy() for row in rows)


def _whole(samples: Sequence[Any], words: dict[str, Any]) -> list[int]:
    """Return the sample of which a batch holds the part with the first token; none for another part."""
    tokens, places = words["input_ids"][0].numpy(), words["position_ids"][0].numpy()
    if places[0]:
        return []
    return [
        number
        for number, row in enumerate(samples)
        if len(row) > places[-1] and np.array_equal(np.asarray(row)[places], tokens)
    ]


def _judged(script: Script, ranks: list[list[Step]]) -> Trial:
    name, _, double = script
    data = load(name, "before").build_data()
    at, own, worst = _model(name, double), _model(name, double), 0.0
    optimizer, parameters = torch.optim.SGD(own.parameters(), lr=1.0), 0.0
    steps = list(zip(*ranks, strict=True))
    half = len(steps) // EPOCHS
    ids = [each for first in (0, half) for each in _without_stand_ins(steps[first : first + half])]
    for number, step in enumerate(steps):
        samples = [data[id] for id in ids[number]]
        expected = _gradient(name, at, samples)
        worst = max(worst, *(_error(rank.gradient, expected) for rank in step))
        _gradient(name, own, samples)
        optimizer.param_groups[0]["lr"] = step[0].lr
        optimizer.step()
        if number + 1 == STEPS:
            parameters = max(_error(rank.parameters, _flat(list(own.parameters()))) for rank in step)
        torch.nn.utils.vector_to_parameters(
            torch.from_numpy(step[0].parameters).to(next(at.parameters()).dtype), at.parameters()
        )
    counts = [Counter(id for step in ids[first : first + half] for id in step) for first in (0, half)]
    once = all(len(each) == len(data) and set(each.values()) == {1} for each in counts)
    return Trial(len(steps), worst, parameters, once)


def _without_stand_ins(epoch: Sequence[Sequence[Step]]) -> Iterator[list[int]]:
    """Yield the samples of each step of an epoch, over all ranks.

    A rank that has one sample alone, and that for the second time, has a stand-in; its weight shows in the gradient.
    """
    seen: set[int] = set()
    for step in epoch:
        ids = [id for rank in step for id in rank.ids if len(rank.ids) > 1 or id not in seen]
        seen.update(ids)
        yield ids


def _model(name: str, double: bool) -> torch.nn.Module:
    model: torch.nn.Module = load(name, "before").build_model()
    return model.to(torch.float64 if double else torch.float32)


def _gradient(name: str, model: torch.nn.Module, samples: list[Any]) -> np.ndarray:
    """Return the gradient of the mean loss of these samples in one batch, (P,); it stays in the model."""
    model.zero_grad()
    batch = load(name, "before").collate(samples)
    if isinstance(batch, tuple):
        clips, levels = (part.to(next(model.parameters()).dtype) for part in batch)
        F.mse_loss(model(clips), levels).backward()
    else:
        labels = batch.pop("labels")
        # a torch model of the examples takes ids alone, by their place
        logits = model(*batch.values()) if isinstance(model, torch.nn.Sequential) else model(**batch)
        logits = getattr(logits, "logits", logits)
        if logits.dim() == 3:
            logits, labels = logits[:, :-1].flatten(0, 1), labels[:, 1:].flatten()
        F.cross_entropy(logits, labels).backward()
    return _flat([parameter.grad for parameter in model.parameters()])


def _flat(tensors: Sequence[Any]) -> np.ndarray:
    return torch.cat([tensor.detach().reshape(-1) for tensor in tensors]).double().numpy()


def _error(found: np.ndarray, expected: np.ndarray) -> float:
    return float(np.linalg.norm(found - expected) / np.linalg.norm(expected))
