"""The seconds of a compiled model, from those of the eager one and a few of its programs."""

from collections.abc import Sequence
from functools import partial

import numpy as np
import numpy.typing as npt

from ddpsched.config import RunConfig
from ddpsched.costs.calibration import Seconds
from ddpsched.costs.cost_model import CostModel
from ddpsched.costs.shape_menu import Shape
from ddpsched.costs.step_times import StepTimes, evenly
from ddpsched.planning.shapes.choose import NO_MENU, Menu
from ddpsched.training.compiled import run_eagerly
from ddpsched.training.learner import Learner
from ddpsched.training.trial_times import seconds_of

SHAPES = 3  # that are compiled, up to the largest: the larger, the more of a step is theirs
PAIRS = 8  # of compiled and eager passes in turn
RANKS = 4  # virtual ones of a pass, at most


def with_compiled(times: StepTimes, learner: Learner, config: RunConfig, shapes: Sequence[Shape]) -> StepTimes:
    """Return ``times`` with those of the compiled model and of making one program; or why it cannot be compiled.

    ``shapes``: as of ``measure_times``, of which a few are compiled; all ranks call it at once. Programs take turns, as
    in steps: one that runs again and again finds its code in the processor's caches, and looks faster than it is there.
    Virtual ranks add to the gradients that the one before has left, in memory that eager and compiled programs allocate
    otherwise; so they follow each other here, too, and the slowest counts. Medians count: now and then a compiled
    program takes 0.6 of its time, and few steps get that on all ranks. Raises RunError for a compiler that fails, where
    the config says so.
    """
    shapes = evenly(shapes, SHAPES + 1)[1:]
    menu = Menu(tuple(shapes), tuple(shapes)) if config.compile.kind == "static" else NO_MENU
    facts = learner.use(config, menu)["compile"]
    if "failed" in facts:
        return times.model_copy(update={"failed": facts["failed"]})
    ranks = min(RANKS, config.world_size) if config.executor.kind == "virtual" else 1
    # of each pair and shape: seconds of the slowest rank, and of the optimizer
    compiled, eager = np.zeros((2, PAIRS, len(shapes), 2))
    for pair in range(PAIRS):
        for place, shape in enumerate(shapes):
            compiled[pair, place] = _step_s(learner, shape, ranks)
            with run_eagerly(learner.model):
                eager[pair, place] = _step_s(learner, shape, ranks)
    learner.undo()
    made = [program["seconds"] for program in facts["programs"]]
    cost, error = fit_compiled(times.padded, shapes, np.median(compiled[..., 0] / eager[..., 0], axis=0))
    more_s = float(np.median(compiled[..., 1]) - np.median(eager[..., 1]))
    found = {"compiled": cost, "compiled_error": error, "compile_s": sum(made) / len(made)}
    return times.model_copy(update=found | {"compiled_rest_s": max(0.0, times.rest_s + more_s)})


def _step_s(learner: Learner, shape: Shape, ranks: int) -> tuple[float, float]:
    """Return the seconds of the slowest of ``ranks`` that follow each other, and of the optimizer at a rate of 0."""
    learner.optimiser.clear()
    batch = partial(learner.collate.synthetic, *shape, int(min(shape) > 1))
    slowest = max(seconds_of(learner, batch) for _ in range(ranks))
    for gradient in (p.grad for p in learner.model.parameters() if p.grad is not None):
        gradient.zero_()
    begin = learner.clock.mark()
    learner.optimiser.try_step()
    return slowest, learner.clock.seconds(begin, learner.clock.mark())


def fit_compiled(padded: Seconds, shapes: Sequence[Shape], ratios: npt.NDArray[np.float64]) -> tuple[Seconds, float]:
    """Return the cost of the compiled model, and its largest relative error at these shapes.

    ``ratios``: of compiled to eager seconds, (n,). Compiled, the eager cost alpha + v of a micro-batch is a + b v, with
    a and b at least 0: a call costs less and a token more, or the other way round.
    """
    from scipy.optimize import nnls

    eager = CostModel(**padded.model_dump()).seconds(*np.array(shapes).T)
    design = np.stack([np.ones(len(eager)), eager - padded.alpha], axis=1) / (ratios * eager)[:, None]
    (fixed, factor), _ = nnls(design, np.ones(len(eager)))
    error = float(np.abs(design @ (fixed, factor) - 1).max())
    scaled = {name: factor * each for name, each in padded.model_dump().items()}
    floor = fixed + factor * (padded.floor - padded.alpha) if padded.floor > padded.alpha else 0.0
    return Seconds(**scaled | {"alpha": fixed, "floor": floor}), error
