"""minmax: how many samples each rank takes from the front of its window."""

import itertools
from collections.abc import Iterator
from typing import ClassVar, Literal

from ddpsched.costs.shape_menu import Shape
from ddpsched.planning.assignment import Assignment
from ddpsched.planning.policy import Policy, Setting
from ddpsched.planning.shapes.choose import sample_steps
from ddpsched.planning.shapes.search import search_shapes
from ddpsched.planning.shapes.trial_steps import WindowSteps
from ddpsched.planning.solvers.allocation import solve
from ddpsched.planning.steps.context import Context
from ddpsched.planning.steps.windows import first_windows, gather, take
from ddpsched.table import Positive

MOST_TRIALS = 256  # steps on which menus are judged


def usual_prefetch(global_batch: int, world_size: int) -> int:
    """Return K = 2 B / G, rounded up: windows twice as large as an even share."""
    return -(-2 * global_batch // world_size)


class Minmax(Policy):
    """Choose the counts whose costliest rank is cheapest, with lengths that only the rank of a sample knows.

    Rank r offers c_r(k), the cost of its first k prefetched samples as one padded micro-batch. With the offers of all
    ranks gathered, every rank solves (see :func:`ddpsched.solve`)

        minimise  max_r c_r(b_r)   subject to  sum_r b_r = B,  1 <= b_r <= cap_r

    and takes its first b_r samples; the rest of the window stays, first in first out.

    Options: ``prefetch``, K, samples in each rank's window; at least B / G. ``solver``, the method of ``solve``.
    Source: T. Ibaraki and N. Katoh, *Resource Allocation Problems*, MIT Press, 1988.
    """

    kind: Literal["minmax"] = "minmax"
    prefetch: Positive = 16
    """K, the samples in each rank's window; at least B / G."""
    solver: Literal["auto", "enumeration", "threshold", "ilp"] = "auto"
    """The method of `ddpsched.solve`."""

    takes: ClassVar[Literal["batches", "windows", "epoch"]] = "windows"
    needs_lengths: ClassVar[bool] = False

    @property
    def window(self) -> tuple[str, int]:
        return "prefetch", self.prefetch

    def __call__(self, context: Context) -> Iterator[Assignment]:
        windows = first_windows(context, self.prefetch)
        for step in itertools.count(context.start.step):
            if not sum(windows.sizes):
                return
            costs, caps, size = gather(context, windows, step, self.prefetch)
            chosen = solve(costs, size, caps=caps, method=self.solver)
            assignment, windows = take(context, windows, costs, chosen, self.prefetch)
            yield assignment

    def shapes(self, context: Context, most: int) -> list[Shape]:
        """Return rows and lengths on which trial steps of this epoch cost least."""
        spec, lengths = context.spec, context.lengths.lengths(context.order)
        at_worst = (min(self.prefetch, spec.global_batch - spec.world_size + 1), int(lengths.max()))
        waiting = min(self.prefetch, max(1, len(lengths) // spec.world_size))
        windows = sample_steps(lengths, waiting * spec.world_size, MOST_TRIALS)
        windows = windows[:, : waiting * spec.world_size].reshape(len(windows), spec.world_size, waiting)
        size = min(spec.global_batch, windows[0].size)
        return search_shapes(WindowSteps(spec.cost, windows, size), most, at_worst)

    def resized(self, world_size: int, global_batch: int) -> "Minmax":
        """Return minmax with windows that fill a step of so many ranks."""
        least = -(-global_batch // world_size)
        return self if self.prefetch >= least else self.model_copy(update={"prefetch": least})

    def check(self, setting: Setting) -> None:
        super().check(setting)
        window = self.prefetch * setting.world_size
        if window < setting.global_batch:
            raise ValueError(
                f"policy.prefetch * world_size = {self.prefetch} * {setting.world_size} = {window} is smaller "
                f"than global_batch = {setting.global_batch}: the windows cannot fill a step; raise policy.prefetch "
                f"to at least {-(-setting.global_batch // setting.world_size)}"
            )
