"""The lock on a run's folder: one run at a time, whichever way and on whichever machine it was started.

The file ``lock`` names the run's process (of many ranks: rank 0's), its launch and its attempt. What a killed process
left is taken over, where it can be seen from here that it is gone. The file is read and changed under flock, so of
several that come at the same moment one gets it.

A launch is what ranks can compare before they have met: two may look alike (both at one port), and so do the attempts
of one that is restarted. The attempt is a number that rank 0 draws, and tells the others once they have met.
"""

import contextlib
import errno
import fcntl
import json
import os
import secrets
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from ddpsched.errors import RankFailure, RunHeldError
from ddpsched.processes import Place, host_id

LOCK = "lock"
HELD = "is held by another run"  # in every refusal
LOOPBACK = ("localhost", "127.0.0.1", "::1")
PATIENCE_S = 5.0  # for another process to read and write a few hundred bytes
NO_FLOCK = {errno.ENOLCK, errno.EOPNOTSUPP, errno.ENOSYS}  # file systems without it


@dataclass(frozen=True)
class Holder:
    """The holder of a folder."""

    launch: str  # the same for all ranks of a run
    place: Place
    since: str
    attempt: int | None = None

    def refusal(self, folder: Path) -> str | None:
        """Why nobody else may have the folder; None where this one is gone."""
        found = self.place.judge()
        who = f"process {self.place.process.pid} on {self.place.host.node}, started {self.since}"
        if found == "gone":
            return None
        if found == "lives":
            return f"{folder} {HELD} ({who}); wait for it, end it, or give another name=..."
        return (
            f"{folder} {HELD} ({who}); whether that lives cannot be seen from here: wait for it, or "
            f"where it is gone delete {folder / LOCK}"
        )


def holder(folder: Path) -> Holder | None:
    """Return the holder that the lock of ``folder`` names, living or not; None without a lock or with half a one."""
    try:
        return _parse((folder / LOCK).read_bytes())
    except FileNotFoundError:
        return None


def refusal(folder: Path) -> str | None:
    """Why ``folder`` cannot be had: a run lives in it, or may do so; None where it is free."""
    held = holder(folder)
    return None if held is None else held.refusal(folder)


class RunLock:
    """One process's hand on the lock of ``folder``."""

    def __init__(self, folder: Path) -> None:
        self._folder, self._path = folder, folder / LOCK
        self._made = [each for each in (folder, *folder.parents) if not each.exists()]
        since = datetime.now(UTC).isoformat(timespec="seconds")
        self._own = Holder(launch_id(), Place.here(), since, secrets.randbits(62))
        self._met: int | None = None  # rank 0's attempt

    @property
    def launch(self) -> str:
        return self._own.launch

    @property
    def attempt(self) -> int:
        """Rank 0's, where it is known; else one of this process's own."""
        own = self._own.attempt if self._met is None else self._met
        assert own is not None
        return own

    def meet(self, attempt: int) -> None:
        """Rank 0 has said which attempt this is."""
        self._met = attempt

    def take(self) -> None:
        """Hold the folder as rank 0 until ``give_back``, or this process's end. RunHeldError where another run does."""
        self._take()
        self._met = self._own.attempt

    def _take(self) -> None:
        with self._exclusively() as file:
            old = os.pread(file, 65_536, 0)
            held = _parse(old)
            if held is not None and (why := held.refusal(self._folder)) is not None:
                raise RunHeldError(why)
            text = json.dumps({**vars(self._own), "place": self._own.place.to_json()}).encode()
            os.pwrite(file, text.ljust(len(old)), 0)  # in one piece, as readers do not wait; JSON may end in blanks
            os.ftruncate(file, len(text))

    def give_back(self) -> None:
        """Remove the lock, if it is this process's."""
        if holder(self._folder) != self._own:
            return
        with self._exclusively():
            self._path.unlink()
        with contextlib.suppress(OSError):  # what could not start leaves no folder either
            for each in self._made:
                each.rmdir()

    def refuse(self) -> None:
        """RunHeldError where another launch than this one holds the folder."""
        held = holder(self._folder)
        if held is None or held.launch == self._own.launch:
            return
        if (why := held.refusal(self._folder)) is not None:
            raise RunHeldError(why)

    def await_rank_0(self, timeout_s: float) -> None:
        """Return once rank 0 of this launch holds the folder.

        Or of one that looks alike and may live: what this rank writes is kept apart from it in ``in_hand``.
        """
        deadline = time.monotonic() + timeout_s
        while not self._is_launchs():
            self.refuse()
            if time.monotonic() > deadline:
                raise RankFailure(f"rank 0 did not lock {self._folder} within {timeout_s:.0f} s; its log says why")
            time.sleep(0.05)

    @contextlib.contextmanager
    def in_hand(self) -> Iterator[bool]:
        """Whether this run may write: it holds the folder, or nobody did, and it is held meanwhile.

        A rank that has not met rank 0 may where its launch holds the folder, except over what the holder wrote
        (``is_holders``): before the ranks have met their own rank 0 writes nothing, so that is another run's.
        """
        held = holder(self._folder)
        if self._is_launchs() if self._met is None else held is not None and held.attempt == self._met:
            yield True
            return
        try:
            self._take()
        except RunHeldError:
            yield False
            return
        try:
            yield True
        finally:
            self.give_back()

    def is_holders(self, attempt: object) -> bool:
        """Whether ``attempt`` holds the folder and is not known to be this rank's."""
        held = holder(self._folder)
        return held is not None and held.attempt == attempt is not None and attempt != self.attempt

    def _is_launchs(self) -> bool:
        """A lock of the same launch whose process is gone is an earlier attempt's, or an earlier launch's at the same
        address.
        """
        held = holder(self._folder)
        return held is not None and held.launch == self._own.launch and held.place.judge() != "gone"

    @contextlib.contextmanager
    def _exclusively(self) -> Iterator[int]:
        """The lock's file, made where it is not there, and nobody else in here."""
        deadline = time.monotonic() + PATIENCE_S
        while True:
            self._folder.mkdir(parents=True, exist_ok=True)
            try:
                file = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
            except FileNotFoundError:
                continue  # a folder that was empty has been removed again
            try:
                if _flock(file) and _is_file(self._path, file):  # else it was removed before it was locked
                    yield file
                    return
            finally:
                os.close(file)
            if time.monotonic() > deadline:
                raise RunHeldError(
                    f"{self._path} has been in another process's hands for {PATIENCE_S:.0f} s; end that process"
                )
            time.sleep(0.01)


def launch_id(environ: Mapping[str, str] | None = None) -> str:
    """Return what the ranks of one launch have in common, restarted or not; for a single process its own identity.

    How often it was restarted is not: each of torchrun's agents counts for itself, and after the failure of one machine
    their counts differ for good.
    """
    env, here = os.environ if environ is None else environ, Place.here()
    if "MASTER_PORT" not in env or "WORLD_SIZE" not in env:
        return f"{here.host.node} {here.process.pid} {here.process.start_ticks}"
    names = ("MASTER_ADDR", "MASTER_PORT", "TORCHELASTIC_RUN_ID")
    facts = [env.get(name, "-") for name in names]
    if facts[0] in LOOPBACK:  # every machine has that address, so all ranks are on this one
        facts.append(str(host_id()))
    return " ".join(facts)


def _parse(text: bytes) -> Holder | None:
    try:
        value = json.loads(text)
        return Holder(value["launch"], Place.from_json(value["place"]), value["since"], value.get("attempt"))
    except (ValueError, KeyError, TypeError):
        return None  # empty, or its writer was killed over it: nobody holds it


def _flock(file: int) -> bool:
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError as error:
        if error.errno not in NO_FLOCK:
            raise
    return True


def _is_file(path: Path, file: int) -> bool:
    try:
        return os.path.samestat(os.fstat(file), path.stat())
    except FileNotFoundError:
        return False
