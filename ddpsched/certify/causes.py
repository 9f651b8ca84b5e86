"""Causes of a gradient that is not its target: known mistakes, the place of the difference, or rounding.

Known mistakes lead to wrong weights of the samples, or to a common factor (``mistakes``, ``factors``). Else it matters
where the two differ (``Departure``): at which parameters, at which coordinates.

A sum over all coordinates says by how much two gradients differ and not where. A parameter whose gradient is lost may
weigh as little in that sum as the rounding of a lower precision. The place and the shape of the difference tell them
apart.

A difference is called rounding on evidence found in number formats, never because nothing else fits. There are two
kinds. Either the gradient consists of numbers of a shorter format, or of sums of a few of them, and lies as near the
target as that format allows. Or at every coordinate the difference is about as large as the format's unit of what is
added up there, nowhere far larger or mostly far smaller, and has no direction. A lost token, another loss or a term
added to the gradient is as small as rounding in total, but not in this way at each coordinate.
"""

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from ddpsched.certify.certificate import first_few
from ddpsched.certify.target import Floats, Ints, Target

Factors = Sequence[tuple[float, str]]  # a factor, and its cause
PIECE = 2**22  # coordinates at a time, as these vectors are as large as a model
SAME = 1e-9  # relatively: weights that differ by less are one factor
SEVERAL = 16  # nonzero coordinates that do not all become 0 by chance, even where they are rounding themselves
CLEAR = 10  # how many times the noise, or the tolerance, a number must be not to be 0 by accident
RIGHT = 0.03  # parameters whose relative error is this share of the others' are right where those are wrong
ALONG = 0.1  # a difference with this share, or less, across the target's direction lies along it
MOSTLY = 1 / 3  # the same, where the part across is within the tolerance
MOST, FEW = 0.9, 0.05  # a difference is concentrated where so much of it is at so few coordinates
LITTLE = 1e-5  # of the average; where less is added up, the rounding of other numbers is seen
FEWEST = 16  # coordinates that distinguish rounding from chance
SHORT = 0.9  # share of the gradient's numbers that are short where a format left them
NEAR, NEAR_SHORTEST = 256, 4  # units that a number of float32, or of 16 bits, is from the right one, at most
SIZES = (0.2, 8)  # of the difference in units, on average; measured: 0.3 to 4
LARGEST = 16  # units, but for one coordinate in a thousand
EVEN = 0.2  # of the average is the least median; rounding has 0.5, a lost token 0.04
PEAKED = 15  # fourth moment over the square of the second: rounding has 5 to 10, a lost token 40 and more
DIRECTED = 0.25  # cosine with the target, each coordinate in its own unit
# name; bits of the mantissa; more bits that a sum of a few such numbers has
FORMATS = (("float32", 24, 20), ("float16", 11, 4), ("bfloat16", 8, 4))


@dataclass(frozen=True, eq=False)
class Mistake:
    """A mistake and the weights it leads to, (num_parts,), up to a factor; ``factors``: those of this mistake alone."""

    weights: Floats
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
         f"summed over {ranks} ranks and not averaged, or the loss is multiplied by the number of ranks"
         + ", or the gradient of an equal step before was not cleared" * (ranks == 2)),
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
    alike = ((float(times[0]), words) for words, times in target.rules.items() if _are_alike(times))
    return [
        *((factor, words) for factor, words in alike if abs(factor - 1) > SAME),
        *((factor, words) for possible, factor, words in known if possible),
    ]


def _are_alike(times: Floats) -> bool:
    return bool(np.ptp(times) <= SAME * np.abs(times).max())


def mistakes(target: Target) -> Iterator[Mistake]:
    """Yield known mistakes, the simplest first; of several with the same weights, the first is reported.

    The first of all has the right weights, and so differs from the target by a common factor alone.
    """
    counts, ranks, total, size = target.counts, target.ranks, target.total, target.num_ranks
    right, each = np.full(len(counts), 1 / total), np.maximum(counts, 1)
    by_rank = np.bincount(ranks, weights=counts, minlength=size)  # n_r
    steps = np.bincount(ranks, minlength=size)  # A_r

    def over_own(share: Floats | Ints) -> Floats:
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
    for words, times in target.rules.items():
        if not _are_alike(times):
            yield Mistake(right * times, words)


class Departure:
    """A gradient beside its target, with sums over the coordinates of each parameter, each (num_parameters,).

    ``tolerance``: the relative error that is allowed. ``missing``: parameters whose ``grad`` is None.
    ``squares``, ``target_squares``, ``apart``: sums of squares of the gradient, of the target and of their difference.
    ``present``: coordinates at which the target is not 0. ``zeros``: those of them at which the gradient is 0.
    ``error``, ``cosine``, ``scale``: relative error, cosine and best scale over all parameters; NaN where the target is
    0, as every multiple of it is the same.
    """

    def __init__(self, gradient: Floats, target: Target, tolerance: float, missing: Collection[str] = ()) -> None:
        self._gradient, self._target, self._tolerance, self._missing = gradient, target, tolerance, missing
        self._sketch = gradient[target.coordinates].astype(np.float64)
        rows = np.zeros((6, len(target.slices)))
        for row, place in zip(rows.T, target.slices.values(), strict=True):
            for g, t in self._pieces(place):
                zeros = np.count_nonzero((g == 0) & (t != 0))
                row += g @ g, t @ t, (g - t) @ (g - t), g @ t, np.count_nonzero(t), zeros
        self.squares, self.target_squares, self.apart, _, self.present, self.zeros = rows
        gg, tt, apart, gt, *_ = rows.sum(axis=1).tolist()
        self.error = self.cosine = self.scale = float("nan")
        if tt:
            self.error, self.cosine, self.scale = (apart / tt) ** 0.5, gt / (gg * tt) ** 0.5 if gg else 0.0, gt / tt

    def _pieces(self, place: slice) -> Iterator[tuple[Floats, Floats]]:
        for start in range(place.start, place.stop, PIECE):
            piece = slice(start, min(start + PIECE, place.stop))
            yield self._gradient[piece].astype(np.float64), self._target.gradient[piece].astype(np.float64)

    @cached_property
    def errors(self) -> Floats:
        """(num_parameters,): the relative error of each parameter; infinite where its target is 0 and it is not."""
        with np.errstate(divide="ignore", invalid="ignore"):
            return np.sqrt(np.where(self.apart > 0, self.apart / self.target_squares, 0.0))

    @cached_property
    def lost(self) -> dict[str, int | None]:
        """The number of coordinates that have no gradient although losses reach them, by parameter; None: all.

        Rounding turns no number into an exact 0, unless the number is itself no more than rounding.
        """
        kind = np.finfo(self._target.gradient.dtype)
        floor = kind.eps * float(self.target_squares.sum()) ** 0.5 * self._target.cancellation
        least = kind.tiny / kind.eps  # above what underflows
        counts: dict[str, int | None] = {}
        for i, (name, place) in enumerate(self._target.slices.items()):
            size = self.target_squares[i] ** 0.5
            if self.zeros[i] and self.squares[i] == 0:
                if name in self._missing or size > floor or (self.present[i] >= SEVERAL and size > least):
                    counts[name] = None
            elif self.zeros[i] and size > floor and (count := self._clear_zeros(place, i, self._tolerance * size)):
                counts[name] = count
        return counts

    def _clear_zeros(self, place: slice, i: int, tolerated: float) -> int:
        """Return the number of parameter i's zeros where the target is far above the rest of the difference.

        ``tolerated``: a norm.
        """
        at_zeros = sum(float(np.sum(t[g == 0] ** 2)) for g, t in self._pieces(place))
        noise = max(0.0, self.apart[i] - at_zeros) ** 0.5
        least = CLEAR * max(noise, tolerated) / (place.stop - place.start) ** 0.5
        return sum(int(np.count_nonzero((g == 0) & (np.abs(t) > least))) for g, t in self._pieces(place))

    def wrong_parameters(self) -> list[str]:
        """Return the parameters that hold all of the difference; none where no others' gradient is right."""
        apart, target, errors = self.apart, self.target_squares, self.errors**2
        order = np.argsort(-apart)
        rest = apart.sum() - np.cumsum(apart[order])
        allowed = max(self._tolerance**2 * target.sum(), RIGHT**2 * apart.sum())
        wrong, others = np.split(order, [int(np.argmax(rest <= allowed)) + 1])
        right = others[(target[others] > 0) & (errors[others] <= RIGHT**2 * errors[wrong].min())]
        names = list(self._target.slices)
        return [names[i] for i in sorted(wrong)] if self.present[right].sum() >= SEVERAL else []

    @cached_property
    def along(self) -> bool:
        """Whether the difference is ``scale - 1`` times the target, up to a little or to what is tolerated."""
        pieces = (piece for place in self._target.slices.values() for piece in self._pieces(place))
        across = sum(float((g - self.scale * t) @ (g - self.scale * t)) for g, t in pieces)
        apart, allowed = float(self.apart.sum()), self._tolerance**2 * float(self.target_squares.sum())
        return across <= max(ALONG**2 * apart, min(MOSTLY**2 * apart, allowed))

    def where_most(self) -> str:
        """Return where most of the difference lies, as text; "" where it is spread.

        >>> gradient = np.ones(100)
        >>> parts, counts, ranks = gradient[None], np.array([1]), np.array([0])
        >>> target = Target(gradient, parts, np.arange(100), counts, ranks, parameters={"w": 100})
        >>> wrong = gradient + (np.arange(100) < 2)
        >>> Departure(wrong, target, 1e-12).where_most()
        'most of it at 2 of the 100 coordinates looked at'
        """
        places, slices, target = [], list(self._target.slices.items()), self._target.gradient
        largest = [slices[i] for i in np.argsort(-self.apart)[: _most(self.apart)]]
        if len(largest) < len(slices) and sum(s.stop - s.start for _, s in largest) <= 0.5 * len(target):
            places.append(first_few([name for name, _ in largest], 3))
        squares = (self._sketch - target[self._target.coordinates]) ** 2
        count = _most(squares)
        if count <= FEW * len(squares):
            places.append(f"{count:,} of the {len(squares):,} coordinates looked at")
        return f"most of it at {', '.join(places)}" if places else ""


def _most(squares: Floats) -> int:
    """Return how many of the largest add up to most of the sum."""
    return int(np.searchsorted(np.cumsum(np.sort(squares)[::-1]), MOST * squares.sum())) + 1


def rounding(sketch: Floats, target: Target) -> str | None:
    """Return the evidence that ``sketch``, (S,), is the target up to rounding; None where there is none."""
    right = target.gradient[target.coordinates].astype(np.float64)
    parts = np.asarray(target.parts, dtype=np.float64) / (target.total or 1.0)
    scale = np.sqrt((parts**2).sum(axis=0) + right**2)  # what rounds, each part and the sum, independently
    size, apart, reached = float(np.sqrt(np.mean(scale**2))), sketch - right, scale > 0
    present = scale > LITTLE * size
    if apart[~reached].any() or np.count_nonzero(present) < max(FEWEST, 0.25 * np.count_nonzero(reached)):
        return None
    most = float(np.max(np.abs(apart), where=~present, initial=0.0))  # what rounding leaves of sums that are 0
    formats = [(name, bits, bits + more) for name, bits, more in FORMATS if most <= 2.0**-bits * size]
    apart, scale, sketch, right = apart[present], scale[present], sketch[present], right[present]
    precision = np.finfo(target.gradient.dtype).nmant + 1
    for name, bits, summed in formats:
        nearest = (NEAR if bits > 16 else NEAR_SHORTEST) * 2.0**-bits
        near = precision > summed and np.mean(np.abs(apart / scale) <= nearest) >= 0.999
        if near and _share_of_short(sketch, summed) >= SHORT and _share_of_short(right, summed) < 0.5:
            return (
                "rounding: computed, or added up, in a lower precision; the gradient's numbers are numbers of "
                f"{name}{' (a 16-bit format)' if bits < 16 else ''}, or sums of a few, and as near the target as it "
                "allows"
            )
    for name, bits, _ in formats:
        if _like_noise(apart / scale * 2.0**bits, right / scale):
            where = "in a lower precision" if precision > bits else "in its own precision, where much cancels"
            return (
                f"rounding: computed, or added up, {where}; the difference has no direction, is at each coordinate in "
                f"proportion to what is added up there, and is as large as {name if bits > 16 else 'a 16-bit format'} "
                "leaves it"
            )
    return None


def _share_of_short(numbers: Floats, bits: int) -> float:
    """Return the share of nonzero numbers whose mantissa has at most so many bits; 0 where they are few."""
    nonzero = numbers[numbers != 0]
    if len(nonzero) < FEWEST:
        return 0.0
    mantissa = np.ldexp(np.frexp(nonzero)[0], bits)
    return float(np.mean(mantissa == np.round(mantissa)))


def _like_noise(units: Floats, direction: Floats) -> bool:
    """Return whether a difference, in units of the format, is as large as rounding, spread evenly, and undirected."""
    squares = units**2
    mean = float(squares.mean())
    if not SIZES[0] <= mean**0.5 <= SIZES[1] or np.mean(squares <= LARGEST**2) < 0.999:
        return False
    even = float(np.median(np.abs(units))) >= EVEN * mean**0.5 and float((squares**2).mean()) <= PEAKED * mean**2
    along = abs(float(units @ direction)) / (float(np.linalg.norm(units)) * float(np.linalg.norm(direction)) or 1.0)
    return even and along <= max(DIRECTED, 3 / len(units) ** 0.5)
