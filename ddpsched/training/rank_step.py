"""One rank's share of a step: its micro-batches forward and backward, timed and measured."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from time import process_time
from typing import Any

import torch
from torch.func import functional_call

from ddpsched.plan import Microbatch
from ddpsched.training.clock import Clock, PeakMemory, return_freed_memory
from ddpsched.training.collate import Batch, Collator, without_trace
from ddpsched.training.loss import loss_sum
from ddpsched.training.out_of_memory import is_out_of_memory
from ddpsched.training.sync import Synchroniser
from ddpsched.training.sync.collective_log import Collective


@dataclass
class RankStep:
    """The loss, times and memory of a rank's share of a step.

    Marks become seconds only after the step, when the device has passed them.
    """

    begin: Any
    ready: Any  # the last gradient of this rank was computed
    done: Any  # all ranks' gradients were added up
    loss_sum: torch.Tensor  # of this rank's samples, or label tokens, on the device
    spans: dict[str, list[tuple[Any, Any]]]  # marks around each "data", "forward" and "backward", in their order
    cpu_s: float
    peak_memory_bytes: int | None
    collectives: list[Collective]
    barrier: tuple[Any, Any] | None

    def columns(self, clock: Clock, count: int) -> dict[str, Any]:
        """Return columns of the record; ``count``: the samples, or label tokens, that the loss is the sum of."""
        return {
            **{f"{name}_s": sum(clock.seconds(*span) for span in spans) for name, spans in self.spans.items()},
            "compute_s": clock.seconds(self.begin, self.ready),
            "barrier_s": None if self.barrier is None else clock.seconds(*self.barrier),
            "comm_s": self._under_way(clock) if self.collectives else None,
            "cpu_s": self.cpu_s,
            "peak_memory_bytes": self.peak_memory_bytes,
            "loss": float(self.loss_sum) / count if count else None,
        }

    def _under_way(self, clock: Clock) -> float:
        """Return the seconds in which at least one collective was under way."""
        total, until = 0.0, 0.0
        for collective in self.collectives:  # in the order of their launch
            begin, end = (clock.seconds(self.begin, mark) for mark in (collective.launched, collective.done))
            total += max(0.0, end - max(begin, until))
            until = max(until, end)
        return total

    def times(self, clock: Clock, zero_s: float) -> dict[str, Any]:
        """Return a line of the timeline: when each part began and ended, in seconds of the host's clock."""

        def at(mark: Any) -> float:
            return round(clock.host_s(mark) - zero_s, 7)

        micro = zip(*self.spans.values(), strict=True)
        return {
            "microbatches": [[at(d[0]), at(f[0]), at(b[0]), at(b[1])] for d, f, b in micro],
            "collectives": [[c.label, c.num_bytes, at(c.launched), at(c.done)] for c in self.collectives],
            "ready": at(self.ready),
            "done": at(self.done),
        }


class RankStepper:
    """Micro-batches run through one model.

    ``autocast``: the dtype of mixed precision, or None for the model's dtype.
    ``bounded``: plans keep to a memory budget, so each step first returns memory that
    is not in use. ``sync`` adds up the gradients of all ranks, and its module's
    forward takes the place of the model's; None for a process that has all samples.
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
        self._model, self._collate, self._sync = model, collate, sync or Synchroniser(model, clock)
        self._device, self._autocast = clock.device, autocast
        self._trims = bounded and clock.device.type == "cpu"

    def loss_sum(self, batch: Batch) -> torch.Tensor:
        """Run forward and return the summed loss of a micro-batch."""
        return self._loss_sum(self._sync.module, batch)

    def _loss_sum(self, forward: Callable[..., Any], batch: Batch) -> torch.Tensor:
        with torch.autocast(self._device.type, self._autocast, enabled=self._autocast is not None):
            logits = forward(**batch.inputs).logits
        return loss_sum(logits, batch.labels, batch.weights)

    def warm_up(self) -> None:
        """Run one synthetic forward and backward: first calls allocate and compile, which counts in no step."""
        self.loss_sum(self._collate.synthetic(2, 8)).backward()
        self._model.zero_grad(set_to_none=True)

    def fits(self, count: int, length: int, shorter: int = 0) -> bool:
        """Return whether the device has the memory for forward and backward of a synthetic batch; gradients stay.

        ``count``, ``length``, ``shorter``: as in ``Collator.synthetic``.
        """
        try:
            self.loss_sum(self._collate.synthetic(count, length, shorter)).backward()
        except Exception as error:
            if not is_out_of_memory(error):
                raise
            if self._device.type == "cuda":
                torch.cuda.empty_cache()
            return False
        if self._device.type == "cuda":
            torch.cuda.synchronize(self._device)
        return True

    def run(
        self, microbatches: Sequence[Microbatch], scale: Callable[[], float], seed: int, slowness: float = 1.0
    ) -> RankStep:
        """Add ``scale()`` times the gradient of the summed loss to the model's; return the rank's loss and times.

        ``scale`` is called after the first forward: it may have to wait, as label tokens
        are added up over ranks meanwhile. That wait is in the backward's time, as waits
        for other ranks are. With a synchroniser the last backward also starts the
        exchange of gradients; a rank without samples runs a synthetic one at weight 0
        where the synchroniser needs a backward.
        ``seed`` fixes dropout by step and rank, so that executors draw the same masks.
        ``slowness``: how many times as long this rank's work is to take, at least 1.
        """
        torch.manual_seed(seed)
        if self._trims:
            return_freed_memory()
        self._memory.reset()
        sync = self._sync
        self._spans: dict[str, list[Any]] = {"data": [], "forward": [], "backward": []}
        total = torch.zeros((), device=self._device, dtype=torch.float64)
        begin, cpu = self.clock.anchor(), process_time()
        for position, micro in enumerate(microbatches):
            last = position == len(microbatches) - 1
            with sync.synchronise() if last else sync.accumulate():
                # before the real work, as compute ends when its last gradient is ready
                for extra in repeats(len(micro), slowness):
                    self._run_without_effect(micro, extra)
                collate = partial(self._collate, micro.ids, micro.packed, micro.pad_to)
                total += self._run_timed(collate, self.loss_sum, lambda loss: (loss * scale()).backward())
        if not microbatches and sync.needs_backward:
            with without_trace(sync.module), sync.synchronise():
                (self.loss_sum(self._collate.synthetic(1, 4)) * 0.0).backward()
        sync.wait()
        done = self.clock.mark()
        return RankStep(
            begin=begin,
            ready=sync.ready,
            done=done,
            loss_sum=total,
            spans=self._spans,
            cpu_s=process_time() - cpu,
            peak_memory_bytes=self._memory.read(),
            collectives=sync.log.take(),
            barrier=sync.barrier,
        )

    def _run_timed(self, collate: Callable[[], Batch], forward: Callable, backward: Callable) -> torch.Tensor:
        """Run the three on a micro-batch, each on what the one before returned, with marks; return the loss."""
        marks = [self.clock.mark()]
        batch = collate()
        marks.append(self.clock.mark())
        loss = forward(batch)
        marks.append(self.clock.mark())
        backward(loss)
        marks.append(self.clock.mark())
        for span, pair in zip(self._spans.values(), pairwise(marks), strict=True):
            span.append(pair)
        return loss.detach()

    def _run_without_effect(self, micro: Microbatch, count: int) -> None:
        """Run ``count`` samples of a micro-batch without an effect on gradients, buffers or random numbers.

        ``torch.autograd.grad`` returns the gradients instead of adding them to the
        model's, so no hook of a synchroniser runs.
        """
        parameters = [p for p in self._model.parameters() if p.requires_grad]
        buffers = {name: buffer.clone() for name, buffer in self._model.named_buffers()}
        devices = [self._device] if self._device.type == "cuda" else []
        with torch.random.fork_rng(devices):  # dropout of the real work is drawn as if this had not been
            self._run_timed(
                lambda: self._collate(self._collate.some(micro.ids, count), micro.packed, micro.pad_to),
                partial(self._loss_sum, lambda **inputs: functional_call(self._model, buffers, kwargs=inputs)),
                partial(torch.autograd.grad, inputs=parameters, allow_unused=True),
            )


def repeats(count: int, slowness: float) -> list[int]:
    """Return the samples of each repetition that makes the work on ``count`` samples take ``slowness`` times as long.

    >>> repeats(5, 1.0), repeats(5, 1.5), repeats(5, 3.2)
    ([], [3], [5, 5, 1])
    """
    whole, part = divmod(slowness - 1.0, 1.0)
    rest = math.ceil(round(part * count, 6))  # 1.1 - 1.0 is a little more than 0.1
    return [count] * int(whole) + [rest] * (rest > 0)
