"""World: rank and world size as a value, so that one process can plan for every rank."""

import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass

from ddpsched.errors import ConfigError


@dataclass(frozen=True)
class World:
    """A rank, of ``size`` in all. ``local_rank``: its number on its machine, which picks its GPU.

    >>> [World(r, 2).is_main for r in range(2)]
    [True, False]
    """

    rank: int = 0
    size: int = 1
    local_rank: int = 0

    def __post_init__(self) -> None:
        if self.size < 1 or not 0 <= self.rank < self.size:
            raise ConfigError(
                f"rank = {self.rank}, size = {self.size}: size must be at least 1 and rank from 0 to size - 1; give "
                "RANK and WORLD_SIZE as the launcher sets them"
            )

    @property
    def is_main(self) -> bool:
        """Whether this is rank 0, which writes what is written once."""
        return self.rank == 0

    @classmethod
    def detect(cls, environ: Mapping[str, str] | None = None) -> "World":
        """Return this process's rank and world size, as they are now; rank 0 of 1 where nothing sets them.

        An initialised process group of torch comes first: under `mp.spawn`, Lightning and notebooks the environment
        may hold no rank, or only half of what is needed. Then RANK, WORLD_SIZE and LOCAL_RANK of the environment, which
        alone are read where ``environ`` is given. Raises ConfigError where they are no whole numbers, or only one of
        RANK and WORLD_SIZE is set and the other does not follow from it.
        """
        group = sys.modules.get("torch.distributed") if environ is None else None  # no group without the module
        env = os.environ if environ is None else environ
        if group is not None and group.is_available() and group.is_initialized():
            rank, size = group.get_rank(), group.get_world_size()
        else:
            rank, size = _number(env, "RANK"), _number(env, "WORLD_SIZE")
        if rank is None and size in (None, 1):  # the rank of one process is 0
            return cls()
        if rank is None or size is None:
            half = f"WORLD_SIZE = {size}, but RANK" if rank is None else f"RANK = {rank}, but WORLD_SIZE"
            raise ConfigError(
                f"{half} is not set, so this process's rank and world size are unknown; call "
                "torch.distributed.init_process_group first (Lightning and mp.spawn launch like this), "
                "give world=World(rank, size), or start the ranks with torchrun"
            )
        local_rank = _number(env, "LOCAL_RANK")
        return cls(rank, size, rank if local_rank is None else local_rank)

    @staticmethod
    def launched(environ: Mapping[str, str] | None = None) -> bool:
        """Return whether a launcher such as torchrun started this process."""
        return "WORLD_SIZE" in (os.environ if environ is None else environ)


def _number(env: Mapping[str, str], name: str) -> int | None:
    """Return the whole number of a variable; None where it is not set."""
    value = env.get(name)
    try:
        return None if value is None else int(value)
    except ValueError:
        raise ConfigError(
            f"{name} = {value!r}: must be a whole number; start the ranks with torchrun, which sets RANK, WORLD_SIZE "
            "and LOCAL_RANK, or unset them to run alone"
        ) from None
