"""How many samples of the longest length a rank can hold: b_max, measured at start-up.

Synthetic batches of ``data.max_length`` tokens grow by doubling; their peak
memory is a line in the count, whose slope tells where the budget ends. The
optimizer's state and the synchroniser's buffers are there already, so they count.
"""

import numpy as np
import torch

from ddpsched.config import RunConfig
from ddpsched.costs.calibration import Calibration
from ddpsched.errors import ConfigError, InfeasibleError
from ddpsched.exchange import Flag
from ddpsched.training.clock import PeakMemory, return_freed_memory
from ddpsched.training.learner import Learner
from ddpsched.training.out_of_memory import flag_of

SMALL = (1, 4)  # count and length of a micro-batch that shows what a process holds besides
# oneDNN keeps some 0.08 MB for each shape it has met, up to 1,024 of them: a run meets more than a calibration does
CPU_STOCK = 80 * 2**20
CUDA_SHARE = 0.9  # of the device's memory, where no budget is given


def allowance(learner: Learner, config: RunConfig, taken_bytes: int = 0) -> int | None:
    """What a rank tells planning of its memory: with a calibration the bytes it may use, with the probe a count.

    ``taken_bytes``: what this rank holds, and the calibration's process did not, as far as it is known; what is found
    by measuring one small micro-batch here against the calibrated model may be more. None where neither is asked for.
    """
    if config.memory.path is not None:
        memory, (count, length) = Calibration.load(config.memory.path).memory, SMALL
        return_freed_memory()
        held = _peak(learner, count, length)
        learner.optimiser.clear()
        beyond = max(taken_bytes, 0 if held is None else held - int(memory.bytes(count, length)))
        return _budget(learner.device, config) - beyond - (CPU_STOCK if learner.device.type == "cpu" else 0)
    return max_count(learner, config) if config.memory.probe else None


def max_count(learner: Learner, config: RunConfig) -> int:
    """Most samples of ``data.max_length`` tokens whose forward and backward stay within the budget.

    At most the largest count a plan could ask for. Raises InfeasibleError where
    not even one fits, ConfigError where a CPU has no budget to measure against.
    """
    budget = _budget(learner.device, config)
    limit, length = config.global_batch - config.world_size + 1, config.data.max_length
    points: list[tuple[int, int]] = []  # (count, bytes) that stayed within the budget
    count, too_many = 1, limit + 1
    while count < too_many:
        peak = _peak(learner, count, length)
        if peak is None or peak > budget:
            too_many = count
            break
        points.append((count, peak))
        if count == limit:
            break
        count = min(2 * count, limit)
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
    """Largest count on the line through the measured points that stays within the budget."""
    counts, peaks = np.array(points, dtype=np.float64).T
    slope, base = np.polyfit(counts, peaks, 1)
    if slope <= 0:  # a plateau (memory reused from before) says nothing yet about the limit
        return 2 * points[-1][0]
    return int((budget - base) / slope + 1e-6)


def _peak(learner: Learner, count: int, length: int) -> int | None:
    """Peak bytes of one forward and backward; None where the device ran out."""
    stepper, memory = learner.stepper(), PeakMemory(learner.device)
    try:
        stepper.loss_sum(learner.collate.synthetic(count, length)).backward()  # the allocator settles
        memory.reset()
        stepper.loss_sum(learner.collate.synthetic(count, length)).backward()
    except Exception as error:
        if flag_of(error) is not Flag.OUT_OF_MEMORY:
            raise
        learner.optimiser.clear()
        if learner.device.type == "cuda":
            torch.cuda.empty_cache()
        return None
    if learner.device.type == "cuda":
        torch.cuda.synchronize(learner.device)
    peak = memory.read()
    if peak is None:
        raise ConfigError(
            "memory.probe needs a CUDA device or Linux: this system does not tell a process's peak memory"
        )
    return peak


def _budget(device: torch.device, config: RunConfig) -> int:
    if config.memory.budget_bytes is not None:
        return config.memory.budget_bytes
    if device.type == "cuda":
        return int(torch.cuda.get_device_properties(device).total_memory * CUDA_SHARE)
    raise ConfigError("memory on a CPU needs memory.budget_bytes: how many bytes each rank may use")
