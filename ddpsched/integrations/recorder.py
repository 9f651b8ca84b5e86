"""Recorder: records of a training loop of one's own, as runs write theirs, for the analysis and its timeline."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from time import perf_counter, process_time, time
from types import TracebackType
from typing import Any, Self

import numpy as np
import tomli_w
import torch

from ddpsched.environment import describe
from ddpsched.errors import ConfigError
from ddpsched.integrations.agree import sum_over_ranks
from ddpsched.integrations.agreement import process_group
from ddpsched.integrations.reduction_marks import ReductionMarks
from ddpsched.integrations.scaled import Scaled, scaled
from ddpsched.planning.record_columns import plan_columns
from ddpsched.records import RecordWriter, StepRecord, compact
from ddpsched.run_folder import RunFolder, Words
from ddpsched.training.clock import Clock, PeakMemory, StepClock
from ddpsched.world import World

LOGGED = ("loss", "lr", "grad_norm")
WORDS = Words(another="another folder", overwrite="overwrite=True", elsewhere="give another folder")


class Recorder:
    """Iterate a loop's batches, and write a record of each step of this rank into a run's folder.

        steps = ddpsched.scaled(loader)
        with ddpsched.Recorder("outputs/mine/balanced", steps, model=ddp) as recorder:
            for epoch in range(3):
                for batch, scale in recorder:
                    loss = summed_loss(ddp, batch)
                    (scale * loss).backward()
                    optimizer.step()
                    optimizer.zero_grad()
                    recorder.log(loss=loss.item() / len(batch["labels"]))

    Then `ddpsched analyse outputs/mine` draws what it draws of any study, several loops side by side, and `ddpsched
    timeline outputs/mine/RUN` shows which rank the others waited for. Loops that ran one after another get no verdict,
    as a machine's speed drifts: `ddpsched sweep` measures policies in turn.

    ``folder``: ``outputs/STUDY/RUN``, on a disk that all ranks see. ``steps``: what ``ddpsched.scaled`` or
    ``ddpsched.balanced`` returned, whose items are ``(batch, scale)`` here; or
    any iterable of batches, as of the loop to compare with, and ``lengths_of(batch)``: the tokens of each of its
    samples, or a list of these for each micro-batch; then each step has an all-reduce of one number, and each iteration
    counts as an epoch. ``model``: in torch's DDP, with no communication hook of its own; then ``compute_s`` and
    ``wait_s`` are measured, at the last bucket of gradients, as all ranks' steps last equally long. ``overwrite``:
    replace a finished run of this name.

    The folder is begun with the first step, and is "done" once all ranks have left the ``with`` block; an error makes
    the run a failed one. Times of several machines are comparable as far as their clocks agree.

    Raises RunExistsError where a finished run has this folder, ConfigError for steps whose lengths are not known, and
    where several ranks have no process group.
    """

    def __init__(
        self,
        folder: str | Path,
        steps: Iterable[Any],
        *,
        lengths_of: Callable[[Any], Sequence[Any]] | None = None,
        model: Any = None,
        overwrite: bool = False,
    ) -> None:
        if lengths_of is None and isinstance(getattr(steps, "steps", None), Scaled):  # of a balanced loader
            steps = scaled(steps)
        if lengths_of is None and not (isinstance(steps, Scaled) and steps.has_plans):
            raise ConfigError(
                f"Recorder: {type(steps).__name__} has no plans; give ddpsched.scaled(loader) of a BatchSampler or "
                "StepLoader, or lengths_of=, a function of a batch that returns the tokens of each of its samples"
            )
        self.path, self._steps, self._lengths_of, self._overwrite = Path(folder), steps, lengths_of, overwrite
        device = torch.device("cpu") if model is None else next(model.parameters()).device
        self._clock, self._memory = Clock(device), PeakMemory(device)
        self._marks = None if model is None else ReductionMarks(model, self._clock)
        self._world, self._step, self._logged = World(), 0, dict[str, float]()
        self._epoch = -1  # of a loop whose epochs are its iterations
        self._closing = ExitStack()
        self._folder: RunFolder | None = None  # None before the first step
        self._writer: RecordWriter | None = None
        self._labels: dict[str, Any] = {}
        self._zero_s = 0.0

    def log(self, **values: float) -> None:
        """Add this step's ``loss`` (this rank's mean), ``lr`` or ``grad_norm`` to its record; else ConfigError."""
        if odd := set(values) - set(LOGGED):
            raise ConfigError(f"Recorder.log: {', '.join(sorted(odd))} is none of {', '.join(LOGGED)}")
        self._logged = {**self._logged, **{name: float(value) for name, value in values.items()}}

    def __iter__(self) -> Iterator[Any]:
        batches = iter(self._steps)
        self._epoch += 1
        while True:
            begin, started = perf_counter(), StepClock()
            try:
                batch = next(batches)
            except StopIteration:
                return
            data_s = perf_counter() - begin
            columns = self._columns(batch)
            if self._folder is None:
                self._begin(columns)
            self._logged = {}
            self._memory.reset()
            began_s, cpu_s = time(), process_time()
            if self._marks is not None:
                self._marks.begin()
            yield batch
            measured: dict[str, Any] = {} if self._marks is None else {**self._marks.columns()}
            measured |= {
                **started.columns(), **self._logged, "data_s": data_s, "began_at_s": began_s - self._zero_s,
                "cpu_s": process_time() - cpu_s, "peak_memory_bytes": self._memory.read(),
                "step_s": perf_counter() - begin,
            }  # fmt: skip
            record = StepRecord(**self._labels, **columns, **measured)
            assert self._writer is not None
            self._writer.write(record)
            self._step += 1

    def _columns(self, batch: Any) -> dict[str, Any]:
        """Return the columns that the samples of a step decide."""
        steps = self._steps
        if self._lengths_of is None:
            assert isinstance(steps, Scaled)
            source = steps.plan_source
            return {**plan_columns({}, steps.plan, source.world.rank, source.lengths), "step": self._step}
        found = self._lengths_of(batch[0] if isinstance(steps, Scaled) else batch)
        micros = [np.asarray(each, dtype=np.int64) for each in (found if len(found) and np.ndim(found[0]) else [found])]
        micros = [each for each in micros if len(each)]
        count, world = sum(map(len, micros)), World.detect()
        total = self._summed(count, world)
        return {
            "epoch": self._epoch, "step": self._step, "rank": world.rank, "world_size": world.size,
            "num_samples": count, "global_batch": total, "num_tokens": int(sum(each.sum() for each in micros)),
            "padded_tokens": int(sum(len(each) * each.max() for each in micros)),
            "max_length": int(max((each.max() for each in micros), default=0)), "num_microbatches": len(micros),
            "loss_scale": world.size * count / total if total else 0.0,
        }  # fmt: skip

    def _begin(self, first: dict[str, Any]) -> None:
        """Begin the folder, on rank 0, and the records of this rank; all ranks call it."""
        world = self._world = World(first["rank"], first["world_size"])
        name, study, outputs = self.path.name, self.path.parent.name, str(self.path.parent.parent)
        planned = self._steps.plan_source.config if isinstance(self._steps, Scaled) and self._lengths_of is None else {}
        config = {
            "name": name, "study": study, "outputs": outputs, "seed": 0, "world_size": world.size,
            "global_batch": first["global_batch"], "policy": {"kind": "other"}, **planned,
            "executor": {"kind": "distributed"}, "data": {}, "model": {}, "train": {"target": "sample_mean"},
        }  # fmt: skip
        self._labels = {"run": name, "mode": "distributed", "policy": config["policy"]["kind"], "seed": config["seed"]}
        folder = RunFolder(self.path, tomli_w.dumps(config), self._overwrite, words=WORDS)
        self._closing.enter_context(folder.held(world.is_main))
        if world.is_main:
            about = {**self._labels, "world_size": world.size, "global_batch": first["global_batch"]}
            folder.begin(describe() | {"device": str(self._clock.device), "loop": "of its own"}, about=about)
        folder.lock.set_attempt(self._summed(folder.lock.attempt if world.is_main else 0, world))  # and wait for rank 0
        self._zero_s = self._summed(round(time() * 1e6) if world.is_main else 0, world) / 1e6
        self._folder, self._writer = folder, RecordWriter(self.path, world.rank)

    def _summed(self, number: int, world: World) -> int:
        if world.size > 1 and process_group() is None:
            raise ConfigError(
                f"Recorder: {world.size} ranks write one run, but there is no process group by which they begin and "
                "end together; call torch.distributed.init_process_group before"
            )
        return sum_over_ranks(number) if world.size > 1 else number

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        folder, writer = self._folder, self._writer
        if folder is None or writer is None:
            return
        with self._closing:
            writer.close()
            if error is not None:
                folder.failed(f"rank {self._world.rank} failed: {error!r}")
                return
            self._summed(1, self._world)  # all ranks have written their records
            if self._world.is_main:
                folder.done(compact(self.path))
