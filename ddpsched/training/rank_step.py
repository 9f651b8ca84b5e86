"""One rank's share of a step: its micro-batches forward and backward, timed and measured."""

import itertools
import math
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from time import process_time
from typing import Any

import torch
from torch.func import functional_call

from ddpsched.plan import Microbatch
from ddpsched.training.clock import Clock, PeakMemory, return_freed_memory
from ddpsched.training.collate import Batch, Collator, without_trace
from ddpsched.training.loss import loss_sum
from ddpsched.training.sync import Synchroniser
from ddpsched.training.sync.collective_log import Collective


@dataclass
class RankStep:
    """What came of it. Marks become seconds only after the step, when the device has passed them."""

    begin: Any
    ready: Any  # the last gradient of this rank is there
    done: Any  # all ranks' gradients are in
    loss_sum: torch.Tensor  # of this rank's samples, or label tokens, on the device
    data: list[tuple[Any, Any]]
    forward: list[tuple[Any, Any]]
    backward: list[tuple[Any, Any]]
    cpu_s: float
    peak_memory_bytes: int | None
    collectives: list[Collective]
    barrier: tuple[Any, Any] | None

    def columns(self, clock: Clock, count: int) -> dict[str, Any]:
        """Columns of the record; ``count``: of what the loss is the sum, samples or label tokens."""
        return {
            "data_s": sum(clock.seconds(*span) for span in self.data),
            "forward_s": sum(clock.seconds(*span) for span in self.forward),
            "backward_s": sum(clock.seconds(*span) for span in self.backward),
            "compute_s": clock.seconds(self.begin, self.ready),
            "barrier_s": None if self.barrier is None else clock.seconds(*self.barrier),
            "comm_s": self._under_way(clock) if self.collectives else None,
            "cpu_s": self.cpu_s,
            "peak_memory_bytes": self.peak_memory_bytes,
            "loss": float(self.loss_sum) / count if count else None,
        }

    def _under_way(self, clock: Clock) -> float:
        """Seconds in which at least one collective was."""
        total, until = 0.0, 0.0
        for collective in self.collectives:  # in the order of their launch
            begin, end = (clock.seconds(self.begin, mark) for mark in (collective.launched, collective.done))
            total += max(0.0, end - max(begin, until))
            until = max(until, end)
        return total

    def times(self, clock: Clock, zero_s: float) -> dict[str, Any]:
        """When things began and ended, in seconds of the host's clock from ``zero_s``: a line of the timeline."""

        def at(mark: Any) -> float:
            return round(clock.host_s(mark) - zero_s, 7)

        micro = zip(self.data, self.forward, self.backward, strict=True)
        return {
            "microbatches": [[at(d[0]), at(f[0]), at(b[0]), at(b[1])] for d, f, b in micro],
            "collectives": [[c.label, c.num_bytes, at(c.launched), at(c.done)] for c in self.collectives],
            "ready": at(self.ready),
            "done": at(self.done),
        }


class RankStepper:
    """Runs micro-batches through one model.

    ``autocast`` is the dtype of mixed precision, or None for the model's own.
    ``bounded``: plans keep to a memory budget, so a step begins with what is really
    in use. ``sync`` adds the gradients to other ranks'; forward goes through its
    wrapping of the model.
    """

    def __init__(
        self,
        model: torch.nn.Module,
        collate: Collator,
        clock: Clock,
        autocast: Any,
        bounded: bool = False,
        sync: Synchroniser | None = None,
    ) -> None:
        self.clock, self._memory = clock, PeakMemory(clock.device)
        self._model, self._collate, self._sync = model, collate, sync
        self._module = model if sync is None else sync.module
        self._device, self._autocast = clock.device, autocast
        self._trims = bounded and clock.device.type == "cpu"

    def loss_sum(self, batch: Batch) -> torch.Tensor:
        """Forward: the summed loss of a micro-batch."""
        return self._loss_sum(self._module, batch)

    def _loss_sum(self, forward: Callable[..., Any], batch: Batch) -> torch.Tensor:
        mixed = torch.autocast(self._device.type, self._autocast) if self._autocast else nullcontext()
        with mixed:
            logits = forward(**batch.inputs).logits
        return loss_sum(logits, batch.labels, batch.weights)

    def warm_up(self) -> None:
        """One synthetic forward and backward: first calls allocate and compile, and would be charged to rank 0."""
        self.loss_sum(self._collate.synthetic(2, 8)).backward()
        self._module.zero_grad(set_to_none=True)

    def run(
        self,
        microbatches: Sequence[Microbatch],
        scale: Callable[[], float],
        seed: int,
        slowness: float = 1.0,
    ) -> RankStep:
        """Add ``scale()`` times the gradient of the summed loss to the model's.

        The scale is asked for after the first forward: it may have to be waited for, as label tokens are added up over
        ranks meanwhile. That wait is in the backward's time, as waits for other ranks are.

        With a synchroniser the last backward also sets the gradients under way; a rank
        without samples runs a synthetic one at weight 0 where it needs a backward.
        ``seed`` fixes dropout by step and rank, so that executors draw the same masks.
        ``slowness``: how many times as long this rank's work is to take, at least 1.
        """
        torch.manual_seed(seed)
        if self._trims:
            return_freed_memory()
        self._memory.reset()
        mark, sync = self.clock.mark, self._sync
        spans: tuple[list[Any], list[Any], list[Any]] = ([], [], [])  # data, forward, backward
        total = torch.zeros((), device=self._device, dtype=torch.float64)
        begin, cpu = self.clock.anchor(), process_time()
        for position, micro in enumerate(microbatches):
            last = position == len(microbatches) - 1
            with nullcontext() if sync is None else sync.synchronise() if last else sync.accumulate():
                # before the real work, as compute ends when its last gradient is ready
                for extra in repeats(len(micro), slowness):
                    _add(spans, self._in_vain(micro, extra))
                marks = [mark()]
                batch = self._collate(micro.ids, micro.packed, micro.pad_to)
                marks.append(mark())
                loss = self.loss_sum(batch)
                marks.append(mark())
                (loss * scale()).backward()
                marks.append(mark())
            total += loss.detach()
            _add(spans, marks)
        if sync is not None:
            if not microbatches and sync.needs_backward:
                with without_trace(self._module), sync.synchronise():
                    (self.loss_sum(self._collate.synthetic(1, 4)) * 0.0).backward()
            sync.wait()
        done = mark()
        return RankStep(
            begin,
            done if sync is None else sync.ready,
            done,
            total,
            *spans,
            process_time() - cpu,
            self._memory.read(),
            [] if sync is None else sync.traffic.take(),
            None if sync is None else sync.barrier,
        )

    def _in_vain(self, micro: Microbatch, count: int) -> list[Any]:
        """Collate, forward and backward of ``count`` of these samples, without a trace; the four marks around them.

        ``torch.autograd.grad`` returns the gradients instead of adding them to the
        model's, so no hook of a synchroniser fires.
        """
        parameters = [p for p in self._model.parameters() if p.requires_grad]
        buffers = {name: buffer.clone() for name, buffer in self._model.named_buffers()}
        devices = [self._device] if self._device.type == "cuda" else []
        with torch.random.fork_rng(devices):  # dropout of the real work is drawn as if this had not been
            marks = [self.clock.mark()]
            batch = self._collate(self._collate.some(micro.ids, count), micro.packed, micro.pad_to)
            marks.append(self.clock.mark())
            loss = self._loss_sum(lambda **inputs: functional_call(self._model, buffers, kwargs=inputs), batch)
            marks.append(self.clock.mark())
            torch.autograd.grad(loss, parameters, allow_unused=True)
            marks.append(self.clock.mark())
        return marks


def repeats(count: int, slowness: float) -> list[int]:
    """Samples of each repetition that makes the work on ``count`` samples take ``slowness`` times as long.

    >>> repeats(5, 1.0), repeats(5, 1.5), repeats(5, 3.2)
    ([], [3], [5, 5, 1])
    """
    whole, part = divmod(slowness - 1.0, 1.0)
    rest = math.ceil(round(part * count, 6))  # 1.1 - 1.0 is a little more than 0.1
    return [count] * int(whole) + [rest] * (rest > 0)


def _add(spans: Sequence[list[Any]], marks: Sequence[Any]) -> None:
    """One stretch to each list of ``spans`` from the marks between them."""
    for span, pair in zip(spans, itertools.pairwise(marks), strict=True):
        span.append(pair)
