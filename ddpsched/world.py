"""Who am I among how many: a value, so that planning can play every rank."""

import os
from collections.abc import Mapping
from dataclasses import dataclass

from ddpsched.errors import ConfigError


@dataclass(frozen=True)
class World:
    """Rank ``rank`` of ``size``.

    >>> [World(r, 2).is_main for r in range(2)]
    [True, False]
    """

    rank: int = 0
    size: int = 1
    local_rank: int = 0

    def __post_init__(self) -> None:
        if self.size < 1 or not 0 <= self.rank < self.size:
            raise ConfigError(f"rank {self.rank} of {self.size}: rank must lie in 0..size-1 and size be at least 1")

    @property
    def is_main(self) -> bool:
        """True on rank 0, which writes what is written once."""
        return self.rank == 0

    @classmethod
    def detect(cls, environ: Mapping[str, str] | None = None) -> "World":
        """Read RANK, WORLD_SIZE and LOCAL_RANK; the one place that does. Alone where unset."""
        env = os.environ if environ is None else environ
        try:
            rank, size = int(env.get("RANK", "0")), int(env.get("WORLD_SIZE", "1"))
            local_rank = int(env.get("LOCAL_RANK", str(rank)))
        except ValueError as error:
            raise ConfigError(
                f"RANK, WORLD_SIZE and LOCAL_RANK must be whole numbers ({error}); "
                "start the ranks with torchrun, or unset them to run alone"
            ) from None
        return cls(rank, size, local_rank)

    @staticmethod
    def launched(environ: Mapping[str, str] | None = None) -> bool:
        """Whether a launcher such as torchrun started this process."""
        return "WORLD_SIZE" in (os.environ if environ is None else environ)
