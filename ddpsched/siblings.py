"""The other ranks on this machine, known before any word has been exchanged: children of the same launcher.

Which rank a child is stands in the environment that the launcher gave it, as does how many there must be.
"""

import os
from collections.abc import Collection

from ddpsched.processes import Process, children, environ_of

SAME = ("MASTER_PORT", "TORCHELASTIC_RUN_ID", "TORCHELASTIC_RESTART_COUNT")  # of all ranks of one launch


class Siblings:
    """Found look by look, as the launcher starts them; with a launcher that says less, none."""

    def __init__(self) -> None:
        own = os.environ
        self._launch = {name: own[name] for name in SAME if name in own}
        self._due: list[int] = []  # ranks on this machine, without this one
        numbers = [own.get(name, "") for name in ("RANK", "LOCAL_RANK", "LOCAL_WORLD_SIZE")]
        # where it is not to be read in /proc no sibling can be found; and a parent that is told a rank as well is a
        # script around this one, without other children
        found = self._rank_of(os.getpid()) and not self._rank_of(os.getppid())
        if found and all(number.isdigit() for number in numbers):
            rank, local, size = map(int, numbers)
            self._due = [each for each in range(rank - local, rank - local + size) if each != rank]

    def look(self, known: Collection[int]) -> dict[int, Process]:
        """By rank, those that can be seen now; nothing where all that are due are ``known``."""
        if not self.missing(known):
            return {}
        seen = {self._rank_of(pid): Process.of(pid) for pid in children(os.getppid()) if pid != os.getpid()}
        found = {int(rank): process for rank, process in seen.items() if rank.isdigit()}
        if not found.keys() <= set(self._due):
            self._due = []  # this launcher deals ranks to machines in another way
        return found

    def missing(self, known: Collection[int]) -> list[int]:
        """Ranks that ought to be here and are not ``known``."""
        return [rank for rank in self._due if rank not in known]

    def _rank_of(self, pid: int) -> str:
        """As the launcher told it; empty for a process that is no rank of this launch."""
        environ = environ_of(pid)
        return environ.get("RANK", "") if self._launch.items() <= environ.items() else ""
