"""RankStep: the loss, times and memory of a rank's share of a step, and the columns of a record that follow."""

import math
from dataclasses import dataclass
from typing import Any

import torch

from ddpsched.training.clock import Clock
from ddpsched.training.sync.synchroniser import Collective


@dataclass
class RankStep:
    """The loss, times and memory of a rank's share of a step.

    Marks become seconds only after the step, when the device has passed them.
    """

    begin: Any
    ready: Any  # the last gradient of this rank was computed
    done: Any  # all ranks' gradients were added up
    losses: list[torch.Tensor]  # of each micro-batch, summed over its samples or label tokens, on the device
    spans: dict[str, list[tuple[Any, Any]]]  # marks around each "data", "forward" and "backward", in their order
    cpu_s: float
    peak_memory_bytes: int | None
    collectives: list[Collective]
    barrier: tuple[Any, Any] | None
    sent: torch.Tensor | None  # the largest magnitude that this rank sent of its gradient; None where it sent nothing
    recompiled: str | None  # why the model was compiled in this step; None where it was not

    @property
    def loss_sum(self) -> torch.Tensor:
        """The loss summed over this rank's samples, or label tokens, on the device."""
        return torch.stack([each.double() for each in self.losses]).sum() if self.losses else torch.zeros(())

    @property
    def is_own_gradient_finite(self) -> bool:
        """Whether this rank's share of the gradient was finite before it was added to that of others."""
        return self.sent is None or bool(torch.isfinite(self.sent))

    def columns(self, clock: Clock, count: float) -> dict[str, Any]:
        """Return columns of the record; ``count``: what the rank's loss is divided by, as ``Denominator.count``."""
        return {
            **{f"{name}_s": sum(clock.seconds(*span) for span in spans) for name, spans in self.spans.items()},
            "compute_s": clock.seconds(self.begin, self.ready),
            "barrier_s": None if self.barrier is None else clock.seconds(*self.barrier),
            "comm_s": self._under_way(clock) if self.collectives else None,
            "cpu_s": self.cpu_s,
            "peak_memory_bytes": self.peak_memory_bytes,
            "recompiled": self.recompiled,
            "loss": float(self.loss_sum) / count if count else None,
        }

    def microbatches_s(self, clock: Clock) -> list[float]:
        """Return the seconds of each micro-batch, from its collation to the end of its backward."""
        firsts, lasts = (self.spans[name] for name in ("data", "backward"))
        return [clock.seconds(first, last) for (first, _), (_, last) in zip(firsts, lasts, strict=True)]

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


def repeats(count: int, slowness: float) -> list[int]:
    """Return the samples of each repetition that makes the work on ``count`` samples take ``slowness`` times as long.

    >>> repeats(5, 1.0), repeats(5, 1.5), repeats(5, 3.2)
    ([], [3], [5, 5, 1])
    """
    whole, part = divmod(slowness - 1.0, 1.0)
    rest = math.ceil(round(part * count, 6))  # 1.1 - 1.0 is a little more than 0.1
    return [count] * int(whole) + [rest] * (rest > 0)
