"""How many samples of the longest length a rank has memory for (b_max), measured at start-up.

Synthetic batches of ``data.max_length`` tokens grow by doubling. Their peak memory
is a line in the count, whose slope shows where the budget ends. The optimizer's
state and the synchroniser's buffers are allocated before, so they count.
"""

import numpy as np
import torch

from ddpsched.config import RunConfig
from ddpsched.costs.calibration import Calibration
from ddpsched.errors import ConfigError, InfeasibleError
from ddpsched.training.clock import PeakMemory, return_freed_memory
from ddpsched.training.learner import Learner

SMALL = (1, 4)  # count and length of a micro-batch that shows the other memory of a process
# oneDNN keeps some 0.08 MB for each shape it has met, up to 1,024 of them: a run meets more than a calibration does
CPU_STOCK = 80 * 2**20
CUDA_SHARE = 0.9  # of the device's memory, where no budget is given


def allowance(learner: Learner, config: RunConfig, taken_bytes: int = 0) -> int | None:
    """Return the limit that planning gets for a rank: bytes with a calibration, a count of samples with the probe.

    ``taken_bytes``: held by this rank but not by the calibration's process. One small
    micro-batch is measured and compared with the calibrated model; where it shows
    more, that counts. None where neither is asked for.
    """
    if config.memory.path is None:
        return max_count(learner, config) if config.memory.probe else None
    memory = Calibration.load(config.memory.path).memory
    return_freed_memory()
    held = _peak(learner, *SMALL)
    learner.optimiser.clear()
    beyond = max(taken_bytes, 0 if held is None else held - int(memory.bytes(*SMALL)))
    return _budget(learner.device, config) - beyond - (CPU_STOCK if learner.device.type == "cpu" else 0)


def max_count(learner: Learner, config: RunConfig) -> int:
    """Return the most samples of ``data.max_length`` tokens whose forward and backward stay within the budget.

    At most the largest count a plan could give to a rank. Raises InfeasibleError where
    not even one fits, ConfigError where a CPU has no budget to measure against.
    """
    budget = _budget(learner.device, config)
    limit, length = config.global_batch - config.world_size + 1, config.data.max_length
    points: list[tuple[int, int]] = []  # (count, bytes) that stayed within the budget
    too_many = limit + 1
    for count in (*(2**power for power in range((limit - 1).bit_length())), limit):
        if count >= too_many:
            break
        peak = _peak(learner, count, length)
        if peak is None or peak > budget:
            too_many = count
            break
        points.append((count, peak))
        if len(points) > 1:
            too_many = min(too_many, _on_the_line(points, budget) + 1)
    learner.optimiser.clear()
    if not points:
        needs = "more than the device has" if peak is None else f"{peak:,} bytes"
        raise InfeasibleError(
            f"one sample of {length} tokens needs {needs}, the budget is {budget:,} bytes; "
            "raise memory.budget_bytes, lower data.max_length, or take a smaller model"
        )
    largest = points[-1][0]
    if peak is None or len(points) == 1:
        return largest  # the device itself ran out beyond it, or one point is no line
    return max(largest, min(too_many - 1, _on_the_line(points, budget)))


def _on_the_line(points: list[tuple[int, int]], budget: int) -> int:
    """Return the largest count on the line through the measured points that stays within the budget."""
    counts, peaks = np.array(points, dtype=np.float64).T
    slope, base = np.polyfit(counts, peaks, 1)
    if slope <= 0:  # a plateau (memory reused from before) does not show the limit yet
        return 2 * points[-1][0]
    return int((budget - base) / slope + 1e-6)


def _peak(learner: Learner, count: int, length: int) -> int | None:
    """Return the peak bytes of one forward and backward; None where the device ran out of memory."""
    stepper, memory = learner.stepper(), PeakMemory(learner.device)
    for _ in range(2):  # the allocator settles in the first
        memory.reset()
        if not stepper.fits(count, length):
            return None
    peak = memory.read()
    if peak is None:
        raise ConfigError(
            "memory.probe and memory.path need a CUDA device or Linux: this system does not report a process's peak "
            "memory; leave both out"
        )
    return peak


def _budget(device: torch.device, config: RunConfig) -> int:
    if config.memory.budget_bytes is not None:
        return config.memory.budget_bytes
    if device.type == "cuda":
        return int(torch.cuda.get_device_properties(device).total_memory * CUDA_SHARE)
    raise ConfigError("memory.budget_bytes is not set, and a CPU needs it: set it to the bytes each rank may use")
