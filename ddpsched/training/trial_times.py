"""The seconds of a model's micro-batches and steps on this device, measured in about a minute.

Micro-batches are those that the candidates of policy ``auto`` would plan, so that a fit interpolates; all ranks measure
at once, as they will run. Passes over all of them follow each other in different orders. A fit is of each point's
smallest time, as disturbances only ever add to it; how far the others lie above is kept as noise, since a step waits
for the slowest of its ranks, which noise decides where a plan has made them alike.
"""

from collections.abc import Callable, Sequence
from time import perf_counter
from typing import Any

import numpy as np
import torch

from ddpsched.config import RunConfig
from ddpsched.costs.calibration import Seconds
from ddpsched.costs.cost_model import CostModel
from ddpsched.costs.regression import fit_time
from ddpsched.costs.shape_menu import Shape
from ddpsched.costs.step_times import QUIET, Curve, StepTimes, evenly, noise_of
from ddpsched.step_plan import Ids
from ddpsched.training.calibrate import identity_of
from ddpsched.training.collate import Batch
from ddpsched.training.learner import Learner

MOST_PASSES = 12
BUDGET_S = 15.0  # after which no pass begins
FEWER = ((12.0, 8, 4), (24.0, 6, 3))  # seconds of a pass, beyond which so few shapes and packed rows are measured
TRIALS = 5  # steps of one short sample, whose median is what a step takes beside its micro-batches
SHORT_S = 0.25  # of a call, whose first one counts for less
LONG_S = 2.0  # of a call, whose first one is as good as any
REPEATED = 5  # times of the smallest point, where there is no second pass
LEAST_POINTS = 6  # of a fit
HELD_OUT = 4  # each fourth point is left out of the fit
CROWDED, TURNS = 2, 3  # micro-batches that are also measured on one rank alone, and how often
TOGETHER_S = 4.0  # after which no such turn begins

Point = tuple[int, int, Ids | None]  # samples, the longest, and the ids of a packed row


def measure_times(
    learner: Learner, config: RunConfig, shapes: Sequence[Shape], rows: Sequence[Ids], decided: Callable[[bool], bool]
) -> StepTimes:
    """Measure padded micro-batches of these shapes and packed ``rows``, and fit their costs; all ranks call it at once.

    ``shapes``, ``rows``: from the smallest to the largest; of a slow model fewer are measured. ``rows`` is () for a
    model that cannot run them. ``decided``: what rank 0 decides, for which all ranks meet, as ranks whose
    model is sharded meet in each micro-batch, and so need as many passes.
    """
    learner.begin_step()
    begin = perf_counter()
    largest_s = _seconds(learner, (*shapes[-1], None))
    if decided(largest_s < LONG_S):
        largest_s = _seconds(learner, (*shapes[-1], None))  # as the first call allocates
    for most_s, few_shapes, few_rows in FEWER:
        if decided(largest_s * (len(shapes) + len(rows)) / 2 < most_s):
            break
        shapes, rows = evenly(shapes, few_shapes), evenly(rows, few_rows)
    points: list[Point] = [(count, length, None) for count, length in shapes]
    points += [(len(ids), 0, ids) for ids in rows]
    seconds: list[list[float]] = [[] for _ in points]
    for number in range(MOST_PASSES + 1):
        if number and not decided(perf_counter() - begin < BUDGET_S):
            break
        for place in np.random.default_rng(number).permutation(len(points)).tolist():
            # the largest ones have had their time, which the others use
            if number < 2 or decided(sum(seconds[place]) < BUDGET_S / len(points)):
                seconds[place].append(_seconds(learner, points[place]))
    if len(seconds[0]) == 1:  # one pass took all the time: the smallest alone tells how times of the same point differ
        seconds[0] += [_seconds(learner, points[0]) for _ in range(REPEATED)]
    # a first call chooses kernels, which takes milliseconds
    seconds = [each[1:] if len(each) > 1 and each[0] < SHORT_S else each for each in seconds]
    least = np.array([min(each) for each in seconds])
    count, length = np.array(shapes, dtype=np.float64).T
    padded, curve, error = _fit(count, length, least[: len(shapes)])
    packed, packed_curve = None, Curve()
    if len(rows):
        packed, packed_curve = _fit_rows([learner.lengths(ids) for ids in rows], least[len(shapes) :])
    rest_s = _rest_s(learner, padded, min(int(each) for _, each in shapes))
    together = _together(learner, config, shapes, decided)
    repeated = [each for each in seconds if len(each) > 1]
    learner.undo()
    return StepTimes(
        identity=identity_of(config, learner), world_size=config.world_size, padded=padded, packed=packed,
        padded_curve=curve, packed_curve=packed_curve, rest_s=rest_s, error=error,
        noise=noise_of(repeated) if repeated else QUIET, together=together,
    )  # fmt: skip


def _together(learner: Learner, config: RunConfig, shapes: Sequence[Shape], decided: Callable[[bool], bool]) -> float:
    """Return the time of micro-batches while all ranks compute over rank 0's while the others wait; of rank 0.

    Processes on one machine share its memory and its kernel, so the last rank of a step, whose others are ready, may
    be faster than it was beside them. 1 where ranks are no processes of their own, or meet in each micro-batch.
    """
    if config.executor.kind != "distributed" or config.world_size == 1 or config.sync.kind == "fsdp":
        return 1.0
    crowded, alone = list[float](), list[float]()
    begin = perf_counter()
    for shape in evenly(shapes, CROWDED + 2)[1:-1]:
        both: list[list[float]] = [[], []]
        for _ in range(TURNS):
            # all ranks begin at once
            if not decided(not crowded + both[0] or perf_counter() - begin < TOGETHER_S):
                break
            both[0].append(_seconds(learner, (*shape, None)))
            decided(True)
            if torch.distributed.get_rank() == 0:
                both[1].append(_seconds(learner, (*shape, None)))
            decided(True)  # which the others wait in
        if both[0]:
            crowded.append(min(both[0]))
            alone.append(min(both[1], default=min(both[0])))
    return max(1.0, sum(crowded) / sum(alone)) if alone else 1.0


def _fit(count: Any, length: Any, seconds: Any) -> tuple[Seconds, Curve, float]:
    """Return the model of all points, its curve, and the mean error at those that a fit of the others did not see.

    Where they are too few for that, it is the mean error of the model itself.
    """
    held = np.arange(len(seconds)) % HELD_OUT == HELD_OUT // 2
    if len(seconds) - held.sum() < LEAST_POINTS:
        fitted, curve = _fit_and_curve(count, length, seconds)
        return Seconds.of(fitted), curve, float(np.abs(fitted.seconds(count, length) / seconds - 1).mean())
    trial, curve = _fit_and_curve(count[~held], length[~held], seconds[~held])
    found = trial.seconds(count[held], length[held]) * curve.at(count[held] * length[held])
    fitted, curve = _fit_and_curve(count, length, seconds)
    return Seconds.of(fitted), curve, float(np.abs(found / seconds[held] - 1).mean())


def _fit_and_curve(count: Any, length: Any, seconds: Any) -> tuple[CostModel, Curve]:
    fitted = fit_time(count, length, seconds)
    return fitted, Curve.of(count * length, seconds / fitted.seconds(count, length))


def _fit_rows(sizes: Sequence[Any], seconds: Any) -> tuple[Seconds, Curve]:
    """Fit seconds of packed rows, by relative error, to a fixed cost, one of each sample, token and token squared.

    Returns the curve of the rows beside it.
    """
    from scipy.optimize import nnls

    columns = [(1.0, len(each), each.sum(), (each.astype(np.float64) ** 2).sum()) for each in sizes]
    design = np.array(columns, dtype=np.float64) / seconds[:, None]
    norm = np.linalg.norm(design, axis=0)
    alpha, delta, beta, gamma = factors = nnls(design / norm, np.ones(len(seconds)))[0] / norm
    curve = Curve.of(np.array([each.sum() for each in sizes]), 1 / (design @ factors))
    return Seconds(alpha=alpha, beta=beta, gamma=gamma, delta=delta, floor=0.0), curve


def _seconds(learner: Learner, point: Point) -> float:
    count, length, ids = point
    learner.optimiser.clear()
    if ids is not None:
        return seconds_of(learner, lambda: learner.collate(ids, packed=True))
    return seconds_of(learner, lambda: learner.collate.synthetic(count, length, int(min(count, length) > 1)))


def seconds_of(learner: Learner, collate: Callable[[], Batch]) -> float:
    """Return the seconds of a micro-batch: collation, forward and backward, which adds to the gradients there are."""
    if learner.device.type == "cuda":
        torch.cuda.synchronize(learner.device)
    with learner.sync.trial():
        begin = learner.clock.mark()
        learner.loss_sum(collate()).backward()
        return learner.clock.seconds(begin, learner.clock.mark())


def _rest_s(learner: Learner, padded: Seconds, shortest: int) -> float:
    """Return what a step takes beside its micro-batches: gradients that meet, their norm, the optimizer."""
    alone = float(CostModel(**padded.model_dump()).seconds(1, shortest))
    found = [_step_s(learner, shortest) for _ in range(TRIALS)]
    return max(0.0, float(np.median(found)) - alone)


def _step_s(learner: Learner, length: int) -> float:
    """Return the seconds of a whole step of one sample at weight 0, which changes nothing; all ranks call it."""
    learner.optimiser.clear()
    begin = learner.clock.mark()
    with learner.sync.synchronise():
        (learner.loss_sum(learner.collate.synthetic(1, length)) * 0.0).backward()
    learner.sync.wait()
    learner.optimiser.try_step()
    seconds = learner.clock.seconds(begin, learner.clock.mark())
    learner.sync.log.take()
    return seconds
