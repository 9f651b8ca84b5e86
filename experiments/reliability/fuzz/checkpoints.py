"""Damaged checkpoints of a run that was stopped, read as the run reads them when it goes on.

Where a byte differs, the checkpoint must be refused. Where somebody has changed a value and written the manifest anew,
it is refused or taken for what it says; nothing may be loaded that is not of this run's config, model and ledger.
"""

import json
import logging
import shutil
import tempfile
from contextlib import closing
from functools import partial
from itertools import islice
from pathlib import Path
from random import Random
from typing import Any
from unittest.mock import patch

import numpy as np
import torch

from ddpsched.config import RunConfig, parse
from ddpsched.data.lengths import KnownLengths
from ddpsched.exchange import LocalExchange
from ddpsched.planning.planner import plan_steps
from ddpsched.records import RecordWriter
from ddpsched.recovery.checkpoints import STATE, Checkpoints
from ddpsched.recovery.ledger import Head, Ledger
from ddpsched.recovery.start import find_start, identity_of
from ddpsched.simulated import SimulatedExecutor
from ddpsched.training.state import Snapshot, restore
from experiments.reliability.fuzz.mutate import any_value, at, bytes_changed, changed, leaves, removed
from experiments.reliability.fuzz.outcome import Tally, taken

STEPS, SAMPLES = 4, 200
LENGTHS = KnownLengths(np.random.default_rng(0).integers(3, 128, SAMPLES))
RESEALED = 0.5  # the share of damages after which the manifest is written anew


class Whole:
    """A run before its checkpoint is damaged: its folder, config and a model to load into."""

    def __init__(self, folder: Path) -> None:
        values = {
            "name": "run", "outputs": str(folder), "steps": 8, "world_size": 2, "global_batch": 8,
            "policy": {"kind": "minmax"}, "train": {"checkpoint_every": STEPS},
        }  # fmt: skip
        self.config: RunConfig = parse(values)
        self.identity = identity_of(self.config, self.config.load_samples())
        self.folder = self.config.run_dir
        self.folder.mkdir(parents=True)
        torch.manual_seed(0)
        self.model = torch.nn.Linear(3, 2)
        self.optimizer = torch.optim.AdamW(self.model.parameters())
        self.model(torch.ones(1, 3)).sum().backward()
        self.optimizer.step()
        self.path = self._write()

    def _write(self) -> Path:
        ledger, after = Ledger(self.folder, Head()), None
        executor = SimulatedExecutor(self.config, LENGTHS)
        with closing(RecordWriter(self.folder, 0)) as writer:
            for plan in islice(plan_steps(self.config.plan_spec(), LENGTHS, LocalExchange(2)), STEPS):
                writer.write(*executor.execute(plan))
                ledger.commit(plan, skipped=False)
                after = plan.after
        ledger.close()
        assert after is not None
        checkpoints = Checkpoints(self.folder, 1)
        snapshot = Snapshot(self.model, self.optimizer)
        snapshot.take()
        snapshot.write(checkpoints.begin(STEPS), 0, 1)
        state = {"world_size": 2, "batch_ranks": 2, "position": after.as_packed(), "ledger": list(ledger.head)}
        return checkpoints.commit(STEPS, {"config": self.identity, "speeds": None, **state})

    def seal(self) -> None:
        """Write the manifest of the checkpoint's files anew."""
        aside = self.path.with_suffix(".part")
        self.path.rename(aside)
        (aside / "manifest.json").unlink()
        state = (aside / STATE).read_bytes()
        try:
            Checkpoints(self.folder, 1).commit(STEPS, json.loads(state))
        except (ValueError, RecursionError):  # no JSON any more
            aside.rename(self.path)

    def read(self) -> None:
        """Begin as a run does that goes on: state, tensors, ledger, and the first plan."""
        start = find_start(self.folder, self.identity)
        assert start.checkpoint is not None
        restore(self.model, self.optimizer, start.checkpoint)
        spec = self.config.plan_spec(batch_ranks=start.batch_ranks)
        next(plan_steps(spec, LENGTHS, LocalExchange(2), None, start.position, start.ranks_before), None)
        start.rewind()


def fuzz(count: int, seed: int) -> Tally:
    """Damage ``count`` checkpoints, one at a time, and return how they are taken."""
    random, tally = Random(seed), Tally()
    quiet = patch.object(logging.getLogger("ddpsched"), "disabled", True)  # each damage is a warning
    with quiet, tempfile.TemporaryDirectory() as name:
        whole, kept = Whole(Path(name) / "outputs"), Path(name) / "kept"
        shutil.copytree(whole.folder, kept)
        for _ in range(count):
            how, must_refuse = _damage(random, whole)
            outcome, said = taken(whole.read, partial(_has_place, whole), must_refuse)
            tally.add(outcome, f"{how}: {said}")
            shutil.rmtree(whole.folder)
            shutil.copytree(kept, whole.folder)
    return tally


def _has_place(whole: Whole, message: str) -> bool:
    return str(whole.folder) in message or "position" in message


def _damage(random: Random, whole: Whole) -> tuple[str, bool]:
    """Damage one file of the checkpoint, or a value of its state; return what was done and whether it must refuse."""
    path = random.choice(sorted(whole.path.iterdir()))
    if random.random() < RESEALED and path.name != "manifest.json":
        return _change_and_seal(random, whole, path)
    before = path.read_bytes()
    after = bytes_changed(random, before)
    path.write_bytes(after)
    return f"{path.name}, bytes", after != before and not _says_the_same(path, before, after)


def _says_the_same(path: Path, before: bytes, after: bytes) -> bool:
    """Return whether a manifest says what it said: only white space differs."""
    try:
        return path.name == "manifest.json" and bool(json.loads(before) == json.loads(after))
    except (ValueError, RecursionError):
        return False


def _change_and_seal(random: Random, whole: Whole, path: Path) -> tuple[str, bool]:
    if path.name != STATE:
        path.write_bytes(bytes_changed(random, path.read_bytes()))
        whole.seal()
        return f"{path.name}, bytes, sealed anew", False
    values: Any = json.loads(path.read_bytes())
    spot = random.choice(list(leaves(values)))
    key, old = ".".join(map(str, spot)), at(values, spot)
    if random.random() < 0.2:
        values, how, must_refuse = removed(values, spot), f"without {key}", spot[0] in ("ledger", "config")
    else:
        new = any_value(random)
        values, how = changed(values, spot, new), f"{key} = {str(new)[:60]!r}"
        must_refuse = spot[0] in ("ledger", "config") and new != old
    path.write_text(json.dumps(values, default=str), encoding="utf-8")
    whole.seal()
    return f"{STATE}, {how}, sealed anew", must_refuse
