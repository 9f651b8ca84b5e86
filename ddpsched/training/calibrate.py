"""Time and peak memory of a model on this device over a grid of (count, length).

First memory, from small to large, which also warms every shape up; then time, in
passes over the whole grid, each in another order, so that whatever drifts (a clock,
a neighbour) meets all points alike. A point's time is its smallest, as what disturbs
a measurement only ever adds to it. One thread on a CPU is timed by the processor
time it got: on a busy machine no pass may be free of waiting for a core.
"""

from collections.abc import Sequence
from pathlib import Path
from time import perf_counter, process_time
from typing import Any

import numpy as np
import torch

from ddpsched.config import RunConfig
from ddpsched.costs.calibration import Calibration, Identity, Measured
from ddpsched.costs.calibration_grid import SHORTEST, GridPoint, calibration_grid
from ddpsched.costs.fit_calibration import judged
from ddpsched.environment import describe
from ddpsched.errors import ConfigError
from ddpsched.exchange import Flag
from ddpsched.output_file import check_output
from ddpsched.records import write_json
from ddpsched.training.clock import PeakMemory, return_freed_memory
from ddpsched.training.collate import Batch
from ddpsched.training.learner import Learner, pick_device
from ddpsched.training.out_of_memory import flag_of
from ddpsched.world import World

PASSES = 4
QUIET_S = 15.0  # a neighbour's disturbance may outlast a quick model's passes, so there are more until this has passed
MOST_PASSES = 40
MAX_TOKENS = {"cpu": 1024, "cuda": 32768}  # padded, of one micro-batch: minutes on a core, seconds on a GPU
SIZES = ("vocab_size", "hidden_size", "num_hidden_layers", "num_attention_heads")


def calibrate_to(
    output: Path, config: RunConfig, overwrite: bool = False, passes: int | None = None, max_tokens: int | None = None
) -> Calibration:
    """Measure, fit, and write the calibration to ``output``, whole or not at all.

    Raises ConfigError, before anything is measured, where the file cannot be written
    or is there already, and for a config that runs no model.
    """
    check_output(output, overwrite, "calibration.json")
    if config.executor.kind == "simulated":
        raise ConfigError(
            'executor.kind = "simulated" runs no model, so there is nothing to measure; calibrate with '
            "executor.kind=virtual and the model and device of the real run"
        )
    if World.detect().size > 1:
        raise ConfigError(f"{World.detect().size} processes were started; a calibration is one: ddpsched calibrate ...")
    learner = Learner(config, config.load_samples(), pick_device(config, 0))
    limit = MAX_TOKENS[learner.device.type] if max_tokens is None else max_tokens
    points = measure(learner, calibration_grid(_most_samples(config, limit), config.data.max_length, limit), passes)
    found = judged(points, identity_of(config, learner), describe()["versions"])
    write_json(output, found.model_dump())
    return found


def _most_samples(config: RunConfig, max_tokens: int) -> int:
    """What a plan could ask of one rank at once; up to what is measured, where micro-batches fill by tokens."""
    if config.policy.varies:
        return max(1, max_tokens // SHORTEST)
    return max(1, config.global_batch - config.world_size + 1)


def identity_of(config: RunConfig, learner: Learner) -> Identity:
    """What this process runs, to be measured, or to be compared with what was."""
    device, shape = learner.device, getattr(learner.model, "config", None)
    cuda = device.type == "cuda"
    precision = str(learner.autocast or next(learner.model.parameters()).dtype).removeprefix("torch.")
    values: dict[str, Any] = {"class": type(learner.model).__name__}
    if shape is not None:
        values |= {key: getattr(shape, key, None) for key in SIZES}
        values |= {key: value for key, value in shape.to_dict().items() if "dropout" in key or "pdrop" in key}
    if config.model.mask != "key_padding":  # attention takes other kernels, and squares of memory
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
    """Whether the calibrations that a config names hold for what this process runs; what ``force`` let pass.

    Raises ConfigError for one that was measured on another model or device.
    """
    cost = config.cost.path if config.cost.kind == "calibrated" else None
    paths = sorted({path for path in (cost, config.memory.path) if path is not None})
    run = identity_of(config, learner) if paths else None
    return [found for path in paths if run for found in Calibration.load(path).check(run, force)]


def measure(learner: Learner, grid: Sequence[GridPoint], passes: int | None = None) -> list[Measured]:
    """Forward and backward of synthetic batches: each point's peak and its seconds in every pass.

    By default four passes over the grid, and up to 40 while they have not taken 15
    seconds. Points that the device has no memory for are left out, and larger ones with them.
    """
    learner.stepper().warm_up()
    peaks = _peaks(learner, grid)
    held = [point for point in grid if point in peaks]
    seconds: dict[GridPoint, list[float]] = {point: [] for point in held}
    begin = perf_counter()
    for number in range(passes or MOST_PASSES):
        if passes is None and number >= PASSES and perf_counter() - begin > QUIET_S:
            break
        for place in np.random.default_rng(number).permutation(len(held)):
            seconds[held[place]].append(_seconds(learner, held[place]))
    learner.optimiser.clear()
    return [
        Measured(count=p.count, length=p.length, held_out=p.held_out, seconds=seconds[p], peak_bytes=peaks[p])
        for p in held
    ]


def _seconds(learner: Learner, point: GridPoint) -> float:
    """One forward and backward, as a step's first micro-batch does it: no gradient is there yet."""
    stepper = learner.stepper()
    learner.optimiser.clear()
    batch = _batch(learner, point)
    if learner.device.type == "cuda":
        torch.cuda.synchronize(learner.device)
    if learner.device.type == "cpu" and torch.get_num_threads() == 1:
        start = process_time()
        stepper.loss_sum(batch).backward()
        return process_time() - start
    begin = stepper.clock.mark()
    stepper.loss_sum(batch).backward()
    return stepper.clock.seconds(begin, stepper.clock.mark())


def _peaks(learner: Learner, grid: Sequence[GridPoint]) -> dict[GridPoint, int | None]:
    """Peak bytes of each point that fits; gradients are there already, as for a step's second micro-batch."""
    stepper, memory = learner.stepper(), PeakMemory(learner.device)
    stepper.loss_sum(learner.collate.synthetic(1, 4)).backward()
    found: dict[GridPoint, int | None] = {}
    too_large: list[GridPoint] = []
    for point in grid:
        if any(point.count >= p.count and point.length >= p.length for p in too_large):
            continue
        return_freed_memory()
        memory.reset()
        try:
            stepper.loss_sum(_batch(learner, point)).backward()
        except Exception as error:
            if flag_of(error) is not Flag.OUT_OF_MEMORY:
                raise
            too_large.append(point)
            if learner.device.type == "cuda":
                torch.cuda.empty_cache()
            continue
        if learner.device.type == "cuda":
            torch.cuda.synchronize(learner.device)
        found[point] = memory.read()
    return found


def _batch(learner: Learner, point: GridPoint) -> Batch:
    """Synthetic, its last sample padded where there are several: kernels for full rows may be others."""
    return learner.collate.synthetic(point.count, point.length, shorter=int(point.count > 1 and point.length > 1))
