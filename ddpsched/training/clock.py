"""The device of a rank, a CPU or a CUDA one; time and peak memory of a stretch of work on it."""

import ctypes
import os
import sys
import weakref
from contextlib import suppress
from time import perf_counter, time
from typing import Any

import torch

from ddpsched.config import RunConfig
from ddpsched.environment import stolen_s
from ddpsched.errors import ConfigError


def pick_device(config: RunConfig, local_rank: int) -> torch.device:
    """Return the device that the config asks for; raise ConfigError where this machine has none for ``local_rank``."""
    wanted = config.executor.device
    if wanted == "cuda" and not torch.cuda.is_available():
        raise ConfigError('executor.device = "cuda", but torch sees no CUDA device; use "cpu" or "auto"')
    if wanted == "cpu" or not torch.cuda.is_available():
        return torch.device("cpu")
    if local_rank >= torch.cuda.device_count():
        raise ConfigError(
            f"local rank {local_rank} needs a CUDA device for itself, and there are {torch.cuda.device_count()} here; "
            'start fewer ranks, or use executor.kind = "virtual", or executor.device = "cpu"'
        )
    return torch.device("cuda", local_rank)


class Clock:
    """Marks in time, which can be subtracted once the device has passed them.

    On a CPU a mark is a number; on CUDA it is an event in the stream, so that
    marking never makes the host wait for the device.
    """

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self._cuda = device.type == "cuda"
        self._anchor: tuple[Any, float] = (None, 0.0)

    def anchor(self) -> Any:
        """Return a mark whose host time is known; to be called while the device is idle."""
        now = perf_counter()
        self._anchor = self.mark() if self._cuda else now, now
        return self._anchor[0]

    def host_s(self, mark: Any) -> float:
        """Return when a mark was passed, by the host's ``perf_counter``; exact to microseconds after an anchor."""
        begin, now = self._anchor
        return now + self.seconds(begin, mark) if self._cuda else mark

    def mark(self) -> Any:
        """Return the present moment; on CUDA an event that the stream has still to reach."""
        if not self._cuda:
            return perf_counter()
        event = torch.cuda.Event(enable_timing=True)
        event.record()
        return event

    def seconds(self, begin: Any, end: Any) -> float:
        """Return the seconds from one mark to another; on CUDA wait until the device has reached the second."""
        if not self._cuda:
            return end - begin
        end.synchronize()
        return begin.elapsed_time(end) / 1e3


class StepClock:
    """The moment at which a step began, and the processor time stolen from this machine since.

    Stolen is what a virtual machine was ready to use and its host gave to others; Linux counts it in hundredths of a
    second, over all processors, so that short steps mostly show none.
    """

    def __init__(self) -> None:
        self._unix_s, self._stolen_s = time(), stolen_s()

    def columns(self) -> dict[str, Any]:
        """Return columns of the record, at the end of the step."""
        now = stolen_s()
        steal_s = None if now is None or self._stolen_s is None else now - self._stolen_s
        return {"unix_s": self._unix_s, "steal_s": steal_s}


class PeakMemory:
    """The highest memory in use since ``reset``, in bytes.

    CUDA: the allocator's peak. Linux without CUDA: the process's peak resident
    set, whose mark the kernel resets when 5 is written to clear_refs. Elsewhere None.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._clear: int | None = None
        if device.type != "cuda" and sys.platform == "linux":
            with suppress(OSError):  # a sandbox may forbid it; a peak that cannot be reset is not the peak of a step
                # kept open: opening them took longer than all else that is measured of a step
                self._clear = os.open("/proc/self/clear_refs", os.O_WRONLY | os.O_CLOEXEC)
                self._status = os.open("/proc/self/status", os.O_RDONLY | os.O_CLOEXEC)
                for descriptor in (self._clear, self._status):
                    weakref.finalize(self, os.close, descriptor)

    def reset(self) -> None:
        """Begin anew with the memory that is in use now."""
        if self._device.type == "cuda":
            torch.cuda.reset_peak_memory_stats(self._device)
        elif self._clear is not None:
            try:
                os.write(self._clear, b"5")
            except OSError:
                self._clear = None

    def read(self) -> int | None:
        """Return the peak in bytes; None where this system does not report it."""
        if self._device.type == "cuda":
            return torch.cuda.max_memory_allocated(self._device)
        if self._clear is None:
            return None
        _, label, rest = os.pread(self._status, 8192, 0).partition(b"VmHWM:")
        return int(rest.split()[0]) * 1024 if label else None


def return_freed_memory() -> None:
    """Let glibc return what was freed to the system, which takes some 8 ms; else it counts in the next peak."""
    if sys.platform == "linux":
        trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
        if trim is not None:
            trim(0)
