"""A rank's watch on its peers, its launcher and the signals sent to it.

A rank that waits in a collective notices nothing: neither a signal, nor the death
of a peer. So a thread watches for both. torchrun ends the survivors within a tenth
of a second of a death, which is time enough to see which rank died and to write it
down. Where a rank dies within a tenth of a second of its start, no other rank has
started this thread yet, and the launcher alone names it.
"""

import contextlib
import ctypes
import math
import os
import signal
import sys
import threading
import traceback
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from time import monotonic, sleep

from ddpsched.processes import PDEATHSIG, SUSPENDED, Process, children, environ_of, has_loaded, user_of
from ddpsched.world import World

SIGNALS = {signal.SIGTERM, signal.SIGINT}
SAME = ("MASTER_PORT", "TORCHELASTIC_RUN_ID", "TORCHELASTIC_RESTART_COUNT")  # equal on all ranks of one launch


@dataclass(eq=False)
class Reporter:
    """The functions by which a watch reports to one run of this process, as ``Watch.report_to`` describes them."""

    on_stop: Callable[[], None]
    on_loss: Callable[[str], None]
    is_done: Callable[[], bool]
    asked_to_stop: bool = False


class Watch:
    """A thread that reports a lost peer, a lost launcher, or a request to stop.

    It is started first thing in a rank, in the main thread, so that all later threads leave the signals to it. What it
    sees before ``report_to`` it reports then.
    """

    TICK_S = 0.5
    GRACE_S = 20.0  # from the request to stop until a rank that did not stop is ended
    END_S = 3.0  # for a killed process to end; a big one's memory takes a while
    LEAVE_S = 5.0  # for this rank to close its resources, once it has failed
    SUSPENDED_S = 20.0  # a peer may be for so long while this rank runs; in a job suspended as a whole no rank runs

    def __init__(self) -> None:
        self._siblings = _Siblings()
        self._peers: dict[int, Process] = {}  # by rank, on this host
        self._suspended_s: dict[int, float] = {}
        self._reporters: list[Reporter] = []  # replaced whole, never changed, as the thread reads it
        self._silent_until = -math.inf
        self._parent = None if launcher_is_gone() else os.getppid()
        self._over = threading.Event()
        signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)
        with contextlib.suppress(OSError, AttributeError):  # Linux only; elsewhere the parent is polled
            ctypes.CDLL(None).prctl(PDEATHSIG, signal.SIGTERM)
        threading.Thread(target=self._listen, name="watch", daemon=True).start()

    def report_to(
        self, on_stop: Callable[[], None], on_loss: Callable[[str], None], is_done: Callable[[], bool] = lambda: False
    ) -> Reporter:
        """Report by these functions, too, from now on, until ``forget``.

        ``on_stop()``: this rank was asked to stop, and all peers live; called once. ``on_loss(reason)``: a peer or the
        launcher is gone, and this process ends right after, with status 1. ``is_done()``: whether the ranks have
        finished their common work, so that each may end as it likes.
        """
        reporter = Reporter(on_stop, on_loss, is_done)
        self._reporters = [*self._reporters, reporter]
        return reporter

    def forget(self, reporter: Reporter) -> None:
        """Report no more by these functions: their run has ended."""
        self._reporters = [each for each in self._reporters if each is not reporter]

    def add_peers(self, pids: Sequence[int], this_rank: int) -> None:
        """Watch these processes too, rank by rank; 0 for one on another host."""
        self._peers |= {rank: Process.of(pid) for rank, pid in enumerate(pids) if pid and rank != this_rank}

    def hold_reports(self) -> None:
        """Report nothing for ``LEAVE_S``: this rank has failed and says why itself; other ranks may end before it."""
        self._silent_until = monotonic() + self.LEAVE_S

    def stop(self) -> None:
        """Stop watching: from now on peers may end."""
        self._over.set()

    def close(self) -> None:
        """Stop watching, and let this process handle its signals again."""
        self.stop()
        signal.pthread_sigmask(signal.SIG_UNBLOCK, SIGNALS)

    def lost(self) -> list[int]:
        """Return the ranks of this host whose process is gone."""
        return [rank for rank, process in self._peers.items() if process.is_gone]

    def suspended(self) -> list[int]:
        """Return the ranks of this host whose process is suspended."""
        return [rank for rank, process in self._peers.items() if process.state in SUSPENDED]

    def was_suspended(self, rank: int) -> str | None:
        """Return a message on how long a rank was suspended; None where this watch has not seen it."""
        seconds = self._suspended_s.get(rank)
        return f"rank {rank} was suspended for {seconds:.0f} s (process {self._peers[rank].pid})" if seconds else None

    def end_suspended(self) -> list[int]:
        """Kill suspended peers, for which the launcher would wait when a run ends; return their ranks."""
        ranks = self.suspended()
        for rank in ranks:
            with contextlib.suppress(ProcessLookupError):  # it has ended since
                os.kill(self._peers[rank].pid, signal.SIGKILL)
        return ranks

    def _listen(self) -> None:
        asked_s = -1.0  # seconds since this rank was asked to stop; < 0: it was not
        while not self._over.is_set():
            caught = signal.sigtimedwait(SIGNALS, self.TICK_S)
            if self._over.is_set():
                return
            if asked_s >= 0:
                asked_s += self.TICK_S
            elif caught is not None and caught.si_signo in SIGNALS:  # after a suspension it returns without any
                asked_s = 0.0
            loss = self._loss(asked_s >= 0)
            if not self._reporters or monotonic() < self._silent_until or not (loss or asked_s >= 0):
                continue
            if self._work_is_done():
                if loss and self._long_suspended():
                    self.end_suspended()
            elif loss:
                self._end(loss)
            elif unasked := [each for each in self._reporters if not each.asked_to_stop]:
                asked_s = 0.0
                for reporter in unasked:
                    reporter.asked_to_stop = True
                    reporter.on_stop()
            elif asked_s > self.GRACE_S:
                self._end(f"a signal asked this rank to stop, but it did not end within {self.GRACE_S:.0f} s")

    def _loss(self, asked: bool) -> str | None:
        """Return which rank died or is suspended for too long; None where all is well."""
        self._peers |= self._siblings.look(self._peers)
        for rank in self.lost():
            # another rank, which counted a tick more, may just have ended it for having been suspended
            return self.was_suspended(rank) or f"rank {rank} died (process {self._peers[rank].pid})"
        if asked and (unseen := self._siblings.missing(self._peers)):
            return f"rank {unseen[0]} died"  # the launcher ends this rank, and that one was gone before a first look
        if os.getppid() != self._parent:
            return "the launcher died"
        self._count_suspended()
        for rank in self._long_suspended():
            return self.was_suspended(rank)
        return None

    def _count_suspended(self) -> None:
        """Count seconds in ticks of this watch, as the clock goes on while this rank is suspended as well.

        A debugger's stop is on purpose, so the time-out of the collective that the others wait in applies to it.
        """
        stopped = [rank for rank, process in self._peers.items() if process.state == "T"]
        self._suspended_s = {rank: self._suspended_s.get(rank, 0.0) + self.TICK_S for rank in stopped}

    def _long_suspended(self) -> list[int]:
        return [rank for rank, seconds in self._suspended_s.items() if seconds >= self.SUSPENDED_S]

    def _work_is_done(self) -> bool:
        """Return False also where it cannot be read: the watch goes on, and what is unreadable is not written over."""
        try:
            return all([reporter.is_done() for reporter in self._reporters])
        except Exception as error:  # whatever it is, a thread that dies of it would leave this rank unwatched
            print(f"whether the run is done cannot be read ({error!r})", file=sys.stderr, flush=True)
            return False

    def _end(self, reason: str) -> None:
        """Report the loss and end this process, even where the report fails, as no other thread would end it."""
        try:
            ranks, deadline = self.end_suspended(), monotonic() + self.END_S
            while any(not self._peers[rank].is_gone for rank in ranks) and monotonic() < deadline:
                sleep(0.01)  # one may have been suspended while it had the run's lock file open
            for reporter in self._reporters:
                reporter.on_loss(reason)
        except Exception:  # this process ends all the same, and the trace is all that can be reported
            traceback.print_exc()
        finally:
            os._exit(1)


class _Siblings:
    """The other ranks on this machine, seen before any message is exchanged: children of the same launcher.

    A child's rank stands in the environment that the launcher gave it, as does the number of ranks on this machine.
    Each look may find more, as the launcher starts them; with a launcher that sets less, there are none.
    """

    def __init__(self) -> None:
        env = os.environ
        self._launch = {name: env[name] for name in SAME if name in env}
        self._due: list[int] = []  # ranks on this machine, without this one
        numbers = [env.get(name, "") for name in ("RANK", "LOCAL_RANK", "LOCAL_WORLD_SIZE")]
        # where /proc does not show this rank's environment no sibling can be seen; and a parent that has a rank as
        # well is a script around this one, without other children
        visible = self._rank_of(os.getpid()) and not self._rank_of(os.getppid())
        if visible and all(number.isdigit() for number in numbers):
            rank, local, size = map(int, numbers)
            self._due = [each for each in range(rank - local, rank - local + size) if each != rank]

    def look(self, known: Collection[int]) -> dict[int, Process]:
        """Return the siblings that can be seen now, by rank; none where all that are due are ``known``."""
        if not self.missing(known):
            return {}
        by_rank = {self._rank_of(pid): Process.of(pid) for pid in children(os.getppid()) if pid != os.getpid()}
        siblings = {int(rank): process for rank, process in by_rank.items() if rank.isdigit()}
        if not siblings.keys() <= set(self._due):
            self._due = []  # this launcher deals ranks to machines in another way
        return siblings

    def missing(self, known: Collection[int]) -> list[int]:
        """Return the ranks that ought to be here and are not ``known``."""
        return [rank for rank in self._due if rank not in known]

    def _rank_of(self, pid: int) -> str:
        """Return the rank that the launcher set; "" for a process that is no rank of this launch."""
        environ = environ_of(pid)
        return environ.get("RANK", "") if self._launch.items() <= environ.items() else ""


def launcher_is_gone() -> bool:
    """Return whether torchrun has started this rank and has ended already, so that another process has adopted it.

    Nothing says torchrun's number. But it runs as this rank's user, which may look into it, and has loaded torch. An
    init has not. Where the parent cannot be seen, or is a script around this rank, False is returned.
    """
    parent = os.getppid()
    if "TORCHELASTIC_RUN_ID" not in os.environ or "RANK" in environ_of(parent):
        return False
    user, loaded = user_of(parent), has_loaded(parent, "torch")
    if loaded is None:
        return user is not None and (user != os.getuid() or parent == 1)
    return not loaded


def start_watch() -> Watch | None:
    """Return a watch where a launcher started this process, on Linux; call it before anything slow is imported."""
    return Watch() if sys.platform == "linux" and World.launched() else None
