"""Ranks agree, before they train, that they follow one plan: who is which rank, of which data, policy, order and seed.

Each process writes what it is about to iterate into the store of the default process group, and reads what the others
wrote: an all-gather of a few hundred bytes that is no collective. So it cannot interleave with collectives of the
loop, needs no group that all ranks would have to make in the same order, and a rank that only looks at one batch holds
nobody up.
"""

import json
import sys
import time
import warnings
from collections import Counter
from collections.abc import Callable, Mapping
from datetime import timedelta
from hashlib import blake2b
from typing import Any

from ddpsched.errors import ConfigError, PlanMismatch, RankFailure
from ddpsched.world import World

PATIENCE_S = 5.0  # before it is said that others are waited for
PAUSES_S = 0.002, 0.25  # between two looks into the store: at first, and at most; a wait of the store's own is noisy
ALONE = (
    "Where one rank alone iterates, to look at batches or to evaluate, give that loader world=World(0, 1), or take "
    "plans()"
)
_begun: set[str] = set()  # digests of all that this process has begun to iterate


class Agreement:
    """One iteration's of a sampler or loader, made as it begins.

    ``identity``: plain values that must be equal on all ranks, and where the iteration begins (``start``). ``number``:
    of the sampler among those of this process, in the order they were made. ``waits``: before the first list for ranks
    that have not begun, as until all have once been compared.

    Call ``first()`` before the first list is handed out, and ``second()`` before each later one, and the end. Both
    raise PlanMismatch where ranks differ, on every rank that asks. ``first()`` warns of ranks that do not come within
    PATIENCE_S, since somebody may be looking at one batch on one rank; ``second()`` waits for them as long as the
    process group's time-out, and raises RankFailure.

    Call ``over()`` as the last list is handed out, and before an iteration that begins with the next epoch because of
    it ``all_over()``, which waits likewise: of a rank that iterated alone the epochs would be ahead for good.

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
        self.has_compared, self._has_warned = False, False
        self._store: Any = None
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

        store: Any = c10d._get_default_store()
        if store is None:  # MPI has none
            return
        self._store, self._timeout_s = c10d.PrefixStore("ddpsched", store), _timeout(c10d).total_seconds()
        self._identity = {"loader": owner, "world_size": world.size, **identity}
        self._mine, self._number = {**self._identity, **start}, number
        self._digest = blake2b(json.dumps(self._mine).encode(), digest_size=12).hexdigest()
        _begun.add(self._digest)
        latest = json.dumps({"digest": self._digest, "number": number, "mine": self._mine})
        shared = f"rank {world.rank} of {world.size}"
        self._own = f"process {group.get_rank()}", shared
        for slot in self._own:
            self._store.set(f"latest/{slot}", latest)
            self._store.set(self._key(slot), str(world.rank))
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
            self._has_warned = True
            warnings.warn(
                f"{self._owner}: rank {self.world.rank} begins, and after {PATIENCE_S:g} s {self._missing()} not. If "
                "this is a look at one batch, all is well; if the others never begin, the next collective waits for "
                "them in vain",
                stacklevel=3,
            )

    def second(self) -> None:
        """Compare, with all."""
        if not self._pending or self._compared(PATIENCE_S, strict=True):
            return
        if not self._has_warned:
            self._has_warned = True
            warnings.warn(
                f"{self._owner}: rank {self.world.rank} waits before its second list, as {self._missing()} not begun "
                f"this epoch. {ALONE}",
                stacklevel=3,
            )
        if self._compared(self._timeout_s - PATIENCE_S, strict=True):
            return
        self._refuse_others(self._absent(), strict=True, any_number=True)
        raise RankFailure(
            f"{self._owner}: rank {self.world.rank} iterates, but {self._missing()} not begun within "
            f"{self._timeout_s:.0f} s, the process group's time-out; all ranks must iterate. {ALONE}"
        )

    def over(self) -> None:
        """The last list is handed out."""
        if self._store is not None:
            for slot in self._own:
                self._store.set(self._key(slot, "/over"), "1")

    def all_over(self) -> None:
        """Wait until all ranks have handed out their last list; RankFailure where one does not."""
        if self._store is None or self._until(lambda: not self._absent("/over"), PATIENCE_S):
            return
        said = (
            f"{self._owner}: rank {self.world.rank} has iterated an epoch to its end and begins the next one, but "
            f"{self._missing('/over')} not iterated it to the end"
        )
        remedy = f"{ALONE}, or name each epoch by set_epoch before it"
        warnings.warn(f"{said}. {remedy}", stacklevel=3)
        if not self._until(lambda: not self._absent("/over"), self._timeout_s - PATIENCE_S):
            raise RankFailure(f"{said} within {self._timeout_s:.0f} s, the process group's time-out. {remedy}")

    def _until(self, ready: Callable[[], bool], patience_s: float) -> bool:
        """False where it is not ready in time; RankFailure where the store does not answer."""
        deadline, (pause, most) = time.monotonic() + patience_s, PAUSES_S
        try:
            while not ready():
                left = deadline - time.monotonic()
                if left <= 0:
                    return False
                time.sleep(min(pause, left))
                pause = min(2 * pause, most)
        except RuntimeError as error:
            if isinstance(error, PlanMismatch):
                raise
            raise RankFailure(
                f"{self._owner}: rank {self.world.rank} cannot ask the others for their plans, as the process group's "
                f"store does not answer ({str(error).splitlines()[0]}); its process has ended or was killed"
            ) from error
        return True

    def _compared(self, patience_s: float, strict: bool) -> bool:
        """False where not all are there in time; PlanMismatch where they differ."""
        claims: list[int] = []

        def all_there() -> bool:
            absent = self._absent()
            self._refuse_others(absent, strict)
            if not absent:
                claims.extend(int(each) for each in self._store.multi_get([self._key(slot) for slot in self._slots]))
            return not absent

        if not self._until(all_there, patience_s):
            return False
        self.has_compared = True
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

    def _refuse_others(self, absent: list[str], strict: bool, any_number: bool = False) -> None:
        """PlanMismatch where one of these ranks has begun a sampler of the same number that differs from this one.

        Unless ``strict``, only where it differs in more than where it begins: else somebody may be looking at one
        batch. A sampler of another number may be a look as well, and this one's turn still come: it counts where
        ``any_number`` does, as nothing came in time.
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
            if differs and (any_number or theirs["number"] == self._number):
                raise PlanMismatch(
                    f"{self._owner}: ranks would follow different plans: on {slot} {'; '.join(differs)}. Give all "
                    "ranks the same lengths, policy, order, seed and epoch, and what one rank alone is to iterate "
                    "world=World(0, 1)"
                )

    def _key(self, slot: str, kind: str = "") -> str:
        return f"{self._digest}{kind}/{slot}"

    def _absent(self, kind: str = "") -> list[str]:
        if self._store.check([self._key(slot, kind) for slot in self._slots]):
            return []
        return [slot for slot in self._slots if not self._store.check([self._key(slot, kind)])]

    def _missing(self, kind: str = "") -> str:
        """The others, with their verb."""
        absent = self._absent(kind)
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
    """Return the time-out of the default process group, or torch's default."""
    group = c10d._get_default_group()
    for device in group._device_types:
        found = getattr(getattr(group._get_backend(device), "options", None), "_timeout", None)
        if found is not None:
            return found
    return c10d.default_pg_timeout
