"""Assignment: which rank runs which samples of a step, the result of solvers and policies."""

from dataclasses import dataclass
from typing import NoReturn

import numpy as np
import numpy.typing as npt

from ddpsched.errors import InfeasibleError
from ddpsched.parts import Part

Int = npt.NDArray[np.int64]


@dataclass(eq=False, slots=True)
class Assignment:
    """Samples of one step, rank by rank and micro-batch by micro-batch.

    Not frozen: a solver's is completed by its policy, step by step, and a frozen one would be made anew each time.

    Attributes:
        positions: int64 `(B,)`, each once: of a solver positions in the batch, of a policy in the epoch's order.
        sizes: `sizes[r]`, how many samples each micro-batch of rank r takes from `positions`, in order.
        costs: of each rank, in the unit of the cost model; None where lengths are not known here.
        lower_bound: no assignment of these samples has a smaller largest cost; None where no bound is known.
        status: "optimal" where the makespan is proved, else "feasible".
        tie_break: "exact" if, of the best assignments, this is the one that the method promises.
        method: the name of the algorithm.
        packed: whether each micro-batch is one row without padding.
        pad_to: tokens that every padded row has at least.
        cursor: samples of the epoch's order that have been handed out after this step; None if it cannot be resumed.
        windows: of these, the positions that each rank has waiting, as int64 arrays.
        parts: of each micro-batch, where samples are split; the position of one then comes once for each of its parts.
    """

    positions: Int
    sizes: tuple[tuple[int, ...], ...]
    costs: tuple[int, ...] | None = None
    lower_bound: int | None = None
    status: str = "feasible"
    tie_break: str = "best found"
    method: str = ""
    packed: bool = False
    pad_to: int = 0
    cursor: int | None = None
    windows: tuple[Int, ...] = ()
    parts: tuple[tuple[Part | None, ...], ...] | None = None

    @property
    def makespan(self) -> int:
        """The largest cost of a rank."""
        assert self.costs is not None
        return max(self.costs)


def refuse_too_long(tokens: int | None, rank: str = "a rank") -> NoReturn:
    """Raise InfeasibleError for a sample, of unknown length for None, that alone is over the memory cap of a rank."""
    sample = "the next sample" if tokens is None else f"one sample of {tokens} tokens"
    remedy = "raise memory.budget_bytes, or lower data.max_length"
    raise InfeasibleError(f"{sample} alone needs more memory than {rank} may use; {remedy}")
