"""The target gradient of a step, and the gradients of the parts that it is the mean of."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.floating]
Ints = npt.NDArray[np.integer]

SKETCH = 65_536  # coordinates at which the gradients of parts are kept


@dataclass(frozen=True, eq=False)
class Target:
    """The gradient that a step should have, and the parts it is made of. A part is a micro-batch or a sample.

    Attributes:
        gradient: (P,).
        parts: (num_parts, S), the gradient of each part's summed loss at ``coordinates``.
        coordinates: (S,), rising.
        counts: (num_parts,) samples or label tokens of each part.
        ranks: (num_parts,) rank that ran each part; a rank's parts stand in the order it ran them.
        others: what could have been counted instead, by name, each (num_parts,).
        rules: what else label tokens could have been divided by, in words: how many times the right weight each part
            then has, (num_parts,).
        names: a name for each part, where a reader knows them.
        world_size: number of ranks, where the last ones ran nothing.
        unit: what is counted, "samples" or "tokens".
        parameters: number of coordinates of each parameter, by name, in the order of ``gradient``.
    """

    gradient: Floats
    parts: Floats
    coordinates: Ints
    counts: Ints
    ranks: Ints
    others: Mapping[str, Ints] = field(default_factory=dict)
    rules: Mapping[str, Floats] = field(default_factory=dict)
    names: tuple[str, ...] = ()
    world_size: int | None = None
    unit: str = "samples"
    parameters: Mapping[str, int] = field(default_factory=dict)

    @property
    def total(self) -> float:
        """T: samples or label tokens over all ranks."""
        return float(np.sum(self.counts))

    @property
    def num_ranks(self) -> int:
        """The number of ranks, with or without samples."""
        return self.world_size or int(np.max(self.ranks)) + 1

    @property
    def cancellation(self) -> float:
        """Sum of the parts' norms over the norm of their sum: the factor by which rounding grows."""
        whole = float(np.linalg.norm(self.parts.sum(axis=0)))
        return float(np.linalg.norm(self.parts, axis=1).sum()) / whole if whole else float("inf")

    @property
    def slices(self) -> dict[str, slice]:
        """Each parameter's place in ``gradient``; all of it under the name "" where parameters are not known."""
        sizes = self.parameters or {"": len(self.gradient)}
        ends = np.cumsum(list(sizes.values())).tolist()
        return {name: slice(end - size, end) for (name, size), end in zip(sizes.items(), ends, strict=True)}

    def restrict(self, names: Collection[str], gradient: Floats) -> tuple["Target", Floats]:
        """Return the target of these parameters alone, and ``gradient``, (P,), at these parameters."""
        places = [np.arange(place.start, place.stop) for name, place in self.slices.items() if name in names]
        index = np.concatenate(places)
        at = np.searchsorted(index, self.coordinates)
        inside = index[np.minimum(at, len(index) - 1)] == self.coordinates
        target = replace(
            self, gradient=self.gradient[index], parts=np.asarray(self.parts)[:, inside], coordinates=at[inside],
            parameters={name: size for name, size in self.parameters.items() if name in names},
        )  # fmt: skip
        return target, gradient[index]


def draw_coordinates(num_parameters: int, seed: int = 0, most: int = SKETCH) -> Ints:
    """Return (S,), rising: coordinates of a flat gradient drawn without repetition, at most ``most``.

    >>> draw_coordinates(4).tolist()
    [0, 1, 2, 3]
    """
    if num_parameters <= most:
        return np.arange(num_parameters)
    return np.sort(np.random.default_rng(seed).choice(num_parameters, most, replace=False, shuffle=False))
