"""Known ways to a wrong gradient: wrong weights of the samples, and common factors."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from ddpsched.certify.certificate import first_few
from ddpsched.certify.target import Target

Factors = Sequence[tuple[float, str]]  # a factor, and its cause


@dataclass(frozen=True, eq=False)
class Mistake:
    """A mistake and the weights it leads to, (num_parts,), up to a factor; ``factors``: those of this mistake alone."""

    weights: npt.NDArray[np.floating]
    words: str
    factors: Factors = ((1.0, ""),)

    def describe(self, scale: float, common: Factors, near: float) -> tuple[bool, str]:
        """Return whether ``scale`` is a known factor, up to the share ``near``, and the mistake as text."""
        for factor, words in self.factors:
            if abs(scale / factor - 1) <= near:
                return True, self.words + words
        reasons = [words for factor, words in common if abs(scale / factor - 1) <= near]
        much = f"{times(scale)} times {'too large' if scale > 1.1 else 'what it should be'}: "
        start = f"{self.words}, and {much}" if self.words else much
        return bool(reasons), start + (", or ".join(reasons) or "clipping, or a factor on the loss")


def times(factor: float) -> str:
    """Return a factor as text, with as many digits as distinguish it from 1.

    >>> times(0.7), times(1 + 1e-6), times(3.0000004)
    ('0.7', '1.000001', '3')
    """
    beyond = abs(factor - 1)
    if not 0 < beyond < 1e-3:
        return f"{factor:.5g}"
    return f"{factor:.{1 - int(np.floor(np.log10(beyond)))}f}".rstrip("0")


def factors(target: Target) -> list[tuple[float, str]]:
    """Return common factors and their causes, from the numbers of ranks, of accumulation steps, and of what counts."""
    ranks, total, steps = target.num_ranks, target.total, int(np.bincount(target.ranks).max())
    count = f"the {total:g} {target.unit}"
    several, accumulated, counted = ranks > 1, steps > 1, total > 1
    known = [
        (True, -1.0, "its sign is turned"),
        (several, ranks,
         f"summed over {ranks} ranks and not averaged, or the loss is multiplied by the number of ranks"),
        (several, 1 / ranks, f"averaged twice over the {ranks} ranks"),
        (accumulated, steps, f"not divided by the {steps} accumulation steps"),
        (accumulated, 1 / steps, f"divided by the {steps} accumulation steps, though also by the count over them"),
        (several and accumulated, ranks * steps,
         f"summed over {ranks} ranks and {steps} accumulation steps, and divided by neither"),
        (several and accumulated, 1 / (ranks * steps),
         f"divided by {ranks} ranks and {steps} accumulation steps once too often"),
        (counted, total, f"the summed loss is not divided by {count}"),
        (counted, 1 / (total or 1), f"divided twice by {count}"),
        (counted and several and total != ranks, total / ranks,
         f"averaged over {ranks} ranks, and not divided by {count}"),
    ]  # fmt: skip
    return [(factor, words) for possible, factor, words in known if possible]


def mistakes(target: Target) -> Iterator[Mistake]:
    """Yield known mistakes, the simplest first; of several with the same weights, the first is reported.

    The first of all has the right weights, and so differs from the target by a common factor alone.
    """
    counts, ranks, total, size = target.counts, target.ranks, target.total, target.num_ranks
    right, each = np.full(len(counts), 1 / total), np.maximum(counts, 1)
    by_rank = np.bincount(ranks, weights=counts, minlength=size)  # n_r
    steps = np.bincount(ranks, minlength=size)  # A_r

    def over_own(share: npt.NDArray[Any]) -> npt.NDArray[np.floating]:
        """Return each rank's share, divided by what counts on that rank, for its parts."""
        return np.divide(share, by_rank, where=by_rank > 0, out=np.zeros(size))[ranks]

    yield Mistake(right, "", factors=())
    shares = first_few((f"rank {r}'s weigh {total / (size * n):.3g}" for r, n in enumerate(by_rank) if n), 8)
    scale = "G*b_r/B" if target.unit == "samples" else "G*n_r/N"
    words = f"every rank takes the mean over its own {target.unit} (no scale {scale}): {shares} times what they should"
    yield Mistake(over_own(np.full(size, 1 / size)), words)
    words = "every micro-batch weighs the same whatever it holds: a mean of their means (loss / accumulation steps)"
    yield Mistake(1 / (len(counts) * each), words)
    words = "every rank takes the mean of its micro-batches' means, and those are averaged over ranks"
    yield Mistake(1 / (size * steps[ranks] * each), words)
    present = np.flatnonzero(steps).tolist()
    for rank in present if len(present) > 1 else []:
        words = f"not synchronised: this is rank {rank}'s own gradient"
        if len(present) == 2:
            words = f"rank {sum(present) - rank}'s samples are missing from the gradient; {words}"
        factors = [(total / by_rank[rank], f", the mean over its own {target.unit}"), (size, ""), (1.0, "")]
        yield Mistake(np.where(ranks == rank, right, 0.0), words, factors)
    for rank in present if len(present) > 2 else []:
        factors = [(1.0, ""), (total / (total - by_rank[rank]), "; the others weigh as much more")]
        words = f"rank {rank}'s samples are missing from the gradient"
        yield Mistake(np.where(ranks != rank, right, 0.0), words, factors)
    if steps.max() > 1:
        turn = np.array([np.sum(ranks[:m] == rank) for m, rank in enumerate(ranks)])  # of a part, on its rank
        words = "only each rank's last micro-batch is in the gradient: those before it are overwritten or cleared"
        yield Mistake(np.where(turn == steps[ranks] - 1, right, 0.0), words)
        yield Mistake(np.where(turn == 0, right, 0.0), "only each rank's first micro-batch is in the gradient")
    for name, other in target.others.items():
        share, words = other / other.sum(), f"mean is weighted by its share of {name}, not of what counts"
        yield Mistake(over_own(np.bincount(ranks, weights=share, minlength=size)), f"each rank's {words}")
        yield Mistake(share / each, f"each micro-batch's {words}")
