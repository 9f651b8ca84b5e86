"""Ranks agree, before they train, that they follow one plan: who is which rank, of which data, policy, order and seed.

Each process writes what it is about to iterate into the store of the default process group, and reads what the others
wrote: an all-gather of a few hundred bytes that is no collective. So it cannot interleave with collectives of the
loop, needs no group that all ranks would have to make in the same order, and a rank that only looks at one batch holds
nobody up.
"""

import contextlib
import itertools
import json
import sys
import warnings
from collections import Counter
from collections.abc import Mapping
from datetime import timedelta
from typing import Any

from ddpsched.errors import ConfigError, PlanMismatch, RankFailure
from ddpsched.world import World

PATIENCE = timedelta(seconds=5)  # before the first list; a rank that comes later is waited for before the second
_numbers = itertools.count()  # of the agreements that this process has begun: the same on all ranks


class Agreement:
    """One sampler's or loader's; made when its first iteration begins.

    ``identity``: plain values that must be equal on all ranks. Call ``first()`` before the first list is handed out
    and ``second()`` before the second, or the end. Both raise PlanMismatch where ranks differ, on every rank that
    asks. Where ranks have not begun within PATIENCE, ``first()`` warns, since somebody may be looking at one batch
    on one rank; ``second()`` waits for them as long as the process group's time-out and raises RankFailure.

    Nothing is asked where no process group is initialised. A single rank among several processes is warned: each
    would run all samples. Where the group has more processes than ``world.size`` (tensor parallel peers share a rank),
    every rank needs a process. Raises ConfigError where it has fewer.
    """

    def __init__(self, owner: str, world: World, identity: Mapping[str, Any]) -> None:
        self.world, self._owner, self._pending = world, owner, False
        group = _group()
        if group is None:
            return
        self._num_processes: int = group.get_world_size()
        if world.size == 1:
            if self._num_processes > 1:
                warnings.warn(
                    f"{owner}: world is rank 0 of 1, but the process group has {self._num_processes} processes: each "
                    "that iterates gets every sample. Leave world out to divide the samples over them; ignore this "
                    "where one rank alone is to run them all",
                    stacklevel=2,
                )
            return
        import torch.distributed.distributed_c10d as c10d

        store = c10d._get_default_store()
        if store is None:  # MPI has none
            return
        self._store = c10d.PrefixStore(f"ddpsched/{next(_numbers)}", store)
        self._timeout = _timeout(c10d)
        self._mine = {"rank": world.rank, "world_size": world.size, "loader": owner, **identity}
        mine, shared = json.dumps(self._mine), f"rank {world.rank} of {world.size}"
        self._store.set(f"process {group.get_rank()}", mine)
        self._store.set(shared, mine)
        if world.size > self._num_processes:
            raise ConfigError(
                f"{owner}: world is {shared}, but the process group has {self._num_processes} processes, so the other "
                "ranks' samples would never run; leave world out, or take plans() to look at those of another world"
            )
        self._slots = [
            f"process {slot}" if self._whole else f"rank {slot} of {world.size}" for slot in range(world.size)
        ]
        self._pending = True

    def __reduce__(self) -> Any:
        """A copy of its owner, in this process or another, agrees anew."""
        return type(None), ()

    @property
    def _whole(self) -> bool:
        """Whether every process of the group is a rank of its own."""
        return self.world.size == self._num_processes

    def first(self) -> None:
        """Compare where all ranks are there soon; else warn, and leave it to ``second()``."""
        if self._pending and not self._compared(PATIENCE):
            warnings.warn(
                f"{self._owner}: rank {self.world.rank} begins, and after {PATIENCE.total_seconds():.0f} s "
                f"{self._missing()} not. If this is a look at one batch, all is well; if the others never begin, "
                "the next collective waits for them in vain",
                stacklevel=3,
            )

    def second(self) -> None:
        """Compare, at the latest now."""
        if self._pending and not self._compared(self._timeout):
            raise RankFailure(
                f"{self._owner}: rank {self.world.rank} iterates, but {self._missing()} not begun within "
                f"{self._timeout.total_seconds():.0f} s, the process group's time-out; all ranks must iterate. To look "
                "at batches on one rank alone, take its plans(), or a loader with world=World(0, 1)"
            )

    def _compared(self, patience: timedelta) -> bool:
        """False where not all are there in time; PlanMismatch where they differ."""
        try:
            with contextlib.suppress(RuntimeError):  # the time is up; a store that is gone does not answer below either
                self._store.wait(self._slots, patience)
            if self._absent():
                return False
            found = [json.loads(each) for each in self._store.multi_get(self._slots)]
        except RuntimeError as error:
            raise RankFailure(
                f"{self._owner}: rank {self.world.rank} cannot ask the others for their plans, as the process group's "
                f"store does not answer ({str(error).splitlines()[0]}); its process has ended or was killed"
            ) from error
        self._pending = False
        self._compare(found)
        return True

    def _compare(self, found: list[dict[str, Any]]) -> None:
        for slot, theirs in enumerate(found):
            differs = [
                f"{key} = {theirs.get(key, 'none')!r}, on this one {self._mine.get(key, 'none')!r}"
                for key in dict.fromkeys([*self._mine, *theirs])
                if key != "rank" and theirs.get(key) != self._mine.get(key)
            ]
            if differs:
                raise PlanMismatch(
                    f"{self._owner}: ranks would follow different plans: on {self._slots[slot]} "
                    f"{'; '.join(differs)}. Give all ranks the same lengths, policy, order and seed, and begin "
                    "their loaders in the same order"
                )
        ranks = [each["rank"] for each in found]
        twice = [rank for rank, count in Counter(ranks).items() if count > 1]
        if twice:
            both = [slot for slot, rank in enumerate(ranks) if rank == twice[0]]
            raise PlanMismatch(
                f"{self._owner}: processes {both} of the group are all rank {twice[0]} of {self.world.size}, and "
                f"would run the same samples; rank {sorted(set(range(self.world.size)) - set(ranks))[0]} is nobody. "
                "Leave world out, or give each process its own World(rank, size)"
            )

    def _absent(self) -> list[str]:
        return [slot for slot in self._slots if not self._store.check([slot])]

    def _missing(self) -> str:
        """The others, with their verb."""
        absent = self._absent()
        named = ", ".join(absent[:8]) + (f" and {len(absent) - 8} more" if len(absent) > 8 else "")
        return f"{named} {'has' if len(absent) == 1 else 'have'}"


def _group() -> Any:
    """torch.distributed where a process group is initialised, and this is no worker of a loader, which shares it."""
    group = sys.modules.get("torch.distributed")
    if group is None or not (group.is_available() and group.is_initialized()):
        return None
    from torch.utils.data import get_worker_info

    return None if get_worker_info() is not None else group


def _timeout(c10d: Any) -> timedelta:
    """What the default process group was given, or torch's default."""
    group = c10d._get_default_group()
    for device in group._device_types:
        found = getattr(getattr(group._get_backend(device), "options", None), "_timeout", None)
        if found is not None:
            return found
    return c10d.default_pg_timeout
