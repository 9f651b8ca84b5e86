"""What `ddpsched calibrate` measured of one model on one device: its time, its memory, and what they hold for.

A file of JSON that ``cost.path`` and ``memory.path`` of a config name. Whoever runs a
model says what it runs (``Identity``) and has it checked; numbers of another model,
device or precision would still make plans, only wrong ones.
"""

import json
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field, PrivateAttr, ValidationError

from ddpsched.costs.cost_model import CostModel
from ddpsched.costs.memory_model import MemoryModel
from ddpsched.errors import ConfigError
from ddpsched.table import NonNegative, Positive, Table

KIND: Literal["calibration"] = "calibration"
VERSION: Literal[1] = 1


class Identity(Table):
    """What a measurement holds for. Unknown parts are null and are not compared."""

    model: str  # model.name of the config, or a folder's path: named in messages
    parameters: int | None = None
    shape: dict[str, int | float | str | None] | None = None  # class, sizes, dropout
    device: str | None = None  # the processor's or the GPU's name
    precision: str | None = None  # float32 | float64 | bfloat16
    threads: int | None = None  # of torch on a CPU; null on a GPU, whose time they do not change
    max_length: int  # the longest sample, in tokens

    def differences(self, run: "Identity") -> list[str]:
        """What a run has otherwise than what was measured, in words."""
        pairs: dict[str, tuple[Any, Any]] = {
            "parameters": (self.parameters, run.parameters),
            "device": (self.device, run.device),
            "precision": (self.precision, run.precision),
            "threads": (self.threads, run.threads),
        }
        if self.shape is None or run.shape is None:
            pairs = {"model": (self.model, run.model), **pairs}
        else:  # the same model may lie in a folder here and on the hub there
            names = sorted(self.shape.keys() | run.shape.keys())
            pairs |= {f"model {key}": (self.shape.get(key), run.shape.get(key)) for key in names}
        found = [f"{key} {a} there, {b} here" for key, (a, b) in pairs.items() if None not in (a, b) and a != b]
        if run.max_length > self.max_length:
            found.append(f"samples of up to {self.max_length} tokens there, {run.max_length} here")
        return found

    def __str__(self) -> str:
        size = "" if self.parameters is None else f" ({self.parameters:,} parameters)"
        rest = (self.device, self.precision, None if self.threads is None else f"{self.threads} thread(s)")
        return ", ".join([f"model {self.model!r}{size}", *(part for part in rest if part)])


class Seconds(Table):
    """The coefficients of ``CostModel``, in seconds."""

    alpha: NonNegative
    beta: NonNegative
    gamma: NonNegative
    delta: NonNegative
    floor: NonNegative


class Bytes(Table):
    """The coefficients of ``MemoryModel``, in bytes, raised so that no measured point lies above it."""

    base: NonNegative
    per_sample: NonNegative
    per_token: NonNegative
    per_square: NonNegative


class Residuals(Table):
    """How far a model lies from what was measured, as shares of the measured value."""

    train_mean: NonNegative
    train_max: NonNegative
    held_out_mean: NonNegative
    held_out_max: NonNegative
    worst_underestimate: NonNegative  # of a held-out point; the memory model was then raised by it


class Measured(Table):
    """One point of the grid."""

    count: Positive
    length: Positive
    held_out: bool
    seconds: Annotated[list[Annotated[float, Field(gt=0)]], Field(min_length=1)]  # of each pass
    peak_bytes: Positive | None

    @property
    def quickest(self) -> float:
        """The smallest of its times: what disturbs a measurement only ever adds to it."""
        return min(self.seconds)


class Calibration(Table):
    """A calibration as its file holds it; ``time`` and ``memory`` are the models that planning uses."""

    kind: Literal["calibration"] = KIND
    version: Literal[1] = VERSION
    identity: Identity
    versions: dict[str, str | None]  # of what measured: python, torch, transformers, ...
    seconds: Seconds
    bytes: Bytes | None  # null: this system does not tell a process's peak memory
    seconds_residuals: Residuals
    bytes_residuals: Residuals | None
    points: list[Measured]

    _source: str = PrivateAttr("this calibration")

    @classmethod
    def load(cls, path: str | Path) -> "Calibration":
        """Read a file. Raises ConfigError that names it, its fault, and the command that writes a new one."""
        again = "write one with: ddpsched calibrate CONFIG --output FILE"
        try:
            text = Path(path).read_text(encoding="utf-8")
            values = json.loads(text)
        except (OSError, ValueError) as error:
            reason = error.strerror if isinstance(error, OSError) else f"not JSON: {error}"
            raise ConfigError(f"calibration {path}: {reason}; {again}") from None
        kind = values.get("kind") if isinstance(values, dict) else None
        if kind == "affine_quadratic":
            raise ConfigError(
                f"calibration {path}: this is a fit of `ddpsched fit`, which knows neither its model nor its device, "
                f'nor memory; use it as cost.kind = "affine_quadratic", or {again}'
            )
        if kind != KIND:
            raise ConfigError(f'calibration {path}: kind = {kind!r}, expected "{KIND}"; {again}')
        if values.get("version") != VERSION:
            raise ConfigError(
                f"calibration {path}: version = {values.get('version')!r}, this ddpsched reads {VERSION}; {again}"
            )
        try:
            found = cls.model_validate_json(text)
        except ValidationError as error:
            fault = error.errors()[0]
            where = ".".join(map(str, fault["loc"]))
            raise ConfigError(f"calibration {path}: {where}: {fault['msg'].lower()}; {again}") from None
        found._source = str(path)
        return found

    @property
    def time(self) -> CostModel:
        """The cost of a micro-batch, in nanoseconds."""
        return CostModel(**self.seconds.model_dump())

    @property
    def memory(self) -> MemoryModel:
        """What a micro-batch needs. Raises ConfigError where memory could not be measured."""
        if self.bytes is None:
            raise ConfigError(
                f"{self._source} holds no memory model: the system it was measured on does not tell peak memory; "
                "use memory.probe, or calibrate on Linux or a CUDA device"
            )
        return MemoryModel(**self.bytes.model_dump())

    def check(self, run: Identity, force: bool = False) -> list[str]:
        """Whether the measurement holds for a run; the differences, which ``force`` lets pass.

        Raises ConfigError that names what was measured, what the run is, and what to do.
        """
        found = self.identity.differences(run)
        if found and not force:
            raise ConfigError(
                f"{self._source} was measured for {self.identity}; this run is {run}. They differ: "
                f"{'; '.join(found)}. Calibrate anew (ddpsched calibrate CONFIG --output FILE), or pass --force"
            )
        return found
