"""A calibration: the time and memory that `ddpsched calibrate` measured, of one model on one device.

It is a JSON file that ``cost.path`` and ``memory.path`` of a config name. Its ``Identity`` is compared with that of
each run that uses it, as numbers of another model, device or precision would make wrong plans without any error.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field, PrivateAttr, ValidationError

from ddpsched.costs.cost_model import CostModel
from ddpsched.costs.memory_cap import MemoryModel
from ddpsched.decode import decode_json, shown
from ddpsched.errors import ConfigError
from ddpsched.regular_file import read_regular
from ddpsched.table import Bytes, Length, NonNegative, Positive, PositiveFloat, Table, Text, Threads, first_fault

KIND: Literal["calibration"] = "calibration"
VERSION: Literal[1] = 1
NOISY = 0.25  # of a time, by which passes may differ before a device is called noisy


class Identity(Table):
    """The model and device that a measurement holds for. Unknown fields are null and are not compared."""

    model: Text  # model.name of the config, or a folder's path: named in messages
    parameters: Annotated[int, Field(ge=0, le=2**60)] | None = None
    shape: dict[str, int | float | str | None] | None = None  # class, sizes, dropout
    device: str | None = None  # name of the processor or GPU
    precision: str | None = None  # float32 | float64 | bfloat16
    threads: Threads | None = None  # of torch on a CPU; null on a GPU, whose times do not depend on them
    max_length: Length  # the longest sample, in tokens

    def differences(self, run: "Identity") -> list[str]:
        """Return the differences between what was measured and a run, in words."""
        names = ["parameters", "device", "precision", "threads"]
        if self.shape is None or run.shape is None:
            names.insert(0, "model")
        pairs = [(name, getattr(self, name), getattr(run, name)) for name in names]
        if self.shape is not None and run.shape is not None:  # the same model may be in a folder and on the hub
            keys = sorted(self.shape.keys() | run.shape.keys())
            pairs += [(f"model {key}", self.shape.get(key), run.shape.get(key)) for key in keys]
        different = [f"{name} {a} measured, {b} in this run" for name, a, b in pairs if None not in (a, b) and a != b]
        if run.max_length > self.max_length:
            different.append(f"samples of up to {self.max_length} tokens measured, {run.max_length} in this run")
        return different

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

    @classmethod
    def of(cls, cost: CostModel) -> "Seconds":
        """Return the coefficients of a cost model that counts in seconds."""
        return cls(**{name: getattr(cost, name) for name in cls.model_fields})


class Residuals(Table):
    """The errors of a model, as shares of the measured values."""

    train_mean: NonNegative
    train_max: NonNegative
    held_out_mean: NonNegative
    held_out_max: NonNegative
    worst_underestimate: NonNegative  # of a held-out point; the memory model was then raised by it


class Measured(Table):
    """One point of the grid. The smallest of its times counts, as disturbances only ever add to a measurement."""

    count: Positive
    length: Positive
    held_out: bool
    seconds: Annotated[list[PositiveFloat], Field(min_length=1)]  # one per pass
    peak_bytes: Bytes | None


class Calibration(Table):
    """The contents of a calibration's file; ``time`` and ``memory`` are the models that planning uses."""

    kind: Literal["calibration"] = KIND
    version: Literal[1] = VERSION
    identity: Identity
    versions: dict[str, str | None]  # of python, torch, transformers, ... in the measurement
    seconds: Seconds
    bytes: MemoryModel | None  # not below any measured point; null: the system does not report peak memory
    seconds_residuals: Residuals
    bytes_residuals: Residuals | None
    points: list[Measured]

    _source: str = PrivateAttr("this calibration")

    @classmethod
    def load(cls, path: str | Path) -> "Calibration":
        """Read a file. Raises ConfigError that names it, its fault, and the command that writes a new one."""

        def refusal(reason: str) -> ConfigError:
            return ConfigError(f"calibration {path}: {reason}; write one with: ddpsched calibrate CONFIG --output FILE")

        text, values = read_measured(path, refusal)
        kind = values.get("kind")
        if kind == "affine_quadratic":
            raise refusal(
                "this is a fit of `ddpsched fit`, which holds for no known model or device and has no memory model; "
                'use it as cost.kind = "affine_quadratic"'
            )
        if kind != KIND:
            raise refusal(f'kind = {shown(kind)}, expected "{KIND}"')
        if type(values.get("version")) is not int or values["version"] != VERSION:
            raise refusal(f"version = {shown(values.get('version'))}, this ddpsched reads {VERSION}")
        try:
            calibration = cls.model_validate_json(text)
        except ValidationError as error:
            raise refusal(first_fault(error)) from None
        calibration._source = str(path)
        return calibration

    @property
    def time(self) -> CostModel:
        """The cost of a micro-batch, in nanoseconds."""
        return CostModel(**self.seconds.model_dump())

    @property
    def memory(self) -> MemoryModel:
        """The memory of a micro-batch, in bytes. Raises ConfigError where memory could not be measured."""
        if self.bytes is None:
            raise ConfigError(
                f"{self._source} holds no memory model: the system it was measured on does not report peak memory; "
                "use memory.probe, or calibrate on Linux or a CUDA device"
            )
        return self.bytes

    def check(self, run: Identity, force: bool = False) -> list[str]:
        """Return the differences from a run, which ``force`` accepts.

        Raises ConfigError that names what was measured, what the run is, and the remedy.
        """
        return check_identity(self._source, self.identity, run, force)


def read_measured(path: str | Path, refusal: Callable[[str], ConfigError]) -> tuple[str, dict[str, Any]]:
    """Return a JSON file's text and its table, {} where it holds none. Raises what ``refusal`` makes of a fault."""
    try:
        text = read_regular(path).decode()
        values = decode_json(text)
    except OSError as error:
        raise refusal(str(error.strerror)) from None
    except ValueError as error:
        raise refusal(f"not JSON: {error}") from None
    return text, values if isinstance(values, dict) else {}


def check_identity(source: str, measured: Identity, run: Identity, force: bool = False) -> list[str]:
    """Return the differences of what a file was measured for from a run, which ``force`` accepts.

    Raises ConfigError that names ``source``, the file, with both and the remedy.
    """
    different = measured.differences(run)
    if different and not force:
        raise ConfigError(
            f"{source} was measured for {measured}; this run is {run}. They differ: "
            f"{'; '.join(different)}. Calibrate anew (ddpsched calibrate CONFIG --output FILE), or pass --force"
        )
    return different
