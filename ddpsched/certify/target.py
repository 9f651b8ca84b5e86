"""What a gradient is to be, and what it is made of."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.floating]
Ints = npt.NDArray[np.integer]

SKETCH = 65_536  # coordinates on which the parts are kept


@dataclass(frozen=True, eq=False)
class Target:
    """The gradient that is to be, and what it is made of.

    ``gradient``: (P,). ``parts``: (num_parts, S), at ``coordinates`` (S,) the gradient of each part's summed loss; a
    part is a micro-batch, or a sample. ``counts``: (num_parts,) samples or label tokens of each. ``ranks``:
    (num_parts,) who ran it, in the order it ran them. ``others``: what could have been counted instead, by name, as
    (num_parts,). ``names``: of each part, if a reader knows them. ``world_size``: where the last ranks ran nothing.
    ``unit``: what counts, "samples" or "tokens". ``parameters``: how many coordinates each has, by name, in the order
    of ``gradient``.
    """

    gradient: Floats
    parts: Floats
    coordinates: Ints
    counts: Ints
    ranks: Ints
    others: Mapping[str, Ints] = field(default_factory=dict)
    names: tuple[str, ...] = ()
    world_size: int | None = None
    unit: str = "samples"
    parameters: Mapping[str, int] = field(default_factory=dict)

    @property
    def total(self) -> float:
        """T: items that count, over all ranks."""
        return float(np.sum(self.counts))

    @property
    def cancellation(self) -> float:
        """How many times its own size the parts add up to, taken by size: what rounding grows by."""
        whole = float(np.linalg.norm(self.parts.sum(axis=0)))
        return float(np.linalg.norm(self.parts, axis=1).sum()) / whole if whole else float("inf")

    @property
    def slices(self) -> dict[str, slice]:
        """Where each parameter's gradient lies in ``gradient``; all of it under no name where they are not known."""
        sizes = self.parameters or {"": len(self.gradient)}
        ends = np.cumsum(list(sizes.values())).tolist()
        return {name: slice(end - size, end) for (name, size), end in zip(sizes.items(), ends, strict=True)}

    def of(self, names: Collection[str], found: Floats) -> tuple["Target", Floats]:
        """The target of these parameters alone, and what was ``found`` of them."""
        kept = {name: own for name, own in self.slices.items() if name in names}
        places, columns, start = [], [], 0
        for own in kept.values():
            first, last = np.searchsorted(self.coordinates, (own.start, own.stop))
            columns.append(np.arange(first, last))
            places.append(self.coordinates[first:last] - own.start + start)
            start += own.stop - own.start
        target = replace(
            self,
            gradient=np.concatenate([self.gradient[own] for own in kept.values()]),
            parts=np.asarray(self.parts)[:, np.concatenate(columns)],
            coordinates=np.concatenate(places),
            parameters={name: own.stop - own.start for name, own in kept.items()},
        )
        return target, np.concatenate([found[own] for own in kept.values()])

    @property
    def num_ranks(self) -> int:
        return self.world_size or int(np.max(self.ranks)) + 1


def draw_coordinates(num_parameters: int, rng: np.random.Generator, most: int = SKETCH) -> Ints:
    """(S,), rising: coordinates of a flat gradient, drawn without repetition; all of them where there are few."""
    if num_parameters <= most:
        return np.arange(num_parameters)
    return np.sort(rng.choice(num_parameters, most, replace=False, shuffle=False))
