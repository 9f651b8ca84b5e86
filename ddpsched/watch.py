"""A rank's watch on its peers, its launcher and the signals sent to it.

A rank that waits in a collective hears nothing: not a signal, not that a peer
died. So a thread listens for it. torchrun ends the survivors within a tenth of a
second of a death; that is time enough to see who is gone and to write it down.
"""

import contextlib
import ctypes
import os
import signal
import threading
from collections.abc import Callable, Sequence
from pathlib import Path

SIGNALS = {signal.SIGTERM, signal.SIGINT}
PDEATHSIG = 1  # prctl's number: which signal to get when the parent dies


class Watch:
    """Started first thing in a rank, in its main thread, so that all later threads leave the signals to it.

    ``on_stop()``: asked to stop, all peers alive; called once. ``on_loss(reason)``:
    a peer or the launcher is gone, and this process ends right after, with status 1.
    """

    GRACE_S = 20.0  # between being asked to stop and being ended for not doing so

    def __init__(self, on_stop: Callable[[], None], on_loss: Callable[[str], None]) -> None:
        self._on_stop, self._on_loss = on_stop, on_loss
        self._peers: dict[int, int] = {}  # rank -> pid, on this host
        self._parent = os.getppid()
        self._over = threading.Event()
        signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)
        with contextlib.suppress(OSError, AttributeError):  # Linux only; elsewhere the parent is polled
            ctypes.CDLL(None).prctl(PDEATHSIG, signal.SIGTERM)
        threading.Thread(target=self._listen, name="watch", daemon=True).start()

    def know(self, pids: Sequence[int], own_rank: int) -> None:
        """From now on watch these processes, rank by rank; 0 for one on another host."""
        self._peers = {rank: pid for rank, pid in enumerate(pids) if pid and rank != own_rank}

    def over(self) -> None:
        """The run has ended in order: peers may go, and signals mean again what they meant before."""
        self._over.set()
        signal.pthread_sigmask(signal.SIG_UNBLOCK, SIGNALS)

    def lost(self) -> list[int]:
        """Ranks of this host whose process is gone."""
        return [rank for rank, pid in self._peers.items() if process_state(pid) in ("gone", "Z", "X")]

    def stopped(self) -> list[int]:
        """Ranks of this host whose process is suspended."""
        return [rank for rank, pid in self._peers.items() if process_state(pid) in ("T", "t")]

    def end_suspended(self) -> None:
        """Kill suspended peers of a failed run: they cannot end themselves, and the launcher would wait for them."""
        for rank in self.stopped():
            with contextlib.suppress(ProcessLookupError):
                os.kill(self._peers[rank], signal.SIGKILL)

    def _listen(self) -> None:
        asked = 0.0
        while not self._over.is_set():
            caught = signal.sigtimedwait(SIGNALS, 0.5)
            lost = self.lost()
            if self._over.is_set():
                return
            if lost:
                self._end(f"rank {lost[0]} (process {self._peers[lost[0]]}) died")
            elif os.getppid() != self._parent:
                self._end("the launcher died")
            elif caught and not asked:
                asked = 1e-9
                self._on_stop()
            elif asked:
                asked += 0.5
                if asked > self.GRACE_S:
                    self._end(f"asked to stop, but no step ended within {self.GRACE_S:.0f} s")

    def _end(self, reason: str) -> None:
        self._on_loss(reason)
        os._exit(1)


def process_state(pid: int) -> str:
    """The kernel's letter for a process (R running, S sleeping, T stopped, Z dead but not reaped), or "gone"."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return "gone"
