"""The lock on a run's folder: one run at a time, whichever way and on whichever machine it was started.

The file ``lock`` names the run's process (of many ranks: rank 0's), its launch and its attempt. What a killed process
left is taken over, where this process can see that it is gone. The file is read and changed under flock, so of several
processes at the same moment one gets it.

A launch is what ranks can compare before they have exchanged a message: two launches may look alike (both at one port),
and so do the attempts of one that is restarted. The attempt is a number that rank 0 draws and sends to the others.
"""

import contextlib
import errno
import fcntl
import json
import os
import secrets
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path

from ddpsched.decode import decode_json
from ddpsched.errors import DataError, RankFailure, RunHeldError
from ddpsched.own_folder import refuse_special
from ddpsched.processes import Host, Place, Process, host_id

LOCK = "lock"
HELD = "is held by a run"  # in every refusal
WAIT = "wait for it, or end it"  # where no other folder can be given
OR_ANOTHER = "wait for it, end it, or give another name=..."
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
    anew: bool = False  # whether it begins anew, whatever checkpoints there are

    def refusal(self, folder: Path, remedy: str = OR_ANOTHER) -> str | None:
        """Return why no other run may have the folder, and the remedy; None where this one is gone."""
        state = self.place.judge()
        if state == "gone":
            return None
        if state != "lives":
            unseen = "whether that process lives cannot be seen from here"
            remedy = f"{unseen}: wait for it, or where it is gone delete {folder / LOCK}"
        who = f"process {self.place.process.pid} on {self.place.host.node}, started {self.since}"
        return f"{folder} {HELD} ({who}); {remedy}"


def holder(folder: Path) -> Holder | None:
    """Return the holder that the lock of ``folder`` names, living or not; None without a lock or with half a one.

    Raises DataError where the lock is a device or a pipe.
    """
    refuse_special(folder / LOCK)
    try:
        return _parse((folder / LOCK).read_bytes())
    except FileNotFoundError:
        return None


def refusal(folder: Path, remedy: str = OR_ANOTHER) -> str | None:
    """Return why ``folder`` cannot be had: a run lives in it, or may do so, with the remedy; None where it is free."""
    current = holder(folder)
    return None if current is None else current.refusal(folder, remedy)


class RunLock:
    """One process's access to the lock of ``folder``. ``anew``: whether its run begins anew.

    ``remedy``: what a refusal tells to do where another run lives in the folder.
    ``launch``: of this process. ``attempt``: rank 0's once ``set_attempt`` has recorded it, else one that this process
    drew.
    """

    def __init__(self, folder: Path, anew: bool = False, remedy: str = OR_ANOTHER) -> None:
        self._folder, self._path, self._remedy = folder, folder / LOCK, remedy
        self._made = [each for each in (folder, *folder.parents) if not each.exists()]
        self.launch, self.attempt = launch_id(), secrets.randbits(62)
        since = datetime.now(UTC).isoformat(timespec="seconds")
        self._holder = Holder(self.launch, Place.here(), since, self.attempt, anew)
        self._knows_attempt = False  # of rank 0

    def set_attempt(self, attempt: int) -> None:
        """Record the attempt that rank 0 drew."""
        self.attempt, self._knows_attempt = attempt, True

    def take(self) -> None:
        """Hold the folder until ``give_back``, or this process's end. RunHeldError where another run does."""
        with self._exclusively() as file:
            old = os.pread(file, 65_536, 0)
            current = _parse(old)
            if current is not None and (reason := current.refusal(self._folder, self._remedy)) is not None:
                raise RunHeldError(reason)
            text = json.dumps(asdict(self._holder)).encode()
            try:
                os.pwrite(file, text.ljust(len(old)), 0)  # in one piece, as readers do not wait; JSON may end in blanks
                os.ftruncate(file, len(text))
            except OSError as error:  # a full disk
                error.filename = str(self._folder)  # these calls do not name it
                self._remove()
                raise

    def give_back(self) -> None:
        """Remove the lock, if it is this process's."""
        if holder(self._folder) != self._holder:
            return
        with self._exclusively():
            self._remove()

    def _remove(self) -> None:
        """Remove the lock, and with it the folders that were made for it if nothing else is in them."""
        self._path.unlink()
        with contextlib.suppress(OSError):  # a run that could not start leaves no folder either
            for each in self._made:
                each.rmdir()

    def refuse(self) -> None:
        """Raise RunHeldError where another launch than this one holds the folder."""
        current = holder(self._folder)
        if current is None or current.launch == self.launch:
            return
        if (reason := current.refusal(self._folder, self._remedy)) is not None:
            raise RunHeldError(reason)

    def await_rank_0(self, timeout_s: float, look: Callable[[], object] = lambda: None) -> None:
        """Return once rank 0 of this launch holds the folder; until then ``look``, which may raise, again and again.

        Or of one that looks alike and may live: ``may_write`` keeps apart what this rank writes from that one's.
        Raises RankFailure where it does not within ``timeout_s`` seconds, RunHeldError where another run holds it.
        """
        deadline = time.monotonic() + timeout_s
        while not self._this_launch_holds():
            look()
            self.refuse()
            if time.monotonic() > deadline:
                raise RankFailure(f"rank 0 did not lock {self._folder} within {timeout_s:.0f} s; its log says why")
            time.sleep(0.05)

    @contextlib.contextmanager
    def may_write(self) -> Iterator[bool]:
        """Yield whether this run may write: it holds the folder, or no run did, and this process holds it meanwhile.

        A rank that does not know rank 0's attempt may write where its launch holds the folder, except over what the
        holder wrote (``is_of_another``): before rank 0 has sent its attempt it writes nothing, so that is another
        run's.
        """
        if self._knows_attempt:
            current = holder(self._folder)
            holds = current is not None and current.attempt == self.attempt
        else:
            holds = self._this_launch_holds()
        if holds:
            yield True
            return
        try:
            self.take()
        except RunHeldError:
            yield False
            return
        try:
            yield True
        finally:
            self.give_back()

    def is_of_another(self, attempt: object) -> bool:
        """Return whether ``attempt`` holds the folder and is not known to be this rank's."""
        current = holder(self._folder)
        return current is not None and current.attempt == attempt is not None and attempt != self.attempt

    def _this_launch_holds(self) -> bool:
        """Return whether the lock names this launch and a process that may live.

        One whose process is gone is an earlier attempt's, or an earlier launch's at the same address.
        """
        current = holder(self._folder)
        return current is not None and current.launch == self.launch and current.place.judge() != "gone"

    @contextlib.contextmanager
    def _exclusively(self) -> Iterator[int]:
        """Yield the lock's file, made where there is none, while no other process may change it."""
        deadline = time.monotonic() + PATIENCE_S
        while True:
            try:
                self._folder.mkdir(parents=True, exist_ok=True)
            except OSError as error:
                fault = f"{self._folder}: this folder cannot be made ({error.strerror})"
                raise DataError(f"{fault}; give outputs=... where one can") from None
            try:
                file = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o666)
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
                    f"{self._path} has been locked by another process for {PATIENCE_S:.0f} s; end that process"
                )
            time.sleep(0.01)


def launch_id(environ: Mapping[str, str] | None = None) -> str:
    """Return what the ranks of one launch have in common, restarted or not; for a single process its identity.

    The number of restarts is left out: each of torchrun's agents counts for itself, and after the failure of one
    machine their counts differ for good.
    """
    env, here = os.environ if environ is None else environ, Place.here()
    if "MASTER_PORT" not in env or "WORLD_SIZE" not in env:
        return f"{here.host.node} {here.process.pid} {here.process.start_ticks}"
    facts = [env.get(name, "-") for name in ("MASTER_ADDR", "MASTER_PORT", "TORCHELASTIC_RUN_ID")]
    if facts[0] in LOOPBACK:  # every machine has that address, so all ranks are on this one
        facts.append(str(host_id()))
    return " ".join(facts)


def launcher_id(environ: Mapping[str, str] | None = None) -> str | None:
    """Return torchrun's id of this launch, the same in all its restarts; None where it was given none.

    Ports and addresses, which ``launch_id`` holds as well, may be others after a restart.
    """
    found = (os.environ if environ is None else environ).get("TORCHELASTIC_RUN_ID")
    return None if found == "none" else found  # its default, which all launches without an id share


def _parse(text: bytes) -> Holder | None:
    try:
        value = decode_json(text)
        place = Place(Host(**value["place"]["host"]), Process(**value["place"]["process"]))
        found = Holder(value["launch"], place, value["since"], value.get("attempt"), value.get("anew") is True)
        return found if type(place.process.pid) is int and 0 < place.process.pid < 2**31 else None
    except (ValueError, KeyError, TypeError):
        return None  # empty, or its writer was killed while writing: no run holds it


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
