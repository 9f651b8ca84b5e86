"""StepTimes: the seconds of a model's micro-batches and steps on a device, which policy auto chooses by."""

import os
from collections.abc import Iterable, Sequence
from hashlib import blake2b
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar

import numpy as np
import numpy.typing as npt
from pydantic import Field, ValidationError

from ddpsched.costs.calibration import NOISY, Calibration, Identity, Seconds
from ddpsched.costs.config import CostConfig, cost_model
from ddpsched.costs.cost_model import CostModel, Int
from ddpsched.decode import decode_json
from ddpsched.records import write_json
from ddpsched.regular_file import read_regular
from ddpsched.table import NonNegative, Positive, PositiveFloat, Table

KEPT = "DDPSCHED_CACHE"  # the environment's name of the folder of measurements
KNOTS = 8  # of a curve
QUIET = [1.0] * 10  # of a device without noise
NONE = Seconds(alpha=0, beta=0, gamma=0, delta=0, floor=0)  # in a vote, of times that are not known


Item = TypeVar("Item")


def evenly(items: Sequence[Item], most: int) -> list[Item]:
    """Return up to ``most`` of the items, from the first to the last, evenly.

    >>> evenly("abcdefg", 3)
    ['a', 'd', 'g']
    """
    if not items:
        return []
    return [items[place] for place in np.unique(np.linspace(0, len(items) - 1, min(most, len(items))).astype(np.int64))]


class Curve(Table):
    """Measured over fitted times by the tokens that a micro-batch computes, at ``ratios``, evenly spaced in their
    logarithm from ``least`` to ``most`` tokens; in between on straight lines, beyond as at the ends.

    Time is not quite linear in tokens: where tensors outgrow a cache, or what the allocator keeps, it jumps.

    >>> float(Curve(least=10, most=1000, ratios=[1.0] * 7 + [2.0]).at([1000, 5000]).mean())
    2.0
    """

    least: Positive = 1
    most: Positive = 1
    ratios: Annotated[list[PositiveFloat], Field(min_length=KNOTS, max_length=KNOTS)] = [1.0] * KNOTS

    @classmethod
    def of(cls, tokens: Int, ratios: Any) -> "Curve":
        """Return the curve through these points, (n,) each, as near as its knots allow."""
        logs, places = np.unique(np.log(tokens), return_inverse=True)
        means = np.bincount(places, ratios) / np.bincount(places)
        least, most = int(tokens.min()), int(tokens.max())
        return cls(least=least, most=most, ratios=np.interp(_knots(least, most), logs, means).tolist())

    def at(self, tokens: Any) -> npt.NDArray[np.float64]:
        """Return the ratio of micro-batches that compute so many tokens, (n,) -> (n,)."""
        if self.least == self.most:
            return np.full(np.shape(tokens), self.ratios[0])
        return np.interp(np.log(np.maximum(tokens, 1)), _knots(self.least, self.most), self.ratios)

    @property
    def numbers(self) -> list[float]:
        """All its numbers, as many for each curve."""
        return [float(self.least), float(self.most), *self.ratios]

    @classmethod
    def from_numbers(cls, numbers: Sequence[float]) -> "Curve":
        """Return the curve that has these :attr:`numbers`."""
        return cls(least=int(numbers[0]), most=int(numbers[1]), ratios=list(numbers[2:]))


def _knots(least: int, most: int) -> npt.NDArray[np.float64]:
    return np.linspace(np.log(least), np.log(most), KNOTS)


class Tried(Table):
    """``ratio``: the measured time of some steps over the predicted one. ``error``: its standard error, as a share."""

    ratio: PositiveFloat
    error: NonNegative


class StepTimes(Table):
    """Times of one model on one device, measured when a run began.

    ``padded``, ``packed``: of micro-batches, forward and backward; packed is null where the model cannot. Their curves:
    by how much they are off, by tokens. ``rest_s``: what a step takes beside these, of the optimizer and of ranks that
    meet. ``error``: the mean error of the fit at points that were left out of it, as a share. ``noise``: times over the
    smallest of the same micro-batch, ten quantiles, evenly spaced. ``compiled``: as ``padded``, of the compiled model;
    null where it was not compiled. ``compiled_error``: the largest error of that, as a share. ``compiled_rest_s``: as
    ``rest_s``, of the compiled model. ``compile_s``: seconds that a program of it took to be made, on average.
    ``failed``: why it could not be. ``together``: the time of a micro-batch while all ranks compute over its time while
    the others wait; above 1 where ranks of one machine slow each other. ``tried``: candidates by name that were run for
    some steps, and how far these were off what the rest of this predicts.
    """

    kind: Literal["step_times"] = "step_times"
    version: Literal[6] = 6
    identity: Identity | None
    world_size: Positive
    padded: Seconds
    packed: Seconds | None
    padded_curve: Curve = Curve()
    packed_curve: Curve = Curve()
    rest_s: NonNegative
    error: NonNegative
    noise: Annotated[list[PositiveFloat], Field(min_length=10, max_length=10)]
    compiled: Seconds | None = None
    compiled_error: NonNegative = 0.0
    compiled_rest_s: NonNegative = 0.0
    compile_s: NonNegative = 0.0
    failed: str | None = None
    together: Annotated[float, Field(ge=1, allow_inf_nan=False)] = 1.0
    tried: dict[str, Tried] = Field(default_factory=dict)

    def off(self, name: str) -> float:
        """Return the measured over the predicted time of a candidate; of one that was not tried, the mean of others."""
        if name in self.tried:
            return self.tried[name].ratio
        return float(np.mean([each.ratio for each in self.tried.values()])) if self.tried else 1.0

    def _tried(self, name: str) -> tuple[float, float]:
        return (self.tried[name].ratio, self.tried[name].error) if name in self.tried else (0.0, 0.0)

    @property
    def cost(self) -> CostModel:
        """The cost of padded micro-batches, in nanoseconds."""
        return CostModel(**self.padded.model_dump())

    @property
    def packed_cost(self) -> CostModel | None:
        """The cost of packed rows, in nanoseconds."""
        return None if self.packed is None else CostModel(**self.packed.model_dump())

    @property
    def compiled_cost(self) -> CostModel | None:
        """The cost of padded micro-batches of the compiled model, in nanoseconds."""
        return None if self.compiled is None else CostModel(**self.compiled.model_dump())

    @property
    def spread(self) -> float:
        """By how much the median time is above the smallest, as a share."""
        return (self.noise[4] + self.noise[5]) / 2 - 1

    @property
    def is_noisy(self) -> bool:
        """Whether times differed so much that a fit says little."""
        return self.spread > NOISY

    def as_row(self, names: Sequence[str] = ()) -> list[int]:
        """Return all numbers as 64-bit integers, as votes carry them. ``names``: of candidates that may be tried."""
        costs = [each or NONE for each in (self.padded, self.packed, self.compiled)]
        values = [
            *(number for cost in costs for number in cost.model_dump().values()),
            *self.padded_curve.numbers, *self.packed_curve.numbers,
            self.rest_s, self.error, self.compiled_error, self.compiled_rest_s, self.compile_s, self.together,
            *self.noise,
            *(number for name in names for number in self._tried(name)),
        ]  # fmt: skip
        whole: list[int] = np.array(values, dtype=np.float64).view(np.int64).tolist()
        return [*whole, int(self.packed is not None), int(self.compiled is not None)]

    def with_row(self, row: Sequence[int], names: Sequence[str] = ()) -> "StepTimes":
        """Return these times with the numbers of another rank's ``as_row``, of as many names."""
        *whole, packs, compiles = row
        values = np.array(whole, dtype=np.int64).view(np.float64).tolist()
        fields, curve = list(Seconds.model_fields), 2 + KNOTS
        padded, packed, compiled = (Seconds(**dict(zip(fields, values[i : i + 5], strict=True))) for i in (0, 5, 10))
        curves = (Curve.from_numbers(values[i : i + curve]) for i in (15, 15 + curve))
        rest_s, error, compiled_error, compiled_rest_s, compile_s, together, *others = values[15 + 2 * curve :]
        noise, pairs = others[: len(QUIET)], zip(others[len(QUIET) :: 2], others[len(QUIET) + 1 :: 2], strict=True)
        tried = {each: Tried(ratio=of, error=error) for each, (of, error) in zip(names, pairs, strict=True) if of}
        changed: dict[str, Any] = dict(zip(("padded_curve", "packed_curve"), curves, strict=True))
        changed |= {"padded": padded, "packed": packed if packs else None, "compiled": compiled if compiles else None}
        changed |= {"rest_s": rest_s, "error": error, "compile_s": compile_s}
        changed |= {"compiled_error": compiled_error, "compiled_rest_s": compiled_rest_s}
        return self.model_copy(update=changed | {"together": together, "noise": noise, "tried": tried})


def noise_of(seconds: Iterable[Sequence[float]]) -> list[float]:
    """Return ten evenly spaced quantiles of times over the smallest of the same micro-batch.

    ``seconds``: the times of each micro-batch, at least one of one.
    """
    ratios = np.concatenate([np.array(each) / min(each) for each in seconds])
    return np.quantile(ratios, np.linspace(0.05, 0.95, 10)).tolist()


def calibrated_times(config: CostConfig) -> StepTimes:
    """Return the times by which to predict: of padded micro-batches alone, and nothing beside them.

    Times of packed rows are unknown. The cost of a padded token is no stand-in: by it a row without padding never costs
    more than padded micro-batches, while models may run packed rows by slower kernels. Nor is known what a step takes
    beside its micro-batches; it is the same for all candidates, so the fastest is the fastest without it. Noise is that
    of the calibration's passes; 1 where the cost is given by its coefficients.

    Raises ConfigError where a file cannot be read.
    """
    noise, error, identity, curve = QUIET, 0.0, None, Curve()
    cost = cost_model(config)
    if config.kind == "calibrated":
        assert config.path is not None, "the config refuses it"
        given = Calibration.load(config.path)
        identity, error = given.identity, given.seconds_residuals.held_out_mean
        if given.points:
            noise = noise_of(point.seconds for point in given.points)
            count, length, least = np.array([(p.count, p.length, min(p.seconds)) for p in given.points]).T
            curve = Curve.of(count * length, least / cost.seconds(count, length))
    return StepTimes(
        identity=identity, world_size=1, padded=Seconds.of(cost), padded_curve=curve, packed=None, rest_s=0.0,
        error=error, noise=noise,
    )  # fmt: skip


def kept_folder() -> Path:
    """Return the folder of what is measured or searched once for several runs."""
    return Path(os.environ.get(KEPT) or Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "ddpsched")


def kept_in(identity: Identity, world_size: int, setting: str, versions: Sequence[str | None]) -> Path:
    """Return the file in which such a measurement is kept. ``setting``: what else of a run it depends on."""
    known = f"{identity.model_dump_json()} {world_size} {setting} {list(versions)}"
    return kept_folder() / "step_times" / f"{blake2b(known.encode(), digest_size=12).hexdigest()}.json"


def load_kept(path: Path) -> StepTimes | None:
    """Return a measurement that is kept; None where there is none, or the file is no such."""
    try:
        return StepTimes.model_validate(decode_json(read_regular(path)))
    except (OSError, ValueError, ValidationError):  # absent, damaged or of another version: it is measured again
        return None


def keep(path: Path, times: StepTimes) -> None:
    """Keep a measurement for later runs, where the folder can be written; not a noisy one, which they make anew."""
    if times.is_noisy:
        return
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_json(path, times.model_dump())
    except OSError:  # a full disk or a folder of others: this run has its times, and later ones measure again
        return
