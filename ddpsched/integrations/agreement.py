"""Agreement of the ranks, before they train, on one plan: the same data, policy, order, seed and ranks.

Each process writes what it is about to iterate into the store of the default process group, and reads what the others
wrote: an all-gather of a few hundred bytes that is no collective. So it cannot interleave with collectives of the
loop, needs no group that all ranks would have to make in the same order, and blocks no other rank while one rank looks
at a single batch.
"""

import contextlib
import itertools
import json
import sys
import time
import warnings
from collections.abc import Callable, Mapping
from datetime import timedelta
from hashlib import blake2b
from typing import Any

from ddpsched.errors import ConfigError, PlanMismatch, RankFailure
from ddpsched.integrations.identity import as_texts, differences
from ddpsched.integrations.turns import OVER, Postings
from ddpsched.world import World

PATIENCE_S = 5.0  # waited for other ranks before a warning
PAUSES_S = 0.002, 0.25  # between two looks into the store: the first and the longest; a wait by the store logs errors
ALONE = (
    "Where one rank alone iterates, to look at batches or to evaluate, give that loader world=World(0, 1), or use "
    "plans()"
)
_made = itertools.count()  # samplers and loaders of several ranks, in the order that this process makes them


class LoaderWorld:
    """The world that a sampler or loader iterates in, and the agreement of its ranks on each iteration.

    ``owner``: the name of the sampler's or loader's class, for messages. ``world``: None to detect it when an iteration
    begins. ``followed``: the agreement on the iteration after whose end the next epoch begins. ``counted``: scales come
    from label tokens, which ranks add up in each step; so all ranks must count them, or none.
    """

    def __init__(self, owner: str, world: World | None) -> None:
        if not isinstance(world, World | None):
            raise ConfigError(f"{owner}: world = {world!r}, needs ddpsched.World(rank, size), or nothing: it is found")
        self.owner, self._given, self._settled = owner, world, world
        self._number = next(_made) if world is None or world.size > 1 else -1
        self._latest: Agreement | None = None
        self.followed: Agreement | None = None
        self.counted = False

    def stand_for(self, world: World) -> None:
        """Iterate as this rank where no world was given, as one process can build the loaders of all ranks."""
        self._given = self._given or world

    @property
    def world(self) -> World:
        """The given world; else the one detected now, or when the last iteration began."""
        if self._given is not None:
            return self._given
        try:
            now = World.detect()
        except ConfigError:
            if self._settled is None:
                raise
            return self._settled
        return now if now.size > 1 or self._settled is None else self._settled

    def settle(self) -> World:
        """Return the world of the iteration that begins; the launcher may have set up its ranks only now.

        Where it begins because another one has ended, wait until that one has ended on all ranks.
        """
        self._settled = self._given or World.detect()
        if self.followed is not None:
            self.followed.wait_for_end()
        return self._settled

    def agree(self, identity: Mapping[str, Any], start: Mapping[str, int | None]) -> "Agreement":
        """Begin the agreement on an iteration that begins at ``start``; see :class:`Agreement`."""
        waits = self._latest is None or not self._latest.has_compared
        texts = as_texts({**identity, "count": "a function"} if self.counted else identity)
        self._latest = Agreement(self.owner, self.world, texts, as_texts(start), self._number, waits)
        self._latest.compare_soon()
        return self._latest


class Agreement:
    """The agreement of all ranks on one iteration of a sampler or loader, made as the iteration begins.

    ``identity``: values that must be equal on all ranks, and ``start``: the position at which the iteration begins.
    ``number``: of the sampler among those of this process, in the order they were made. ``waits``: whether the first
    list waits for other ranks, as it does until all ranks have compared once.

    Call ``compare_soon()`` before the first list is handed out, and ``compare()`` before each later one, and at the
    end. Both raise PlanMismatch where ranks differ, on every rank that calls them. ``compare_soon()`` warns of ranks
    that do not begin within PATIENCE_S, since this rank may only be looking at one batch; ``compare()`` waits for
    them as long as the process group's time-out, and raises RankFailure.

    Call ``end()`` as the last list is handed out, and ``wait_for_end()`` before an iteration that begins with the next
    epoch because of it; it waits likewise, since a rank that iterated alone would stay an epoch ahead.

    Without an initialised process group nothing is compared. A world of one rank in a group of several processes gets a
    warning: each process would run all samples. Where the group has more processes than ``world.size`` (tensor parallel
    processes share a rank), every rank needs a process. Raises ConfigError where it has fewer.
    """

    def __init__(
        self, owner: str, world: World, identity: Mapping[str, str], start: Mapping[str, str], number: int, waits: bool
    ) -> None:
        self._owner, self._size, self._waits, self._number = owner, world.size, waits, number
        self._who = f"{owner}: rank {world.rank}"
        self.has_compared = self._has_warned = False
        self._store: Any = None  # None: there is nothing to compare
        group = process_group()
        if group is None:
            return
        processes: int = group.get_world_size()
        if world.size == 1:
            if processes > 1 and waits:
                warnings.warn(
                    f"{owner}: world is rank 0 of 1, but the process group has {processes} processes: each that "
                    "iterates gets every sample. Leave world out to divide the samples over them; ignore this where "
                    "one rank alone is to run them all",
                    stacklevel=3,
                )
            return
        import torch.distributed.distributed_c10d as c10d

        store: Any = c10d._get_default_store()
        if store is None:  # MPI has none
            return
        self._store, self._timeout_s = c10d.PrefixStore("ddpsched", store), timeout_of(c10d).total_seconds()
        self._identity = {"loader": repr(owner), "world_size": repr(world.size), **identity}
        self._values = {**self._identity, **start}
        self._digest = blake2b(json.dumps(self._values).encode(), digest_size=12).hexdigest()
        shared = f"rank {world.rank} of {world.size}"
        names = f"process {group.get_rank()}", shared  # of this rank
        # one name for each rank: that of its process, or where processes share ranks that of the rank
        kind, rest = ("process", "") if world.size == processes else ("rank", f" of {world.size}")
        others = [f"{kind} {i}{rest}" for i in range(world.size)]
        about = {"number": number, "values": self._values}
        self._postings = Postings(
            self._store, c10d._get_default_group(), self._digest, about, world.rank, names, others
        )
        if world.size > processes:
            raise ConfigError(
                f"{owner}: world is {shared}, but the process group has {processes} processes, so the other ranks' "
                "samples would never run; leave world out, or use plans() to look at those of another world"
            )

    def __reduce__(self) -> Any:
        """A copy of the sampler or loader, in this process or another, agrees anew."""
        return type(None), ()

    def compare_soon(self) -> None:
        """Compare where all ranks begin within PATIENCE_S; else warn, and leave it to ``compare()``."""
        if self._waits and not self._compared(PATIENCE_S, strict=False):
            self._has_warned = True
            warnings.warn(
                f"{self._who} begins, and after {PATIENCE_S:g} s {self._missing()} not begun the same. If "
                "this is a look at one batch, all is well; if the others never begin, the next collective waits for "
                "them in vain",
                stacklevel=4,
            )

    def compare(self) -> None:
        """Compare with all ranks, and wait for those that have not begun.

        Raises PlanMismatch where they would iterate something else, RankFailure where one does not begin in time.
        """
        self._await_all()
        if self._store is not None:
            with contextlib.suppress(RuntimeError):  # rank 0 has ended, and with it the store: nobody will read this
                self._postings.go_on()

    def _await_all(self) -> None:
        if self._compared(PATIENCE_S, strict=True):
            return
        if not self._has_warned:
            self._has_warned = True
            warnings.warn(
                f"{self._who} waits before its second list, as {self._missing()} not begun this epoch. {ALONE}",
                stacklevel=3,
            )
        if self._compared(self._timeout_s - PATIENCE_S, strict=True):
            return
        self._refuse_others(self._postings.absent(), strict=True, any_number=True)
        raise RankFailure(
            f"{self._who} iterates, but {self._missing()} not begun within "
            f"{self._timeout_s:.0f} s, the process group's time-out; all ranks must iterate. {ALONE}"
        )

    def end(self) -> None:
        """Note that the last list is handed out."""
        if self._store is not None:
            self._postings.end()

    def wait_for_end(self) -> None:
        """Wait until all ranks have handed out their last list. Raises RankFailure where one does not."""

        def all_over() -> bool:
            return not self._postings.absent(OVER)

        if self._store is None or self._until(all_over, PATIENCE_S):
            return
        problem = (
            f"{self._who} has iterated an epoch to its end and begins the next one, but "
            f"{self._missing('/over')} not iterated it to the end"
        )
        remedy = f"{ALONE}, or name each epoch by set_epoch before it"
        warnings.warn(f"{problem}. {remedy}", stacklevel=3)
        if not self._until(all_over, self._timeout_s - PATIENCE_S):
            raise RankFailure(f"{problem} within {self._timeout_s:.0f} s, the process group's time-out. {remedy}")

    def _until(self, ready: Callable[[], bool], patience_s: float) -> bool:
        """Return False where it is not ready in time. Raises RankFailure where the store does not answer."""
        deadline, (pause, longest) = time.monotonic() + patience_s, PAUSES_S
        try:
            while not ready():
                left = deadline - time.monotonic()
                if left <= 0:
                    return False
                time.sleep(min(pause, left))
                pause = min(2 * pause, longest)
        except RuntimeError as error:
            raise RankFailure(
                f"{self._who} cannot ask the others for their plans, as the process group's "
                f"store does not answer ({str(error).splitlines()[0]}); its process has ended or was killed"
            ) from error
        return True

    def _compared(self, patience_s: float, strict: bool) -> bool:
        """Return False where not all ranks begin in time. Raises PlanMismatch where they differ."""
        if self._store is None or self.has_compared:
            return True
        ranks: list[int] = []  # as each process has them

        def all_there() -> bool:
            self._refuse_others(self._postings.absent(), strict)
            ranks.extend(self._postings.match() or [])
            return bool(ranks)

        if not self._until(all_there, patience_s):
            return False
        self.has_compared = True
        nobody = set(range(self._size)) - set(ranks)
        if nobody:
            twice = next(rank for rank in ranks if ranks.count(rank) > 1)
            raise PlanMismatch(
                f"{self._owner}: processes {[i for i, rank in enumerate(ranks) if rank == twice]} of the group are all "
                f"rank {twice} of {self._size}, and would run the same samples; no process is rank {min(nobody)}. "
                "Leave world out, or give each process another World(rank, size)"
            )
        return True

    def _refuse_others(self, absent: list[str], strict: bool, any_number: bool = False) -> None:
        """Raise PlanMismatch where an absent rank has begun a sampler of the same number that differs from this one.

        Unless ``strict``, a difference in ``start`` alone does not count: that rank may be looking at one batch. A
        sampler of another number may be such a look too, before this one's turn: it counts only with ``any_number``,
        once this one's turn did not come in time.
        """
        here = self._values if strict else self._identity
        for name in absent:
            latest = self._postings.latest(name)
            if latest is None or self._postings.is_behind(name, latest):
                continue
            if not (any_number or latest["number"] == self._number):
                continue
            values = {key: value for key, value in latest["values"].items() if strict or key in here}
            differing = differences(values, here, "on this one")
            if differing:
                raise PlanMismatch(
                    f"{self._owner}: ranks would follow different plans: on {name} {differing}. Give all ranks the "
                    "same lengths, policy, order, seed, epoch and count, and a loader that one rank alone iterates "
                    "world=World(0, 1)"
                )

    def _missing(self, kind: str = "") -> str:
        """Return the names of the absent ranks, with their verb."""
        absent = self._postings.absent(kind)
        names = ", ".join(absent[:8]) + (f" and {len(absent) - 8} more" if len(absent) > 8 else "")
        return f"{names} {'has' if len(absent) == 1 else 'have'}"


def warn_of_dropping(owner: str, loaded: int, step: int, epoch: int) -> None:
    """Warn that naming ``epoch`` drops the position of a loaded state, ``step`` of epoch ``loaded``."""
    warnings.warn(
        f"{owner}: set_epoch({epoch}) drops the loaded position, step {step} of epoch {loaded}, so what is left of "
        "it does not run; go on with its epoch: for epoch in range(loader.epoch, epochs)",
        stacklevel=4,
    )


def process_group() -> Any:
    """Return torch.distributed where a process group is initialised, and this is no worker of a loader, else None."""
    group = sys.modules.get("torch.distributed")
    if group is None or not (group.is_available() and group.is_initialized()):
        return None
    from torch.utils.data import get_worker_info

    return None if get_worker_info() is not None else group


def timeout_of(c10d: Any) -> timedelta:
    """Return the time-out of the default process group, or torch's default."""
    group = c10d._get_default_group()
    options = (getattr(group._get_backend(device), "options", None) for device in group._device_types)
    timeouts = (getattr(each, "_timeout", None) for each in options)
    timeout: timedelta = next((each for each in timeouts if each is not None), c10d.default_pg_timeout)
    return timeout
