"""Time and peak memory of a model on this device over a grid of (count, length); the samples a rank has memory for.

A calibration measures memory first, from small to large, which also warms every shape up. Time comes next, in passes
over the whole grid, each in another order, so that a drift (of the clock, of other processes) meets all points alike. A
point's time is its smallest, as disturbances only ever add to it. One thread on a CPU is timed by the processor time it
got: on a busy machine no pass may be free of waiting for a core.
"""

from collections.abc import Sequence
from pathlib import Path
from time import perf_counter, process_time
from typing import Any

import numpy as np
import torch

from ddpsched.arguments import check_output
from ddpsched.config import RunConfig
from ddpsched.costs.calibration import Calibration, Identity, Measured
from ddpsched.costs.calibration_grid import SHORTEST, GridPoint, calibration_grid
from ddpsched.costs.fit_calibration import fit_calibration
from ddpsched.environment import cpu, versions
from ddpsched.errors import ConfigError, InfeasibleError
from ddpsched.records import write_json
from ddpsched.training.clock import PeakMemory, pick_device, return_freed_memory
from ddpsched.training.learner import Learner
from ddpsched.training.out_of_memory import is_out_of_memory
from ddpsched.world import World

PASSES = 4
QUIET_S = 15.0  # other processes may disturb all passes of a quick model, so there are more until this has passed
MOST_PASSES = 40
MAX_TOKENS = {"cpu": 1024, "cuda": 32768}  # padded, of one micro-batch: minutes on a core, seconds on a GPU
SIZES = ("vocab_size", "hidden_size", "num_hidden_layers", "num_attention_heads")
SMALL = (1, 4)  # count and length of a micro-batch that shows the other memory of a process
# oneDNN keeps some 0.08 MB for each shape it has met, up to 1,024 of them: a run meets more than a calibration does
CPU_STOCK = 80 * 2**20
CUDA_SHARE = 0.9  # of the device's memory, where no budget is given


def calibrate_to(
    output: Path, config: RunConfig, overwrite: bool = False, passes: int | None = None, max_tokens: int | None = None
) -> Calibration:
    """Measure, fit, and write the calibration to ``output``, whole or not at all.

    ``passes``: as in :func:`measure`. ``max_tokens``: the largest padded micro-batch; None for 1,024 on a CPU and
    32,768 on CUDA. Raises ConfigError, before anything is measured, where the file cannot be written or is there
    already, for a config that runs no model, and where several processes were started.
    """
    check_output(output, overwrite, "calibration.json")
    if config.executor.kind == "simulated":
        raise ConfigError(
            'executor.kind = "simulated" runs no model, so there is nothing to measure; calibrate with '
            "executor.kind=virtual and the model and device of the real run"
        )
    if World.detect().size > 1:
        raise ConfigError(
            f"{World.detect().size} processes were started, and a calibration needs one; start it without torchrun: "
            "ddpsched calibrate ..."
        )
    learner = Learner(config, config.load_samples(), pick_device(config, 0))
    limit = MAX_TOKENS[learner.device.type] if max_tokens is None else max_tokens
    # as many samples as a plan could give to one rank; up to the limit, where micro-batches fill by tokens
    most = limit // SHORTEST if config.policy.varies else config.global_batch - config.world_size + 1
    points = measure(learner, calibration_grid(max(1, most), config.data.max_length, limit), passes)
    calibration = fit_calibration(points, identity_of(config, learner), versions())
    write_json(output, calibration.model_dump())
    return calibration


def identity_of(config: RunConfig, learner: Learner) -> Identity:
    """Return what decides time and memory in this process: model, device and precision."""
    device, shape = learner.device, getattr(learner.model, "config", None)
    cuda = device.type == "cuda"
    precision = str(learner.autocast or next(learner.model.parameters()).dtype).removeprefix("torch.")
    values: dict[str, Any] = {"class": type(learner.model).__name__}
    if shape is not None:
        values |= {key: getattr(shape, key, None) for key in SIZES}
        values |= {key: value for key, value in shape.to_dict().items() if "dropout" in key or "pdrop" in key}
    if config.model.mask != "key_padding":  # attention takes other kernels, and memory for pairs of tokens
        values["mask"] = config.model.mask
    name, threads = torch.cuda.get_device_name(device) if cuda else cpu(), config.executor.threads
    return Identity(
        model=config.model.name, parameters=learner.num_parameters, shape=values, device=name, precision=precision,
        threads=None if cuda else threads, max_length=config.data.max_length,
    )  # fmt: skip


def check_calibrations(config: RunConfig, learner: Learner, force: bool = False) -> list[str]:
    """Check that the calibrations that a config names were measured for what this process runs.

    Returns the differences that ``force`` let pass. Raises ConfigError for a
    calibration of another model or device without it.
    """
    cost = config.cost.path if config.cost.kind == "calibrated" else None
    calibrations = [Calibration.load(path) for path in sorted({path for path in (cost, config.memory.path) if path})]
    return [each for calibration in calibrations for each in calibration.check(identity_of(config, learner), force)]


def measure(learner: Learner, grid: Sequence[GridPoint], passes: int | None = None) -> list[Measured]:
    """Measure forward and backward of synthetic batches: each point's peak bytes and its seconds in every pass.

    ``passes``: over the grid; None for four, and up to 40 while they have not taken
    15 seconds. Points that the device has no memory for are left out, and larger ones
    with them.
    """
    learner.warm_up()
    peaks = _peaks(learner, grid)
    points = list(peaks)
    seconds: dict[GridPoint, list[float]] = {point: [] for point in points}
    begin = perf_counter()
    for number in range(passes or MOST_PASSES):
        if passes is None and number >= PASSES and perf_counter() - begin > QUIET_S:
            break
        for place in np.random.default_rng(number).permutation(len(points)):
            seconds[points[place]].append(_seconds(learner, points[place]))
    learner.optimiser.clear()
    return [
        Measured(count=p.count, length=p.length, held_out=p.held_out, seconds=seconds[p], peak_bytes=peaks[p])
        for p in points
    ]


def _seconds(learner: Learner, point: GridPoint) -> float:
    """Return the seconds of one forward and backward without earlier gradients, as of a step's first micro-batch."""
    device = learner.device
    learner.optimiser.clear()
    batch = learner.collate.synthetic(*_shape(point))
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    mark = process_time if device.type == "cpu" and torch.get_num_threads() == 1 else learner.clock.mark
    begin = mark()
    learner.loss_sum(batch).backward()
    return learner.clock.seconds(begin, mark())


def _peaks(learner: Learner, grid: Sequence[GridPoint]) -> dict[GridPoint, int | None]:
    """Return the peak bytes of each point that fits, beside gradients, as for a step's second micro-batch."""
    memory = PeakMemory(learner.device)
    learner.loss_sum(learner.collate.synthetic(1, 4)).backward()
    peaks: dict[GridPoint, int | None] = {}
    too_large: list[GridPoint] = []
    for point in grid:
        if any(point.count >= p.count and point.length >= p.length for p in too_large):
            continue
        return_freed_memory()
        memory.reset()
        if _fits(learner, *_shape(point)):
            peaks[point] = memory.read()
        else:
            too_large.append(point)
    return peaks


def _shape(point: GridPoint) -> tuple[int, int, int]:
    """Return count, length, and by how much the last sample is shorter, as full rows may take other kernels."""
    return point.count, point.length, int(point.count > 1 and point.length > 1)


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

    At most the largest count a plan could give to a rank. Synthetic batches grow by doubling; their peak memory is a
    line in the count, whose slope shows where the budget ends. The optimizer's state and the synchroniser's buffers are
    allocated before, so they count. Raises InfeasibleError where
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
    memory = PeakMemory(learner.device)
    for _ in range(2):  # the allocator settles in the first
        memory.reset()
        if not _fits(learner, count, length):
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


def _fits(learner: Learner, count: int, length: int, shorter: int = 0) -> bool:
    """Return whether the device has the memory for forward and backward of a synthetic batch; gradients stay.

    ``count``, ``length``, ``shorter``: as in ``Collator.synthetic``.
    """
    try:
        learner.loss_sum(learner.collate.synthetic(count, length, shorter)).backward()
    except Exception as error:
        if not is_out_of_memory(error):
            raise
        if learner.device.type == "cuda":
            torch.cuda.empty_cache()
        return False
    if learner.device.type == "cuda":
        torch.cuda.synchronize(learner.device)
    return True
