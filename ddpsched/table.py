"""Table: the base of each table of a config, frozen, and strict about keys and types."""

from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field

Positive = Annotated[int, Field(gt=0)]
NonNegative = Annotated[float, Field(ge=0)]


class Table(BaseModel):
    """A frozen table of the config; unknown keys and wrong types are refused."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, allow_inf_nan=False)
