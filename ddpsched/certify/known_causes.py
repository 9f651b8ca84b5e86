"""Known ways to a wrong gradient: weights that the samples get, and common factors."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from ddpsched.certify.certificate import first_few
from ddpsched.certify.target import Target

Factors = Sequence[tuple[float, str]]  # a factor, and what makes it


@dataclass(frozen=True, eq=False)
class Mistake:
    """Weights (num_parts,) that a mistake leads to, up to a factor; ``factors`` are its own."""

    weights: npt.NDArray[np.floating]
    words: str
    factors: Factors = ((1.0, ""),)

    def named(self, scale: float, common: Factors, near: float) -> str | None:
        """The mistake told, where ``scale`` is a factor that can be explained."""
        for factor, words in self.factors:
            if abs(scale / factor - 1) <= near:
                return self.words + words
        reasons = [words for factor, words in common if abs(scale / factor - 1) <= near]
        return self._times(scale) + ", or ".join(reasons) if reasons else None

    def unnamed(self, scale: float) -> str:
        return self._times(scale) + "clipping, or a factor on the loss"

    def _times(self, scale: float) -> str:
        much = f"{times(scale)} times " + ("too large" if scale > 1.1 else "what it should be")
        return f"{self.words}, and {much}: " if self.words else f"{much}: "


def times(factor: float) -> str:
    """A factor with as many digits as tell it from 1.

    >>> times(0.7), times(1 + 1e-6), times(3.0000004)
    ('0.7', '1.000001', '3')
    """
    beyond = abs(factor - 1)
    if not 0 < beyond < 1e-3:
        return f"{factor:.5g}"
    return f"{factor:.{1 - int(np.floor(np.log10(beyond)))}f}".rstrip("0")


def factors(target: Target) -> list[tuple[float, str]]:
    """Common factors and what makes them: G ranks, A accumulation steps, a count of T."""
    ranks, total = target.num_ranks, target.total
    steps = int(np.bincount(target.ranks).max())
    found = [(-1.0, "its sign is turned")]
    if ranks > 1:
        found += [
            (ranks, f"summed over {ranks} ranks and not averaged, or the loss is multiplied by the number of ranks"),
            (1 / ranks, f"averaged twice over the {ranks} ranks"),
        ]
    if steps > 1:
        found += [
            (steps, f"not divided by the {steps} accumulation steps"),
            (1 / steps, f"divided by the {steps} accumulation steps, though the sum over all is divided by the count"),
        ]
    if ranks > 1 and steps > 1:
        found += [
            (ranks * steps, f"summed over {ranks} ranks and {steps} accumulation steps, and divided by neither"),
            (1 / (ranks * steps), f"divided by {ranks} ranks and {steps} accumulation steps once too often"),
        ]
    if total > 1:
        found += [
            (total, f"the summed loss is not divided by the {total:g} {target.unit}"),
            (1 / total, f"divided twice by the {total:g} {target.unit}"),
        ]
    if total > 1 and ranks > 1 and total != ranks:
        found.append((total / ranks, f"averaged over {ranks} ranks, and not divided by the {total:g} {target.unit}"))
    return found


def mistakes(target: Target) -> Iterator[Mistake]:
    """From the simplest on; weightings that come to the same are told as the first of them."""
    counts, ranks, total, size = target.counts, target.ranks, target.total, target.num_ranks
    right = np.full(len(counts), 1 / total)
    own = np.bincount(ranks, weights=counts, minlength=size)  # n_r
    steps = np.bincount(ranks, minlength=size)  # A_r
    yield Mistake(right, "", factors=())
    shares = first_few((f"rank {r}'s weigh {total / (size * n):.3g}" for r, n in enumerate(own) if n), 8)
    scale = "G*b_r/B" if target.unit == "samples" else "G*n_r/N"
    yield Mistake(
        np.divide(1, size * own, where=own > 0, out=np.zeros(size))[ranks],
        f"every rank takes the mean over its own {target.unit} (no scale {scale}): {shares} times what they should",
    )
    yield Mistake(
        1 / (len(counts) * np.maximum(counts, 1)),
        "every micro-batch weighs the same whatever it holds: a mean of their means (loss / accumulation steps)",
    )
    yield Mistake(
        1 / (size * steps[ranks] * np.maximum(counts, 1)),
        "every rank takes the mean of its micro-batches' means, and those are averaged over ranks",
    )
    present = np.flatnonzero(steps)
    for rank in present.tolist() if len(present) > 1 else []:
        alone = f"not synchronised: this is rank {rank}'s own gradient"
        factors = [(total / own[rank], f", the mean over its own {target.unit}"), (size, ""), (1.0, "")]
        if len(present) == 2:
            (absent,) = (other for other in present.tolist() if other != rank)
            alone = f"rank {absent}'s samples are missing from the gradient; {alone}"
        yield Mistake(np.where(ranks == rank, right, 0.0), alone, factors)
    for rank in present.tolist() if len(present) > 2 else []:
        factors = [(1.0, ""), (total / (total - own[rank]), "; the others weigh as much more")]
        yield Mistake(
            np.where(ranks != rank, right, 0.0), f"rank {rank}'s samples are missing from the gradient", factors
        )
    if steps.max() > 1:
        turn = np.array([np.sum(ranks[:m] == rank) for m, rank in enumerate(ranks)])
        yield Mistake(
            np.where(turn == steps[ranks] - 1, right, 0.0),
            "only each rank's last micro-batch is in the gradient: those before it are overwritten or cleared",
        )
        yield Mistake(np.where(turn == 0, right, 0.0), "only each rank's first micro-batch is in the gradient")
    for name, other in target.others.items():
        each = np.bincount(ranks, weights=other, minlength=size)
        by_rank = np.divide(each, other.sum() * own, where=own > 0, out=np.zeros(size))[ranks]
        yield Mistake(by_rank, f"each rank's mean is weighted by its share of {name}, not of what counts")
        by_part = other / (other.sum() * np.maximum(counts, 1))
        yield Mistake(by_part, f"each micro-batch's mean is weighted by its share of {name}, not of what counts")
