"""Meetings of ranks outside collectives: they wait for a slow one for as long as it shows signs of life.

Before the first step a rank may tokenise, download, calibrate or compile for longer than a collective waits. Such work
ends in a meeting: ranks wait there through the store by which they found each other, in which a thread of each rank
counts up a number every second.
"""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from time import monotonic, sleep

import torch.distributed as dist

from ddpsched.errors import RankFailure
from ddpsched.training.attempt_store import attempt_store, survives_restarts
from ddpsched.world import World

BEAT_S, POLL_S = 1.0, 0.02
START_S = 120.0  # ranks may start that far apart, however short the time-out of collectives is


class Meeting:
    """The meetings of one launch, on one rank. ``timeout_s``: a rank without a sign of life for so long has failed."""

    def __init__(self, store: dist.Store, world: World, timeout_s: float) -> None:
        self.store, self._world, self._timeout_s = store, world, timeout_s
        self._count, self._over = 0, threading.Event()
        self._thread = threading.Thread(target=self._beat, name="signs of life", daemon=True)
        self._thread.start()

    def _beat(self) -> None:
        count = 0
        while not self._over.is_set():
            try:
                self.store.set(f"life/{self._world.rank}", str(count))
            except (
                RuntimeError
            ):  # the store is gone, and with it whoever held it: the training thread meets that itself
                return
            count += 1
            self._over.wait(BEAT_S)

    def wait_for_all(self, done: str) -> None:
        """Return when every rank has called it as often. Raises RankFailure for a rank without a sign of life.

        ``done``: what a rank has done that comes here, for messages.
        """
        self._count += 1
        name, size = f"met/{self._count}", self._world.size
        self.store.set(f"{name}/{self._world.rank}", "1")
        self.store.add(f"{name}/count", 1)
        looked, signs = 0.0, dict[int, tuple[bytes, float]]()
        while self.store.add(f"{name}/count", 0) < size:
            if monotonic() - looked > BEAT_S:
                self._look(name, done, signs)
                looked = monotonic()
            sleep(POLL_S)

    def _look(self, name: str, done: str, signs: dict[int, tuple[bytes, float]]) -> None:
        """Note signs of life of those that are missing. Raises RankFailure where one has shown none for too long."""
        for rank in range(self._world.size):
            if self.store.check([f"{name}/{rank}"]):
                continue
            key = f"life/{rank}"
            sign = self.store.get(key) if self.store.check([key]) else b""
            before, since = signs.setdefault(rank, (sign, monotonic()))
            if sign != before:
                signs[rank] = sign, monotonic()
            elif monotonic() - since > self._timeout_s:
                raise RankFailure(
                    f"rank {rank} has not {done}, and shows no sign of life for {self._timeout_s:g} s; its log says "
                    "why, or raise executor.timeout_s"
                )

    def close(self) -> None:
        """End the signs of life."""
        self._over.set()
        self._thread.join()


_open: Meeting | None = None  # of this process; several runs of one process share it, as they share the group


@contextmanager
def meeting(world: World, timeout_s: float) -> Iterator[None]:
    """Let ranks meet by ``wait_for_all`` in this block, unless there is one rank, or they have joined a group."""
    global _open
    if world.size == 1 or dist.is_initialized():
        yield
        return
    _open = Meeting(store_of(world, timeout_s), world, timeout_s)
    try:
        yield
    finally:
        _open.close()
        _open = None


def wait_for_all(done: str) -> None:
    """Wait for all ranks, as ``Meeting.wait_for_all``; return at once outside of ``meeting``."""
    if _open is not None:
        _open.wait_for_all(done)


def store_of(world: World, timeout_s: float) -> dist.Store:
    """Return the store by which the ranks of this launch, and of this attempt of it, find each other.

    Raises RankFailure where ranks are missing for ``START_S`` and ``timeout_s`` seconds.
    """
    if _open is not None:
        return dist.PrefixStore("group", _open.store)
    if not World.launched():
        return dist.HashStore()  # a single rank needs no rendezvous
    patience_s = max(timeout_s, START_S)
    timeout = timedelta(seconds=patience_s)
    store, _, _ = next(dist.rendezvous("env://", world.rank, world.size, timeout=timeout))
    store.set_timeout(timeout)
    return attempt_store(store, world, patience_s) if survives_restarts() else store
