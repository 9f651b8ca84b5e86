"""Time and peak memory of a stretch of work, on a CPU or a CUDA device."""

import ctypes
import sys
from pathlib import Path
from time import perf_counter
from typing import Any

import torch


class Clock:
    """Marks in time that can be subtracted once the device has passed them.

    On a CPU a mark is a number; on CUDA it is an event in the stream, so that
    marking never makes the host wait for the device.
    """

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self._cuda = device.type == "cuda"
        self._anchor: tuple[Any, float] = (None, 0.0)

    def anchor(self) -> Any:
        """A mark whose host time is known; to be called while the device is idle."""
        now = perf_counter()
        self._anchor = self.mark() if self._cuda else now, now
        return self._anchor[0]

    def host_s(self, mark: Any) -> float:
        """When a mark was passed, on the host's ``perf_counter``; right to some microseconds after the last anchor."""
        begin, now = self._anchor
        return now + self.seconds(begin, mark) if self._cuda else mark

    def mark(self) -> Any:
        if not self._cuda:
            return perf_counter()
        event = torch.cuda.Event(enable_timing=True)
        event.record()
        return event

    def seconds(self, begin: Any, end: Any) -> float:
        """From one mark to another; on CUDA waits until the device has reached the second."""
        if not self._cuda:
            return end - begin
        end.synchronize()
        return begin.elapsed_time(end) / 1e3


class PeakMemory:
    """The highest memory in use since ``reset``, in bytes.

    CUDA: the allocator's peak. Linux without CUDA: the process's peak resident
    set, whose mark the kernel resets when 5 is written to clear_refs. Elsewhere None.
    """

    _CLEAR, _STATUS = Path("/proc/self/clear_refs"), Path("/proc/self/status")

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._linux = self._CLEAR.exists()

    def reset(self) -> None:
        if self._device.type == "cuda":
            torch.cuda.reset_peak_memory_stats(self._device)
        elif self._linux:
            try:
                self._CLEAR.write_text("5")
            except OSError:  # a sandbox may forbid it; a peak that cannot be reset is no peak of a step
                self._linux = False

    def read(self) -> int | None:
        if self._device.type == "cuda":
            return torch.cuda.max_memory_allocated(self._device)
        if not self._linux:
            return None
        for line in self._STATUS.read_text().splitlines():
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) * 1024
        return None


def return_freed_memory() -> None:
    """glibc keeps what was freed: give it back, or the next peak holds what steps before it needed. Some 8 ms."""
    if sys.platform == "linux":
        trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
        if trim is not None:
            trim(0)
