"""Table: a part of a config, frozen, and aware of each of its keys."""

from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field

Positive = Annotated[int, Field(gt=0)]
NonNegative = Annotated[float, Field(ge=0)]


class Table(BaseModel):
    """A frozen table of the config that knows every one of its keys."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, allow_inf_nan=False)
