"""Ranks agree, before they train, that they follow one plan: who is which rank, of which data, policy, order and seed.

Each process writes what it is about to iterate into the store of the default process group, and reads what the others
wrote: an all-gather of a few hundred bytes that is no collective. So it cannot interleave with collectives of the
loop, needs no group that all ranks would have to make in the same order, and a rank that only looks at one batch holds
nobody up.
"""

import contextlib
import json
import sys
import time
import warnings
from collections import Counter
from collections.abc import Mapping
from datetime import timedelta
from hashlib import blake2b
from typing import Any

from ddpsched.errors import ConfigError, PlanMismatch, RankFailure
from ddpsched.world import World

PATIENCE_S = 5.0  # before the first list; a rank that comes later is waited for before the second
SLICE_S = 0.5
_begun: set[str] = set()  # digests of all that this process has begun to iterate


class Agreement:
    """One iteration's of a sampler or loader, made as it begins.

    ``identity``: plain values that must be equal on all ranks, and where the iteration begins (``start``). ``number``:
    of the sampler among those of this process, in the order they were made. ``waits``: for ranks that have not begun,
    as in a sampler's first iteration; in later ones only what is there is compared.

    Call ``first()`` before the first list is handed out, and ``second()`` before each later one, and the end. Both
    raise PlanMismatch where ranks differ, on every rank that asks. ``first()`` warns of ranks that do not come within
    PATIENCE_S, since somebody may be looking at one batch on one rank; ``second()`` waits for them as long as the
    process group's time-out, and raises RankFailure.

    Nothing is asked where no process group is initialised. A single rank among several processes is warned: each
    would run all samples. Where the group has more processes than ``world.size`` (tensor parallel peers share a rank),
    every rank needs a process. Raises ConfigError where it has fewer.
    """

    def __init__(
        self,
        owner: str,
        world: World,
        identity: Mapping[str, Any],
        start: Mapping[str, int | None],
        number: int,
        waits: bool = True,
    ) -> None:
        self.world, self._owner, self._pending, self._waits = world, owner, False, waits
        group = _group()
        if group is None:
            return
        self._num_processes: int = group.get_world_size()
        if world.size == 1:
            if self._num_processes > 1 and waits:
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
        self._store, self._timeout_s = c10d.PrefixStore("ddpsched", store), _timeout(c10d).total_seconds()
        self._identity = {"loader": owner, "world_size": world.size, **identity}
        self._mine, self._number = {**self._identity, **start}, number
        self._digest = blake2b(json.dumps(self._mine).encode(), digest_size=12).hexdigest()
        _begun.add(self._digest)
        latest = json.dumps({"digest": self._digest, "number": number, "mine": self._mine})
        process, shared = f"process {group.get_rank()}", f"rank {world.rank} of {world.size}"
        for slot in (process, shared):
            self._store.set(f"latest/{slot}", latest)
            self._store.set(f"{self._digest}/{slot}", str(world.rank))
        if world.size > self._num_processes:
            raise ConfigError(
                f"{owner}: world is {shared}, but the process group has {self._num_processes} processes, so the other "
                "ranks' samples would never run; leave world out, or take plans() to look at those of another world"
            )
        # as many slots as ranks: of processes, or where these are more, of the ranks that they share
        self._whole = world.size == self._num_processes
        self._slots = [f"process {i}" if self._whole else f"rank {i} of {world.size}" for i in range(world.size)]
        self._pending = True

    def __reduce__(self) -> Any:
        """A copy of its owner, in this process or another, agrees anew."""
        return type(None), ()

    def first(self) -> None:
        """Compare where all ranks are there soon; else warn, and leave it to ``second()``."""
        if self._pending and self._waits and not self._compared(PATIENCE_S, strict=False):
            warnings.warn(
                f"{self._owner}: rank {self.world.rank} begins, and after {PATIENCE_S:g} s {self._missing()} not. If "
                "this is a look at one batch, all is well; if the others never begin, the next collective waits for "
                "them in vain",
                stacklevel=3,
            )

    def second(self) -> None:
        """Compare; where this iteration waits, with all."""
        if not self._pending or self._compared(self._timeout_s if self._waits else 0.0, strict=True) or not self._waits:
            return
        raise RankFailure(
            f"{self._owner}: rank {self.world.rank} iterates, but {self._missing()} not begun within "
            f"{self._timeout_s:.0f} s, the process group's time-out; all ranks must iterate. To look at batches on one "
            "rank alone, take its plans(), or a loader with world=World(0, 1)"
        )

    def _compared(self, patience_s: float, strict: bool) -> bool:
        """False where not all are there in time; PlanMismatch where they differ."""
        deadline = time.monotonic() + patience_s
        try:
            while absent := self._absent():
                self._refuse_others(absent, strict)
                left = deadline - time.monotonic()
                if left <= 0:
                    return False
                with contextlib.suppress(RuntimeError):  # time is up; a store that is gone does not answer above either
                    names = [f"{self._digest}/{slot}" for slot in self._slots]
                    self._store.wait(names, timedelta(seconds=min(left, SLICE_S)))
            claims = [int(each) for each in self._store.multi_get([f"{self._digest}/{s}" for s in self._slots])]
        except RuntimeError as error:
            if isinstance(error, PlanMismatch):
                raise
            raise RankFailure(
                f"{self._owner}: rank {self.world.rank} cannot ask the others for their plans, as the process group's "
                f"store does not answer ({str(error).splitlines()[0]}); its process has ended or was killed"
            ) from error
        self._pending = False
        twice = [rank for rank, count in Counter(claims).items() if count > 1]
        if twice:
            both = [slot for slot, rank in enumerate(claims) if rank == twice[0]]
            raise PlanMismatch(
                f"{self._owner}: processes {both} of the group are all rank {twice[0]} of {self.world.size}, and "
                f"would run the same samples; rank {min(set(range(self.world.size)) - set(claims))} is nobody. "
                "Leave world out, or give each process its own World(rank, size)"
            )
        return True

    def _refuse_others(self, absent: list[str], strict: bool) -> None:
        """PlanMismatch where one of these ranks has begun something that this one has not.

        Unless ``strict``, only where it is of the sampler of the same number, and differs in more than where it
        begins: else somebody may be looking at one batch.
        """
        for slot in absent:
            if not self._store.check([f"latest/{slot}"]):
                continue
            theirs = json.loads(self._store.get(f"latest/{slot}"))
            if theirs["digest"] in _begun:
                continue
            mine = self._mine if strict else self._identity
            differs = [
                f"{key} = {theirs['mine'].get(key, 'none')!r}, on this one {mine.get(key, 'none')!r}"
                for key in (dict.fromkeys([*mine, *theirs["mine"]]) if strict else mine)
                if theirs["mine"].get(key) != mine.get(key)
            ]
            if differs and (strict or theirs["number"] == self._number):
                raise PlanMismatch(
                    f"{self._owner}: ranks would follow different plans: on {slot} {'; '.join(differs)}. Give all "
                    "ranks the same lengths, policy, order, seed and epoch, and what one rank alone is to iterate "
                    "world=World(0, 1)"
                )

    def _absent(self) -> list[str]:
        if self._store.check([f"{self._digest}/{slot}" for slot in self._slots]):
            return []
        return [slot for slot in self._slots if not self._store.check([f"{self._digest}/{slot}"])]

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
