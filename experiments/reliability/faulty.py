"""One rank of a run that a fault strikes in a phase of a step, else as ``experiments.train``; see ``faults``.

``DDPSCHED_FAULT="KIND PHASE RANK FILE"``: in step 3 of rank RANK. The time of the fault is written to FILE.
"""

import ctypes
import errno
import os
import signal
import sys
import time
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any

from experiments import train

STEP = 3  # from 0
SLEEP_S = 120.0  # of a slow rank: longer than anyone waits
SIGNALS = {
    "SIGKILL": signal.SIGKILL,
    "SIGSTOP": signal.SIGSTOP,
    "SIGTERM": signal.SIGTERM,
    "SIGINT": signal.SIGINT,
}


class Fault:
    """A fault of a ``kind``; ``strike`` is called in the phase that it is for, and acts once."""

    def __init__(self, kind: str, file: str) -> None:
        self.kind, self._file = kind, Path(file)
        self.is_due = self.has_struck = self.fills_disk = False

    def strike(self) -> bool:
        """Act, unless it is not yet due; return whether the caller has to spoil its numbers by a NaN."""
        if not self.is_due:
            return False
        self.is_due, self.has_struck = False, True
        self._file.write_text(str(time.time()))
        if self.kind in SIGNALS:
            os.kill(os.getpid(), SIGNALS[self.kind])
        elif self.kind == "segfault":
            ctypes.string_at(0)
        elif self.kind == "abort":
            os.abort()
        elif self.kind == "exit 0":
            os._exit(0)
        elif self.kind == "exception":
            raise ArithmeticError("planted")
        elif self.kind == "out of memory":
            raise import_module("torch").OutOfMemoryError("planted")
        elif self.kind == "slow rank":
            time.sleep(SLEEP_S)
        elif self.kind == "full disk":
            self.fills_disk = True
        return self.kind == "NaN"


def plant(fault: Fault, phase: str) -> None:
    """Let the fault strike in this phase of step ``STEP`` on this rank."""
    import torch

    from ddpsched.records import RecordWriter
    from ddpsched.training.distributed import DistributedExecutor
    from ddpsched.training.learner import Learner
    from ddpsched.training.optimise import Optimiser

    def around(owner: type, name: str, wrapped: Callable[..., Any]) -> None:
        honest = getattr(owner, name)
        setattr(owner, name, lambda self, *args, **more: wrapped(honest, self, *args, **more))

    def execute(honest: Any, self: Any, plan: Any) -> Any:
        fault.is_due = plan.step == STEP and not fault.has_struck
        return honest(self, plan)

    def loss_sum(honest: Any, self: Any, batch: Any) -> Any:
        spoils = phase == "forward" and fault.strike()
        loss = honest(self, batch)
        if phase == "backward" and fault.is_due:
            layer = next(p for n, p in self.model.named_parameters() if "layer.1.attention.q_lin.weight" in n)

            def in_backward(gradient: torch.Tensor) -> torch.Tensor:
                hook.remove()
                return gradient * torch.nan if fault.strike() else gradient

            hook = layer.register_hook(in_backward)
        return loss * torch.nan if spoils else loss

    def step(honest: Any, self: Any, *args: Any) -> Any:
        spoils = phase == "optimizer" and fault.strike()
        rate = honest(self, *args)
        if spoils:  # this rank's weights, and by them its next loss
            with torch.no_grad():
                self._parameters[0].fill_(torch.nan)
        return rate

    def write(honest: Any, self: Any, *records: Any, **more: Any) -> None:
        if fault.fills_disk:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        honest(self, *records, **more)

    around(DistributedExecutor, "execute", execute)
    around(Learner, "loss_sum", loss_sum)
    around(Optimiser, "step", step)
    around(RecordWriter, "write", write)


if __name__ == "__main__":
    kind, phase, rank, file = os.environ["DDPSCHED_FAULT"].split("|")
    if os.environ["RANK"] == rank:
        plant(Fault(kind, file), phase)
    code = train.main(sys.argv[1:])
    import_module("ddpsched.cli").leave(code)
