"""The seconds of planned steps: of each micro-batch, by a cost in seconds and the curve beside it, and of each step."""

from collections.abc import Sequence
from itertools import zip_longest

import numpy as np
import numpy.typing as npt

from ddpsched.costs.cost_model import CostModel
from ddpsched.costs.shape_menu import MenuCost
from ddpsched.costs.step_times import Curve
from ddpsched.data.lengths import Lengths
from ddpsched.parts import finish_times
from ddpsched.step_plan import Microbatch, StepPlan

Seconds = npt.NDArray[np.float64]


def microbatch_seconds(
    micros: Sequence[Microbatch], lengths: Lengths, cost: CostModel, curve: Curve, packed_curve: Curve | None = None
) -> Seconds:
    """Return the seconds of these micro-batches, (n,). ``packed_curve``: of packed ones; ``curve`` where None.

    Raises InfeasibleError where the cost is that of a menu, and no shape of it holds one of them.
    """
    if not micros:
        return np.zeros(0)
    counts = np.array([len(micro) for micro in micros])
    starts = np.cumsum([0, *counts[:-1]])
    tokens = lengths.lengths(np.concatenate([micro.ids for micro in micros]))
    packs = np.array([micro.packed for micro in micros])
    longest = np.maximum(np.maximum.reduceat(tokens, starts), [micro.pad_to for micro in micros])
    if isinstance(cost, MenuCost):
        cost.check(counts, longest)
    each, computed = cost.padded(counts, longest), cost.computed(counts, longest)
    ratio = curve.at(computed)
    if packs.any():
        sums = np.add.reduceat(tokens, starts)
        each = np.where(packs, np.maximum(cost.least, cost.fixed + np.add.reduceat(cost.sample(tokens), starts)), each)
        ratio = np.where(packs, (packed_curve or curve).at(sums), ratio)
    for place in (place for place, micro in enumerate(micros) if micro.part is not None):
        part = micros[place].part
        assert part is not None
        each[place] = cost.part(int(tokens[starts[place]]), part.count)
        ratio[place] = (packed_curve or curve).at(part.tokens)
    return each * ratio / cost.scale


class StepSeconds:
    """The seconds of one planned step.

    ``slowness``: how many times as long each rank takes, (world_size,); None for ranks as the cost says.
    """

    def __init__(
        self, plan: StepPlan, lengths: Lengths, cost: CostModel, curve: Curve, slowness: Seconds | None = None
    ) -> None:
        micros = [micro for rank in plan.ranks for micro in rank]
        of_rank = np.repeat(np.arange(plan.world_size), [len(rank) for rank in plan.ranks])
        seconds = microbatch_seconds(micros, lengths, cost, curve)
        if slowness is not None:
            seconds = seconds * slowness[of_rank]
        self._plan, self._micros, self._of_rank, self._seconds = plan, micros, of_rank, seconds
        self.compute: Seconds = np.zeros(plan.world_size)  # of each rank
        np.add.at(self.compute, of_rank, seconds)

    def slowest(self, lockstep: bool = False) -> float:
        """Return the seconds until the last rank is ready; in ``lockstep`` each micro-batch waits for all ranks'."""
        if not lockstep and not self._plan.parts:
            return float(self.compute.max())
        ends = np.cumsum([len(rank) for rank in self._plan.ranks])[:-1]
        by_rank = [part.tolist() for part in np.split(self._seconds, ends)]
        if self._plan.parts:
            ids = [None if micro.part is None else int(micro.ids[0]) for micro in self._micros]
            named = iter(ids)
            return float(max(finish_times([[(each, next(named)) for each in rank] for rank in by_rank])))
        return float(sum(map(max, zip_longest(*by_rank, fillvalue=0.0))))

    def last_of_slowest(self) -> float:
        """Return the seconds of the slowest rank's last micro-batch, in whose backward gradients become ready."""
        mine = self._seconds[self._of_rank == int(self.compute.argmax())]
        return float(mine[-1]) if len(mine) else 0.0
