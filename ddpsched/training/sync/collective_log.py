"""A step's collectives of gradients: launched, timed, waited for."""

from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist

from ddpsched.training.clock import Clock

# in which dtype gradients are sent, by sync.precision of a config; None for the one that they are kept in
WIRE_DTYPES: dict[str, torch.dtype | None] = {"float32": None, "bfloat16": torch.bfloat16, "float16": torch.float16}


@dataclass
class Collective:
    """One all-reduce, between two marks of this rank's clock; ``done`` is None until it has ended."""

    label: str
    num_bytes: int  # sent by this rank
    launched: Any
    done: Any = None


class CollectiveLog:
    """The collectives of one step. It also launches all-reduces itself, in place and asynchronously.

    ``dtype``: in which tensors are sent; None for each tensor's own. All ranks must
    add the same tensors in the same order: gloo and NCCL match collectives by their
    order alone, and a mismatch can go unnoticed.
    """

    def __init__(self, clock: Clock, dtype: torch.dtype | None = None) -> None:
        self._clock, self.dtype = clock, dtype
        self._pending: list[tuple[dist.Work, torch.Tensor, torch.Tensor, Collective]] = []
        self._log: list[Collective] = []

    def cast(self, tensor: torch.Tensor) -> torch.Tensor:
        """Return ``tensor`` in the dtype in which it is sent; the tensor itself where it has that already."""
        return tensor if self.dtype is None else tensor.to(self.dtype)

    def add(self, label: str, tensor: torch.Tensor) -> None:
        """Begin to replace ``tensor`` by its sum over ranks; it must not be touched before ``wait``."""
        sent = self.cast(tensor)
        collective = self.launched(label, sent)
        work = dist.all_reduce(sent, async_op=True)
        work.get_future().add_done_callback(lambda _: self.finished(collective))
        self._pending.append((work, tensor, sent, collective))

    def launched(self, label: str, sent: torch.Tensor) -> Collective:
        """Record a collective that begins now."""
        self._log.append(Collective(label, sent.nbytes, self._clock.mark()))
        return self._log[-1]

    def finished(self, collective: Collective) -> None:
        """Record its end, unless that is recorded already."""
        if collective.done is None:
            collective.done = self._clock.mark()

    def wait(self) -> None:
        """Return when every sum is in place (on CUDA: when the stream will have them)."""
        pending, self._pending = self._pending, []
        for work, tensor, sent, collective in pending:
            work.wait()
            self.finished(collective)  # the callback may not have run yet
            if sent is not tensor:
                tensor.copy_(sent)

    def take(self) -> list[Collective]:
        """Return the step's collectives in the order of their launch, and empty the log."""
        log, self._log = self._log, []
        return log
