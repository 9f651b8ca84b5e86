"""Time and peak memory of a model on this device over a grid of (count, length).

Memory comes first, from small to large, which also warms every shape up. Time comes
next, in passes over the whole grid, each in another order, so that a drift (of the
clock, of other processes) meets all points alike. A point's time is its smallest, as
disturbances only ever add to it. One thread on a CPU is timed by the processor time
it got: on a busy machine no pass may be free of waiting for a core.
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
from ddpsched.environment import describe
from ddpsched.errors import ConfigError
from ddpsched.records import write_json
from ddpsched.training.clock import PeakMemory, return_freed_memory
from ddpsched.training.learner import Learner, pick_device
from ddpsched.world import World

PASSES = 4
QUIET_S = 15.0  # other processes may disturb all passes of a quick model, so there are more until this has passed
MOST_PASSES = 40
MAX_TOKENS = {"cpu": 1024, "cuda": 32768}  # padded, of one micro-batch: minutes on a core, seconds on a GPU
SIZES = ("vocab_size", "hidden_size", "num_hidden_layers", "num_attention_heads")


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
    calibration = fit_calibration(points, identity_of(config, learner), describe()["versions"])
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
    return Identity(
        model=config.model.name,
        parameters=learner.num_parameters,
        shape=values,
        device=torch.cuda.get_device_name(device) if cuda else describe()["cpu"],
        precision=precision,
        threads=None if cuda else config.executor.threads,
        max_length=config.data.max_length,
    )


def check_calibrations(config: RunConfig, learner: Learner, force: bool = False) -> list[str]:
    """Check that the calibrations that a config names were measured for what this process runs.

    Returns the differences that ``force`` let pass. Raises ConfigError for a
    calibration of another model or device without it.
    """
    cost = config.cost.path if config.cost.kind == "calibrated" else None
    paths = sorted({path for path in (cost, config.memory.path) if path is not None})
    if not paths:
        return []
    identity = identity_of(config, learner)
    return [difference for path in paths for difference in Calibration.load(path).check(identity, force)]


def measure(learner: Learner, grid: Sequence[GridPoint], passes: int | None = None) -> list[Measured]:
    """Measure forward and backward of synthetic batches: each point's peak bytes and its seconds in every pass.

    ``passes``: over the grid; None for four, and up to 40 while they have not taken
    15 seconds. Points that the device has no memory for are left out, and larger ones
    with them.
    """
    learner.stepper().warm_up()
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
    stepper, device = learner.stepper(), learner.device
    learner.optimiser.clear()
    batch = learner.collate.synthetic(*_shape(point))
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    one_core = device.type == "cpu" and torch.get_num_threads() == 1
    mark = process_time if one_core else stepper.clock.mark
    begin = mark()
    stepper.loss_sum(batch).backward()
    return stepper.clock.seconds(begin, mark())


def _peaks(learner: Learner, grid: Sequence[GridPoint]) -> dict[GridPoint, int | None]:
    """Return the peak bytes of each point that fits, beside gradients, as for a step's second micro-batch."""
    stepper, memory = learner.stepper(), PeakMemory(learner.device)
    stepper.loss_sum(learner.collate.synthetic(1, 4)).backward()
    peaks: dict[GridPoint, int | None] = {}
    too_large: list[GridPoint] = []
    for point in grid:
        if any(point.count >= p.count and point.length >= p.length for p in too_large):
            continue
        return_freed_memory()
        memory.reset()
        if stepper.fits(*_shape(point)):
            peaks[point] = memory.read()
        else:
            too_large.append(point)
    return peaks


def _shape(point: GridPoint) -> tuple[int, int, int]:
    """Return count, length, and by how much the last sample is shorter, as full rows may take other kernels."""
    return point.count, point.length, int(point.count > 1 and point.length > 1)
