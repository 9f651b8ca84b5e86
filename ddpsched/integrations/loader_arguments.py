"""The arguments of samplers and loaders, checked like the tables of a run's config."""

from collections.abc import Mapping
from dataclasses import asdict
from typing import Annotated, Any

import numpy as np
from pydantic import Field

from ddpsched.config import validate
from ddpsched.costs.calibration import Calibration
from ddpsched.costs.config import CostConfig, MemoryConfig, caps_of
from ddpsched.costs.memory_cap import Cap
from ddpsched.errors import ConfigError
from ddpsched.orders.config import OrderConfig
from ddpsched.planning.policies import AnyPolicy
from ddpsched.table import BatchSize, Positive, PositiveFloat, Seed, Table

MEANINGS = {
    "set_epoch": "epochs are numbered from 0",
    "skip_batches": "give a number of optimizer steps, 0 or more",
    "load_state_dict": "epoch and step are counted from 0; give what state_dict() returned",
}
DEFAULTS = {"policy": "balanced", "order": "shuffled", "cost": "padded_tokens"}


class Arguments(Table):
    """The arguments of a sampler or loader, checked like the tables of a run."""

    policy: AnyPolicy
    order: OrderConfig
    cost: CostConfig = CostConfig()
    memory: MemoryConfig = MemoryConfig()
    speeds: Annotated[list[PositiveFloat], Field(min_length=1)] | None = None
    seed: Seed = 0
    global_batch: BatchSize | None = None
    max_num_steps: Positive | None = None
    epochs: Positive | None = None

    @classmethod
    def of(cls, owner: str, **values: Any) -> "Arguments":
        """Return the arguments of the class ``owner``. Raises ConfigError for values out of range."""
        values = {name: value for name, value in values.items() if value is not None}
        if "speeds" in values:
            values["speeds"] = list(map(float, values["speeds"]))
        for name in ("policy", "order", "cost"):
            given = values.get(name, DEFAULTS[name])
            values[name] = {"kind": given} if isinstance(given, str) else given
            if not isinstance(given, str) and not (isinstance(given, Mapping) and isinstance(given.get("kind"), str)):
                raise ConfigError(f"{owner}: {name} = {given!r}, needs a name, or a mapping with its name under 'kind'")
        if values["policy"]["kind"] == "peer":
            raise ConfigError(f"{owner}: policy 'peer' is another package's batching; use that package's loader")
        arguments = validate(cls, _plain(values), owner)
        if arguments.cost.online:
            raise ConfigError(
                f"{owner}: cost.online = true plans with measured times, which a loader does not see; give "
                "speeds=[...], how fast each rank is compared with the others"
            )
        return arguments

    @property
    def slowness(self) -> list[float]:
        """The time of each rank over that of the fastest; [] where all are alike."""
        return [max(self.speeds or ()) / speed for speed in self.speeds or ()]

    def check_speeds(self, owner: str, world_size: int) -> None:
        """Raise ConfigError where there are speeds of another number of ranks."""
        if self.speeds is not None and len(self.speeds) != world_size:
            raise ConfigError(
                f"{owner}: speeds of {len(self.speeds)} ranks, but there are {world_size}; give one a rank"
            )

    def caps(self, owner: str, world_size: int, longest: int) -> tuple[Cap, ...] | None:
        """Return each rank's memory limit; None without one. Raises ConfigError where no loader can know it."""
        memory = self.memory
        if memory.probe or (memory.path and memory.budget_bytes is None):
            given = memory.model_dump(exclude_defaults=True)
            raise ConfigError(
                f"{owner}: memory = {given}: a loader has no model or device to ask; give both path, a file of "
                "`ddpsched calibrate`, and budget_bytes, alike on all ranks"
            )
        return None if memory.budget_bytes is None else caps_of(memory, [memory.budget_bytes] * world_size, longest)

    def memory_identity(self) -> dict[str, Any] | None:
        """Return the budget and the model of a calibration, wherever its file lies; None without a limit."""
        path = self.memory.path
        if path is None:
            return None
        return {"budget_bytes": self.memory.budget_bytes, **asdict(Calibration.load(path).memory)}


def whole_number(method: str, value: Any) -> int:
    """Return the argument of a method, which may be an integer of numpy. Raises ConfigError where it is none."""
    if isinstance(value, bool) or not isinstance(value, int | np.integer) or value < 0:
        raise ConfigError(f"{method}: got {value!r}; {MEANINGS[method]}")
    return int(value)


def _plain(value: Any) -> Any:
    """Return numpy's numbers and tuples as the config takes them: budgets are often computed from lengths."""
    if isinstance(value, Mapping):
        return {key: _plain(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(inner) for inner in value]
    return value.item() if isinstance(value, np.generic) else value
