"""A rank's watch on its peers, its launcher and the signals sent to it.

A rank that waits in a collective hears nothing: not a signal, not that a peer
died. So a thread listens for it. torchrun ends the survivors within a tenth of a
second of a death; that is time enough to see who is gone and to write it down.
Where a rank dies within a tenth of a second of its start, no rank has come to this
thread yet, and the launcher alone names it.
"""

import contextlib
import ctypes
import math
import os
import signal
import sys
import threading
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from time import monotonic, sleep

from ddpsched.processes import SUSPENDED, Process
from ddpsched.siblings import Siblings
from ddpsched.world import World

SIGNALS = {signal.SIGTERM, signal.SIGINT}
PDEATHSIG = 1  # prctl's number: which signal to get when the parent dies


@dataclass(frozen=True)
class Reports:
    """Whom a watch tells.

    ``on_stop()``: asked to stop, all peers alive; called once. ``on_loss(reason)``: a peer or the launcher is gone,
    and this process ends right after, with status 1. ``is_done()``: whether what the ranks do together is finished,
    so that each may go as it likes.
    """

    on_stop: Callable[[], None]
    on_loss: Callable[[str], None]
    is_done: Callable[[], bool] = lambda: False


class Watch:
    """Started first thing in a rank, in its main thread, so that all later threads leave the signals to it.

    What it sees before there is somebody to tell (``report_to``) it tells then.
    """

    TICK_S = 0.5
    GRACE_S = 20.0  # between being asked to stop and being ended for not doing so
    END_S = 3.0  # for a killed process to end; a big one's memory takes a while
    LEAVE_S = 5.0  # for this rank to close what it opened, once it has failed
    SUSPENDED_S = 20.0  # a peer may be for so long while this rank runs; a job suspended as a whole watches nobody

    def __init__(self) -> None:
        self._siblings = Siblings()
        self._peers: dict[int, Process] = {}  # by rank, on this host
        self._suspended_s: dict[int, float] = {}
        self._reports: Reports | None = None
        self._parent = os.getppid()
        self._over = threading.Event()
        self._leaves_by = -math.inf
        signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)
        with contextlib.suppress(OSError, AttributeError):  # Linux only; elsewhere the parent is polled
            ctypes.CDLL(None).prctl(PDEATHSIG, signal.SIGTERM)
        threading.Thread(target=self._listen, name="watch", daemon=True).start()

    def report_to(self, reports: Reports) -> None:
        self._reports = reports

    def know(self, pids: Sequence[int], own_rank: int) -> None:
        """Watch these processes too, rank by rank; 0 for one on another host."""
        self._peers |= {rank: Process.of(pid) for rank, pid in enumerate(pids) if pid and rank != own_rank}

    def leaving(self) -> None:
        """This rank has failed, and says so itself: for ``LEAVE_S`` nothing is told, as other ranks end before it."""
        self._leaves_by = monotonic() + self.LEAVE_S

    def over(self) -> None:
        """There is nothing to watch any more: peers may go."""
        self._over.set()

    def close(self) -> None:
        """Let signals mean again what they meant before."""
        self._over.set()
        signal.pthread_sigmask(signal.SIG_UNBLOCK, SIGNALS)

    def lost(self) -> list[int]:
        """Ranks of this host whose process is gone."""
        return [rank for rank, process in self._peers.items() if process.is_gone]

    def suspended(self) -> list[int]:
        """Ranks of this host whose process is suspended."""
        return [rank for rank, process in self._peers.items() if process.state in SUSPENDED]

    def was_suspended(self, rank: int) -> str | None:
        """For how long a rank was, in words; None where this watch has not seen it."""
        seconds = self._suspended_s.get(rank)
        return f"rank {rank} was suspended for {seconds:.0f} s (process {self._peers[rank].pid})" if seconds else None

    def end_suspended(self) -> list[int]:
        """Kill suspended peers of a run that ends: they cannot end themselves, and the launcher would wait for them.

        Returns their ranks.
        """
        ranks = self.suspended()
        for rank in ranks:
            with contextlib.suppress(ProcessLookupError):  # it has ended since
                os.kill(self._peers[rank].pid, signal.SIGKILL)
        return ranks

    def _listen(self) -> None:
        asked_s = -1.0  # how long ago; < 0: not yet
        told_to_stop = False
        while not self._over.is_set():
            caught = signal.sigtimedwait(SIGNALS, self.TICK_S)
            asked = caught is not None and caught.si_signo in SIGNALS  # after a suspension it returns without any
            if self._over.is_set():
                return
            asked_s = asked_s + self.TICK_S if asked_s >= 0 else 0.0 if asked else asked_s
            loss = self._loss(asked_s >= 0)
            if self._reports is None or monotonic() < self._leaves_by:
                continue
            if (loss or asked_s >= 0) and self._is_done():
                if loss and self._long_suspended():
                    self.end_suspended()
            elif loss:
                self._end(loss)
            elif asked_s >= 0 and not told_to_stop:
                told_to_stop, asked_s = True, 0.0
                self._reports.on_stop()
            elif asked_s > self.GRACE_S:
                self._end(f"asked to stop, but this rank did not end within {self.GRACE_S:.0f} s")

    def _loss(self, asked: bool) -> str | None:
        """Return which rank died or does not go on; None where all is well."""
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
        """In ticks of this watch and not by the clock, which goes on while this rank is suspended as well.

        A debugger's stop is on purpose, so it is left to the time-out of what the others wait in.
        """
        stopped = [rank for rank, process in self._peers.items() if process.state == "T"]
        self._suspended_s = {rank: self._suspended_s.get(rank, 0.0) + self.TICK_S for rank in stopped}

    def _long_suspended(self) -> list[int]:
        return [rank for rank, seconds in self._suspended_s.items() if seconds >= self.SUSPENDED_S]

    def _is_done(self) -> bool:
        """False also where it cannot be told: the watch goes on, and what cannot be read is not written over."""
        assert self._reports is not None
        try:
            return self._reports.is_done()
        except Exception as error:  # whatever it is, a thread that dies of it would leave this rank unwatched
            print(f"whether the run is done cannot be read ({error!r})", file=sys.stderr, flush=True)
            return False

    def _end(self, reason: str) -> None:
        """End this process, whatever becomes of the report: nobody else would."""
        assert self._reports is not None
        try:
            self._await_end(self.end_suspended())  # one may have been stopped with the run's lock file in hand
            self._reports.on_loss(reason)
        except Exception:  # this process ends all the same, and the trace is what is left to say
            traceback.print_exc()
        finally:
            os._exit(1)

    def _await_end(self, ranks: list[int]) -> None:
        deadline = monotonic() + self.END_S
        while any(not self._peers[rank].is_gone for rank in ranks) and monotonic() < deadline:
            sleep(0.01)


def start_watch() -> Watch | None:
    """A watch where a launcher started this process, on Linux; call it before anything slow is imported."""
    return Watch() if sys.platform == "linux" and World.launched() else None
