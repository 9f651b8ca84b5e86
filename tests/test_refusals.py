"""Wrong configs, samplers and commands with their messages, side by side in ``refusals.txt``.

A refusal names the value, what is allowed and what to do. After changing a message on purpose, write the file anew and
read the difference:

    python tests/test_refusals.py
"""

import contextlib
import io
import re
import sys
import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ddpsched import BatchSampler, PoolStream, StepLoader, law_lengths
from ddpsched.config import apply_overrides, parse
from ddpsched.data.lengths import KnownLengths
from ddpsched.decode import shorter
from ddpsched.errors import DdpschedError
from ddpsched.step_plan import Position
from ddpsched.world import World

FILE = Path(__file__).with_name("refusals.txt")
LENGTHS = [5, 9, 3, 7, 8, 4, 6, 2]
ALONE, TWO = World(0, 1), World(0, 2)
BUDGET = {"kind": "token_budget", "max_tokens_for_batch": 16}
SEVERAL, ROWS = {"kind": "auto", "max_microbatches": 2}, {"kind": "auto", "packed": True}
SECONDS, MISSING = {"kind": "affine_quadratic", "beta": 1e-5}, {"kind": "calibrated", "path": "device.json"}


def config(*words: str) -> Any:
    """Return a config of 10 steps with these overrides."""
    given = apply_overrides({}, words)
    return parse(given if {"steps", "epochs"} & set(given) else {"steps": 10, **given}, source="study.toml")


def command(*words: str) -> None:
    """Run `ddpsched` with these words, and raise its message as an error."""
    from ddpsched.cli import main

    printed = io.StringIO()
    with (
        contextlib.redirect_stderr(printed),
        contextlib.redirect_stdout(printed),
        pytest.MonkeyPatch.context() as patch,
    ):
        patch.setattr(sys, "argv", ["ddpsched", *words])
        patch.setattr(sys.modules["__main__"], "__package__", None)  # else usage lines name `python -m pytest`
        patch.setenv("COLUMNS", "400")
        try:
            code = main() or 0
        except SystemExit as end:
            code = end.code if isinstance(end.code, int) else 1
    if code:  # which range a value is out of is typer's to say, in words that change with its version
        said = re.sub(r"(?s)Usage: .*(Error: Invalid value for '[^:]+: ).*", r"\1...", printed.getvalue().strip())
        raise DdpschedError(f"exit code {code}: {said}")


def plan(*words: str) -> None:
    """Run `ddpsched plan` on a file of lengths."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "lengths.txt")
        path.write_text("\n".join(map(str, LENGTHS)))
        try:
            command("plan", str(path), "--world-size", "2", "--global-batch", "4", *words)
        except DdpschedError as error:
            raise DdpschedError(str(error).replace(folder, "DIR")) from None


def sampler(size: Any = None, world: World = ALONE, policy: Any = "balanced", **more: Any) -> BatchSampler:
    return BatchSampler(LENGTHS, global_batch=size, world=world, policy=policy, **more)


loader = partial(StepLoader, range(8), LENGTHS, world=ALONE)

CASES: list[tuple[str, Callable[[], Any]]] = [
    (f"config {shorter(' '.join(words)).encode('unicode_escape').decode()}", partial(config, *words))
    for words in (
        ("steps=10", "epochs=1"),
        ("steps=0",),
        ("stepz=10",),
        ("policy.kind=fastest",),
        ("policy.prefech=8",),
        ("prefetch=8",),
        ("policy.max-microbatches=4",),
        ("global-batch=8",),
        ("policy[0]=1",),
        ("policy.prefetch=2",),
        ("policy.kind=static", "policy.pool_size=4"),
        ("policy.kind=balanced", "policy.budget=real"),
        ("policy.kind=minmax", "policy.max_microbatches=4"),
        ("policy.kind=static", "policy.lookahead=2"),
        ("policy.kind=token_budget",),
        ("policy.kind=token_budget", "policy.max_tokens_for_batch=0"),
        ("policy.kind=token_budget", "policy.max_tokens_for_batch=[64, 32, 16]"),
        ("policy.kind=token_budget", "policy.max_tokens_for_batch=[64, 32]"),
        ("policy.kind=token_budget", "policy.max_tokens_for_batch=64", "policy.same_shape=true", "policy.budget=real"),
        ("policy.kind=pool", "policy.max_tokens_for_batch=[64, 32]"),
        ("policy.kind=bins", "policy.bins=[[1, 10, 8], [12, 20, 4]]"),
        ("policy.kind=bins", "policy.bins=[[1, 10, 8], [9, 20, 4]]"),
        ("policy.kind=bins", "policy.bins=[[10, 1, 8]]"),
        ("policy.kind=bins", "policy.bins=[[1, 10, 8]]", "policy.median_batch=8"),
        ("policy.kind=peer",),
        ("policy.kind=static", "policy.peer=verl"),
        ("policy.kind=balanced", "data.lengths=online"),
        ("policy.kind=packed", "cost.kind=padded_tokens_squared"),
        ("policy.kind=static", "cost.kind=calibrated", "cost.path=fit.json", "cost.online=true"),
        ("policy.kind=minmax", "data.pad_to=max_length"),
        ("global_batch=2",),
        ("world_size=2.5",),
        ("order.kind=shuffled", "order.mega_batches=8"),
        ("log.sinks=mlflow",),
        ('log.sinks=["mlflow"]',),
        ('log.sinks=["wandb", "wandb"]',),
        ("order.kind=shuffled", "order.path=order.npy"),
        ("order.kind=curriculum", "order.start=0.5"),
        ("order.kind=curriculum", "data.lengths=online"),
        ("cost.kind=affine_quadratic",),
        ("cost.kind=calibrated",),
        ("data.pad_to=longest", "data.within_documents=true"),
        ("train.target=token_mean",),
        ("train.target=self_normalised",),
        ("model.task=causal_lm", "train.target=window_token_mean"),
        ("model.task=causal_lm", "train.target=constant_length"),
        ("memory.probe=true", "executor.kind=simulated"),
        ("executor.kind=simulated", "executor.slowness=[1.0, 2.0]"),
        ("lr.kind=linear", "lr.per=tokens"),
        ("steps=1000000000000000000000000000000",),
        ("world_size=1000000000", "executor.kind=simulated"),
        ("global_batch=10000000",),
        ("seed=10000000000",),
        ("seed=1" + "0" * 5000,),
        ("data.size=1000000000000",),
        ("data.max_length=10000000",),
        ("data.rows=0x1" + "0" * 200,),
        ("executor.threads=1000000",),
        ("executor.timeout_s=inf",),
        ("train.learning_rate=nan",),
        ("policy.kind=balanced", "policy.max_microbatches=1000000"),
        ("policy.prefetch=10000000",),
        ("policy.kind=packed", "policy.lookahead=10000000"),
        ("outputs=a\0b",),
        ("a" + ".a" * 100 + "=1",),
    )
] + [
    ("BatchSampler without global_batch", sampler),
    ("BatchSampler global_batch=0", partial(sampler, 0, ALONE)),
    ("BatchSampler global_batch=1 of two ranks", partial(sampler, 1, TWO)),
    ("BatchSampler global_batch=4 with a budget", partial(sampler, 4, ALONE, BUDGET)),
    ("BatchSampler policy='quick'", partial(sampler, 4, ALONE, "quick")),
    ("BatchSampler policy with a foreign key", partial(sampler, 4, ALONE, {"kind": "static", "pool_size": 3})),
    ("BatchSampler policy without kind", partial(sampler, 4, ALONE, {"pool_size": 3})),
    ("BatchSampler policy='peer'", partial(sampler, 4, ALONE, "peer")),
    ("BatchSampler of several micro-batches", partial(sampler, 4, ALONE, {"kind": "balanced", "max_microbatches": 2})),
    ("BatchSampler policy='auto' without seconds", partial(sampler, 4, ALONE, "auto")),
    ("BatchSampler policy='auto' of a missing calibration", partial(sampler, 4, ALONE, "auto", cost=MISSING)),
    ("BatchSampler policy='auto' of several", partial(sampler, 4, ALONE, SEVERAL, cost=SECONDS)),
    ("BatchSampler policy='auto' and speeds", partial(sampler, 4, TWO, "auto", cost=SECONDS, speeds=(1.0, 0.5))),
    ("StepLoader policy='auto' without global_batch", partial(loader, policy="auto", cost=SECONDS)),
    ("StepLoader policy='auto' of packed", partial(loader, global_batch=4, policy=ROWS, cost=SECONDS)),
    ("BatchSampler order='random'", partial(sampler, 4, ALONE, order="random")),
    ("BatchSampler last='keep'", partial(sampler, 4, ALONE, last="keep")),
    ("BatchSampler last='drop' of minmax", partial(sampler, 4, ALONE, "minmax", last="drop")),
    ("BatchSampler of a length 0", partial(BatchSampler, [3, 0, 2], global_batch=2, world=ALONE)),
    ("BatchSampler of fractions", partial(BatchSampler, [1.5, 2.5], global_batch=2, world=ALONE)),
    ("BatchSampler.set_epoch(-1)", lambda: sampler(4, ALONE).set_epoch(-1)),
    (
        "BatchSampler.load_state_dict of another seed",
        lambda: sampler(4, ALONE).load_state_dict(sampler(4, ALONE, seed=1).state_dict()),
    ),
    ("BatchSampler.load_state_dict of nothing", lambda: sampler(4, ALONE).load_state_dict({})),
    ("StepLoader batch_size=4", partial(loader, global_batch=4, batch_size=4)),
    ("StepLoader max_num_steps and epochs", partial(loader, global_batch=4, max_num_steps=4, epochs=2)),
    ("StepLoader of fewer lengths than samples", partial(StepLoader, range(9), LENGTHS, world=ALONE, global_batch=4)),
    ("StepLoader.skip_batches(9)", lambda: _skipped(9)),
    ("PoolStream pool_size=0", lambda: PoolStream([[1]], len, policy={"kind": "pool", "pool_size": 0})),
    ("World(2, 2)", partial(World, 2, 2)),
    ("Position of half a state", partial(Position.from_dict, {"epoch": 1})),
    ("lengths of three columns", partial(KnownLengths, np.ones((2, 3), dtype=int))),
    ("ddpsched run missing.toml", partial(command, "run", "missing.toml")),
    *(
        (f"ddpsched {' '.join(words)}", partial(command, *words))
        for words in (
            ("watch", "missing"),
            ("watch", "."),
            ("runs", "ls", "missing"),
            ("runs", "show", "."),
            ("runs", "rm", "missing"),
            ("runs", "rm", ".", "--yes"),
        )
    ),
    ("ddpsched plan missing.tsv", partial(command, "plan", "missing.tsv", "--world-size", "2", "--global-batch", "4")),
    *(
        (f"ddpsched plan lengths.txt {' '.join(words)}", partial(plan, *words))
        for words in (
            ("--seed", "-1"),
            ("--seed", "10000000000"),
            ("--alpha", "nan"),
            ("--gamma", "inf"),
            ("--max-length", "0"),
            ("--epochs", "1000000000"),
            ("--epochs", "10000000000"),
            ("--memory", "-1"),
        )
    ),
    *(
        (
            " ".join(("ddpsched plan", *words)),
            partial(command, "plan", *words, "--world-size", "2", "--global-batch", "4"),
        )
        for words in (
            (),
            ("--law", "wiki"),
            ("lengths.txt", "--law", "chat"),
            ("lengths.txt", "--samples", "9"),
            ("--law", "chat", "--text", "question", "--tokenizer", "bert"),
            ("--law", "chat", "--samples", "0"),
            ("--law", "chat", "--cut", "0"),
            ("--law", "chat", "--samples", "100000001"),
        )
    ),
    ("law_lengths 'wiki'", lambda: law_lengths("wiki", 8)),
    ("law_lengths of no samples", lambda: law_lengths("chat", 0)),
    ("law_lengths of a seed below zero", lambda: law_lengths("chat", 8, -1)),
    ("ddpsched certify --policy quick", partial(command, "certify", "--policy", "quick")),
    ("ddpsched sort missing.tsv", partial(command, "sort", "missing.tsv", "--output", "order.npy")),
]


def _skipped(count: int) -> None:
    steps = loader(global_batch=4)
    steps.skip_batches(count)
    next(iter(steps))


def messages() -> str:
    """Return each case with its message."""
    lines = []
    for name, wrong in CASES:
        try:
            wrong()
        except (DdpschedError, ValueError) as error:
            lines.append(f"# {name}\n{type(error).__name__}: {error}\n")
        else:
            lines.append(f"# {name}\nNOT REFUSED\n")
    return "\n".join(lines).replace(str(Path.cwd()), "DIR")


def test_the_messages() -> None:
    text = messages()
    assert "NOT REFUSED" not in text
    assert text == FILE.read_text(encoding="utf-8")


if __name__ == "__main__":
    FILE.write_text(messages(), encoding="utf-8")
