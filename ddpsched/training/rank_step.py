"""One rank's share of a step: its micro-batches forward and backward, timed and measured."""

import itertools
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from time import process_time
from typing import Any

import torch

from ddpsched.plan import Microbatch
from ddpsched.training.clock import Clock, PeakMemory
from ddpsched.training.data import Batch, Collator, synthetic_batch
from ddpsched.training.loss import loss_sum
from ddpsched.training.sync import Synchroniser


@dataclass
class RankStep:
    """What came of it. Marks become seconds only after the step, when the device has passed them."""

    begin: Any
    ready: Any
    loss_sum: torch.Tensor  # of this rank's samples, on the device
    data: list[tuple[Any, Any]]
    forward: list[tuple[Any, Any]]
    backward: list[tuple[Any, Any]]
    cpu_s: float
    peak_memory_bytes: int | None

    def columns(self, clock: Clock, count: int) -> dict[str, Any]:
        """Columns of the record."""
        return {
            "data_s": sum(clock.seconds(*span) for span in self.data),
            "forward_s": sum(clock.seconds(*span) for span in self.forward),
            "backward_s": sum(clock.seconds(*span) for span in self.backward),
            "compute_s": clock.seconds(self.begin, self.ready),
            "cpu_s": self.cpu_s,
            "peak_memory_bytes": self.peak_memory_bytes,
            "loss": float(self.loss_sum) / count if count else None,
        }


class RankStepper:
    """Runs micro-batches through one model.

    ``autocast`` is the dtype of mixed precision, or None for the model's own.
    """

    def __init__(self, module: torch.nn.Module, collate: Collator, device: torch.device, autocast: Any) -> None:
        self.clock, self._memory = Clock(device), PeakMemory(device)
        self._module, self._collate = module, collate
        self._device, self._autocast = device, autocast

    def loss_sum(self, batch: Batch) -> torch.Tensor:
        """Forward: the summed loss of a micro-batch."""
        mixed = torch.autocast(self._device.type, self._autocast) if self._autocast else nullcontext()
        with mixed:
            logits = self._module(input_ids=batch.input_ids, attention_mask=batch.attention_mask).logits
        return loss_sum(logits, batch.labels)

    def warm_up(self) -> None:
        """One synthetic forward and backward: first calls allocate and compile, and would be charged to rank 0."""
        self.loss_sum(synthetic_batch(2, 8, self._device)).backward()
        self._module.zero_grad(set_to_none=True)

    def run(
        self, microbatches: Sequence[Microbatch], scale: float, seed: int, sync: Synchroniser | None = None
    ) -> RankStep:
        """Add ``scale`` times the gradient of the summed loss to the model's.

        With a synchroniser the last backward also reduces; a rank without samples
        runs a synthetic one at weight 0 where the synchroniser needs a backward.
        ``seed`` fixes dropout by step and rank, so that executors draw the same masks.
        """
        torch.manual_seed(seed)
        self._memory.reset()
        mark = self.clock.mark
        spans: tuple[list[Any], list[Any], list[Any]] = ([], [], [])  # data, forward, backward
        total = torch.zeros((), device=self._device, dtype=torch.float64)
        begin, cpu = mark(), process_time()
        for position, micro in enumerate(microbatches):
            last = position == len(microbatches) - 1
            with nullcontext() if sync is None or last else sync.accumulate():
                marks = [mark()]
                batch = self._collate(micro.ids)
                marks.append(mark())
                loss = self.loss_sum(batch)
                marks.append(mark())
                (loss * scale).backward()
                marks.append(mark())
            total += loss.detach()
            for span, pair in zip(spans, itertools.pairwise(marks), strict=True):
                span.append(pair)
        if sync is not None:
            if not microbatches and sync.needs_backward:
                (self.loss_sum(synthetic_batch(1, 4, self._device)) * 0.0).backward()
            sync.synchronise()
        ready = mark() if sync is None else sync.ready_mark()
        data, forward, backward = spans
        return RankStep(begin, ready, total, data, forward, backward, process_time() - cpu, self._memory.read())
