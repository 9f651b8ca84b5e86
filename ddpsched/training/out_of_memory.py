"""Which errors are out-of-memory ones, on any device."""

import torch

from ddpsched.exchange import Flag


def is_out_of_memory(error: BaseException) -> bool:
    """Return whether memory ran out; the CPU allocator's RuntimeError is known by its words alone."""
    text = str(error)
    allocator = isinstance(error, RuntimeError) and "DefaultCPUAllocator" in text and "memory" in text
    return allocator or isinstance(error, (torch.OutOfMemoryError, MemoryError))


def flag_of(error: Exception) -> Flag:
    """Return the flag that a rank votes with after ``error`` broke off its step."""
    return Flag.OUT_OF_MEMORY if is_out_of_memory(error) else Flag.FAILED
