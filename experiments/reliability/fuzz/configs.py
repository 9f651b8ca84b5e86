"""Damaged configs and studies: loaded, and where they load a few steps planned as the simulated executor would."""

import re
import tempfile
import tomllib
from collections.abc import Callable
from functools import partial
from itertools import islice
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import tomli_w

from ddpsched.config import RunConfig, load
from ddpsched.data.lengths import KnownLengths
from ddpsched.exchange import LocalExchange
from ddpsched.planning.planner import num_steps, plan_steps
from ddpsched.simulated import SimulatedExecutor
from experiments.reliability.fuzz.mutate import (
    HOSTILE_NUMBERS,
    any_value,
    at,
    bytes_changed,
    changed,
    is_hostile,
    leaves,
    removed,
)
from experiments.reliability.fuzz.outcome import Tally, taken
from experiments.study import load_study

COMMON: dict[str, Any] = {
    "name": "case", "steps": 2, "world_size": 2, "global_batch": 8, "seed": 1,
    "data": {"size": 64, "max_length": 128, "text": "sentence"},
}  # fmt: skip
SIMULATED = {"kind": "simulated", "alpha_s": 0.01, "slowness": [1.0, 2.0], "gradient_bytes": 1e6, "threads": 1}
POLICIES: list[dict[str, Any]] = [
    {"kind": "static"},
    {"kind": "minmax", "prefetch": 16, "solver": "auto"},
    {"kind": "balanced", "max_microbatches": 2, "lookahead": 2},
    {"kind": "packed"},
    {"kind": "token_budget", "max_tokens_for_batch": 256, "same_shape": True},
    {"kind": "bins", "bins": [[1, 64, 8], [65, 128, 4]], "batches_per_optimizer_step": 2},
    {"kind": "pool", "pool_size": 8, "max_tokens_for_batch": 256, "sequence_packing": True},
]
TABLES: list[dict[str, Any]] = [
    {"outputs": "outputs", "executor": SIMULATED},
    {"cost": {"kind": "affine_quadratic", "alpha": 0.1, "beta": 1e-3, "gamma": 0.0}},
    {"cost": {"alpha": 2.0, "gamma": 0.5}, "executor": {"kind": "virtual", "timeout_s": 5.0, "device": "cpu"}},
    {"order": {"kind": "curriculum", "pacing": "step", "start": 0.2, "over": 0.5, "stairs": 3}},
    {"order": {"kind": "length_grouped", "mega_batches": 4}, "model": {"name": "tiny", "dropout": 0.1}},
    {"sync": {"kind": "bucketed", "bucket_mb": 1.0}, "train": {"learning_rate": 1e-3, "warmup": 0.5}},
    {"lr": {"kind": "linear", "reference": 8}, "data": COMMON["data"] | {"rows": 60, "held_out": 0.1}},
]
BASES = [COMMON | {"policy": policy} | tables for policy in POLICIES for tables in TABLES]
RAW = [
    "[" * 5000, "[" * 100 + "1" + "]" * 100, "{a=" * 3000, "9" * 5000, "0x" + "f" * 5000, "1e99999", "inf", "-nan",
    "1979-05-27T07:32:00Z", '"\\uD800"', "'''", "0b2", "", "= 1", '"\\u0000"', "[1, [2", "{}", "[[]]",
]  # fmt: skip
ALWAYS_WRONG = RAW[:-2]
STUDIES = sorted(Path(__file__).parents[2].glob("*.toml"))
LENGTHS = np.random.default_rng(0).integers(3, 128, 200)
KEYS = {name for table in (RunConfig(steps=1).model_dump(),) for name in re.findall(r"'(\w+)'", repr(table))}
KEYS |= {"prefetch", "lookahead", "bins", "pool_size", "max_tokens_for_batch", "batches_per_optimizer_step"}
PLANNED = 2**12  # ranks or samples of a step; larger ones are loaded alone


def fuzz(count: int, seed: int) -> Tally:
    """Damage ``count`` configs and studies, and return how they are taken."""
    random, tally = Random(seed), Tally()
    with tempfile.TemporaryDirectory() as name:
        path = Path(name) / "case.toml"
        for _ in range(count):
            how, read, must_refuse = _case(random, path)
            outcome, said = taken(read, partial(has_place, path), must_refuse)
            tally.add(outcome, f"{how}: {said}")
    return tally


def has_place(path: Path, message: str) -> bool:
    """Return whether a message names the file, or the key of a value."""
    return str(path) in message or any(word in KEYS for word in re.findall(r"\w+", message))


def _case(random: Random, path: Path) -> tuple[str, Callable[[], object], bool]:
    """Write a damaged file; return what was done, its reader, and whether that must refuse it."""
    if random.random() < 0.2:
        return _study(random, path)
    base, words, must_refuse = random.choice(BASES), list[str](), False
    text = tomli_w.dumps(base).encode()
    how = random.choice(["value", "value", "value", "raw", "word", "word", "unknown", "remove", "bytes", "twice"])
    spot = random.choice(list(leaves(base)))
    key = ".".join(map(str, spot))
    old = at(base, spot)
    if how == "value":
        new = any_value(random)
        how, must_refuse = f"{key} = {str(new)[:60]!r}", is_wrong(old, new)
        text = tomli_w.dumps(changed(base, spot, new)).encode()
    elif how == "raw" and not isinstance(old, dict | list) and not any(isinstance(part, int) for part in spot):
        raw = random.choice(ALWAYS_WRONG)
        without = tomli_w.dumps(removed(base, spot)).encode()
        how, must_refuse = f"raw {key} = {raw[:40]!r}", True
        text = f"{key} = {raw}\n".encode() + without
    elif how == "word" and not any(isinstance(part, int) for part in spot):
        raw = random.choice([*RAW, *map(str, HOSTILE_NUMBERS)])
        words, how = [f"{key}={raw}"], f"word {key}={raw[:40]}"
        must_refuse = isinstance(old, int | float) and raw not in ("= 1",)
    elif how == "unknown":
        table = random.choice([each for each in leaves(base) if isinstance(at(base, each), dict)] + [()])
        name = random.choice(["x", "Steps", "é", "a b", "x" * 3000, "\n", "kindd", "0"])
        how, must_refuse = f"unknown {name[:20]!r} in {table}", True
        text = tomli_w.dumps(changed(base, (*table, name), any_value(random))).encode()
    elif how == "remove":
        how, text = f"without {key}", tomli_w.dumps(removed(base, spot)).encode()
    elif how == "twice":
        line = random.choice([each for each in text.split(b"\n") if b" = " in each and not each.startswith(b" ")])
        how, must_refuse, text = f"twice {line[:40]!r}", True, text.replace(line, line + b"\n" + line, 1)
    else:
        how, text = "bytes", bytes_changed(random, text)
    path.write_bytes(text)
    return how, lambda: _load_and_plan(path, words), must_refuse


def _study(random: Random, path: Path) -> tuple[str, Callable[[], object], bool]:
    """Write a damaged study; return what was done, its reader, and False, as a grid may replace any value."""
    text = random.choice(STUDIES).read_bytes()
    how = "study, bytes"
    if random.random() < 0.6:
        values = tomllib.loads(text.decode())
        spot, new = random.choice(list(leaves(values))), any_value(random)
        how = f"study, {'.'.join(map(str, spot))} = {str(new)[:60]!r}"
        text = tomli_w.dumps(changed(values, spot, new)).encode()
    else:
        text = bytes_changed(random, text)
    path.write_bytes(text)
    words = random.choice(
        [[], [], ["policy.kind=balanced"], ["data.rows=0"], [f"seed={'9' * 5000}"], ["compare.how=1"]]
    )
    return f"{how} {str(words)[:60]}", lambda: load_study(path, words), False


def is_wrong(old: Any, new: Any) -> bool:
    """Return whether no option whose value may be ``old`` may have the value ``new``."""
    if isinstance(old, bool):
        return not isinstance(new, bool)
    if isinstance(old, int | float):
        is_number = isinstance(new, int | float) and not isinstance(new, bool)
        return not is_number or is_hostile(old, new)
    if isinstance(old, str):
        return not isinstance(new, str) or "\0" in new
    return not isinstance(new, type(old))


def _load_and_plan(path: Path, words: list[str]) -> None:
    config = load(path, words)
    spec = config.plan_spec(
        None if config.memory.budget_bytes is None else [config.memory.budget_bytes] * config.world_size
    )
    if config.policy.kind == "peer" or max(config.world_size, config.global_batch) > PLANNED:
        return
    lengths = KnownLengths(np.minimum(LENGTHS, config.data.max_length))
    if (config.epochs or 1) < 10:
        num_steps(spec, lengths)
    executor = SimulatedExecutor(config, lengths) if config.executor.kind == "simulated" else None
    for plan in islice(plan_steps(spec, lengths, LocalExchange(config.world_size)), 2):
        if executor is not None:
            executor.execute(plan)
