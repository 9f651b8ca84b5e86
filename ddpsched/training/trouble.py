"""Which error is an out-of-memory one, on which device ever."""

import torch

from ddpsched.planning.messages import Flag


def flag_of(error: Exception) -> Flag:
    """What a rank votes after ``error`` broke off its step.

    CUDA raises OutOfMemoryError; the CPU allocator a RuntimeError with these words.
    """
    text = str(error)
    allocator = "DefaultCPUAllocator" in text and ("memory" in text)
    if isinstance(error, (torch.OutOfMemoryError, MemoryError)) or allocator:
        return Flag.OUT_OF_MEMORY
    return Flag.FAILED
