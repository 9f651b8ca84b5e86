"""A step's collectives of gradients: launched, stamped, waited for."""

from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist

from ddpsched.config import SyncConfig
from ddpsched.training.clock import Clock


def wire_dtype(config: SyncConfig) -> torch.dtype | None:
    """In which dtype gradients travel; None for the one that they are kept in."""
    return {"float32": None, "bfloat16": torch.bfloat16, "float16": torch.float16}[config.precision]


@dataclass
class Collective:
    """One all-reduce: marks of this rank's clock around it, ``done`` None while it is under way."""

    label: str
    num_bytes: int  # sent by this rank
    launched: Any
    done: Any = None


class Traffic:
    """Adds tensors up over ranks, in place and asynchronously, in ``dtype`` if one is given.

    All ranks must ask for the same tensors in the same order: gloo and NCCL match
    collectives by their order alone, and a mismatch can be silent.
    """

    def __init__(self, clock: Clock, dtype: torch.dtype | None = None) -> None:
        self._clock, self._dtype = clock, dtype
        self._pending: list[tuple[dist.Work, torch.Tensor, torch.Tensor, Collective]] = []
        self._log: list[Collective] = []

    def add(self, label: str, tensor: torch.Tensor) -> None:
        """Begin to replace ``tensor`` by its sum over ranks; it must not be touched before ``wait``."""
        sent = tensor if self._dtype in (None, tensor.dtype) else tensor.to(self._dtype)
        collective = self.launched(label, sent)
        work = dist.all_reduce(sent, async_op=True)
        work.get_future().add_done_callback(lambda _: self.finished(collective))
        self._pending.append((work, tensor, sent, collective))

    def launched(self, label: str, sent: torch.Tensor) -> Collective:
        """Note a collective that begins now."""
        collective = Collective(label, sent.numel() * sent.element_size(), self._clock.mark())
        self._log.append(collective)
        return collective

    def finished(self, collective: Collective) -> None:
        """Note its end, unless that is known already."""
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
        """The step's collectives in the order of their launch; the log is empty then."""
        log, self._log = self._log, []
        return log
