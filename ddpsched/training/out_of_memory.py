"""Which error is an out-of-memory one, on which device ever."""

import torch

from ddpsched.exchange import Flag


def is_out_of_memory(error: BaseException) -> bool:
    """CUDA raises OutOfMemoryError; the CPU allocator a RuntimeError with these words."""
    text = str(error)
    allocator = isinstance(error, RuntimeError) and "DefaultCPUAllocator" in text and "memory" in text
    return allocator or isinstance(error, (torch.OutOfMemoryError, MemoryError))


def flag_of(error: Exception) -> Flag:
    """What a rank votes after ``error`` broke off its step."""
    return Flag.OUT_OF_MEMORY if is_out_of_memory(error) else Flag.FAILED
