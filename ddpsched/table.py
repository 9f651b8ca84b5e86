"""Table: the base of each table of a config, frozen, and strict about keys and types; and the ranges of its values.

Whatever is within its range fits the libraries that get it: 64-bit integers, float64, C strings.
"""

from typing import Annotated

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError

from ddpsched.decode import shorter, shown

LARGEST_TABLE = 2**24  # samples that wait or are planned at once, over all ranks: a few hundred MB of integers
LARGEST_STEP = 2**20  # micro-batches of a step over all ranks

Positive = Annotated[int, Field(gt=0, le=2**31 - 1)]  # steps, rows, and other counts
Ranks = Annotated[int, Field(gt=0, le=2**16)]
BatchSize = Annotated[int, Field(gt=0, le=2**20)]  # samples of a step over all ranks
Threads = Annotated[int, Field(gt=0, le=1024)]  # OpenMP crashes where it cannot start them
Length = Annotated[int, Field(gt=0, le=2**20)]  # tokens of a sample
Tokens = Annotated[int, Field(gt=0, le=2**40)]  # tokens of a micro-batch
Bytes = Annotated[int, Field(gt=0, le=2**60)]
Seed = Annotated[int, Field(ge=0, le=2**32 - 1)]  # the most that numpy.random.seed takes, as other libraries call it
NonNegative = Annotated[float, Field(ge=0, le=1e15)]
PositiveFloat = Annotated[float, Field(gt=0, le=1e15)]
Float32 = Annotated[float, Field(gt=0, le=1e38)]  # of arithmetic with gradients
Timeout = Annotated[float, Field(ge=1e-3, le=1e6)]  # seconds


def _without_nul(value: str) -> str:
    if "\0" in value:
        raise ValueError(f"{value[:80]!r} has a NUL character at {value.index(chr(0)) + 1}; leave it out")
    return value


Text = Annotated[str, Field(max_length=4096), AfterValidator(_without_nul)]  # names and paths


# files beside a run's folder are named after it, and a name has at most 255 bytes
FolderName = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$", max_length=200)]


class Table(BaseModel):
    """A frozen table of the config; unknown keys and wrong types are refused."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, allow_inf_nan=False)


def first_fault(error: ValidationError) -> str:
    """Return the first fault of a file's values: key, value, and what it should be."""
    fault = error.errors(include_url=False)[0]
    key, message = shorter(".".join(map(str, fault["loc"]))), fault["msg"].removeprefix("Value error, ")
    if fault["type"] == "json_invalid":  # whose own words name a column, after the whole line
        return "it is no whole JSON object; it was cut off or damaged"
    if fault["type"] == "missing":
        return f"{key} is missing"
    return f"{key or 'the whole'} = {shown(fault['input'])}: {message[:1].lower()}{message[1:]}"
