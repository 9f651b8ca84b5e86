"""Guard: a run's logs, the reason of its failure, and in a rank among others the reports of the watch on them."""

import contextlib
import logging
import os
import sys
from collections.abc import Callable, Iterator
from logging.handlers import MemoryHandler
from time import sleep
from typing import Any

import numpy as np

from ddpsched import errors
from ddpsched.exchange import Exchange
from ddpsched.heartbeat import behind
from ddpsched.monitor.progress import IN_BAR
from ddpsched.processes import host_id
from ddpsched.run_folder import RunFolder
from ddpsched.shortage import full_disk, raise_limit, shortage
from ddpsched.visible_text import visible
from ddpsched.watch import Watch
from ddpsched.world import World

log = logging.getLogger("ddpsched")


class Guard:
    """A context manager that writes down why a run failed; with a ``watch``, also which of its ranks failed.

    ``resources`` are closed after the reason is written, as other ranks notice a failure by it. Rank r logs to
    logs/rank{r}.log, rank 0 to the terminal as well. The folder may be another run's before this one has begun, so the
    file then gets what was logged before.
    """

    def __init__(self, folder: RunFolder, world: World, watch: Watch | None) -> None:
        self._folder, self._world, self._watch = folder, world, watch
        self._early = MemoryHandler(sys.maxsize, flushLevel=sys.maxsize, flushOnClose=False)
        self._handlers: list[logging.Handler] = [self._early, *([_formatted(_TerminalLog())] if world.is_main else [])]
        self._ask_to_stop: Callable[[], object] | None = None
        self.resources = contextlib.ExitStack()
        self._began, self._failure = False, ""
        self._reported: BaseException | None = None
        self._reporter = None if watch is None else watch.report_to(self._stop, self._lost, self.is_done)

    def watch_peers(self, exchange: Exchange, ask_to_stop: Callable[[], object]) -> None:
        """Exchange process ids and rank 0's attempt; from now on a signal calls ``ask_to_stop``."""
        host = host_id()
        row = np.array([[os.getpid(), host, self._folder.lock.attempt]], dtype=np.int64)
        if self._watch is not None:
            self._ask_to_stop = ask_to_stop
        table = exchange.vote(row)
        self._folder.lock.set_attempt(int(table[0, 2]))
        if self._watch is not None:
            self._watch.add_peers(np.where(table[:, 1] == host, table[:, 0], 0).tolist(), self._world.rank)

    def begun(self, goes_on: bool = False) -> None:
        """Start this rank's log: the folder and its status.json are this run's now, on every rank.

        ``goes_on``: after what is in the log.
        """
        self._began = True
        self._log_here(False)
        path = self._folder.path / "logs" / f"rank{self._world.rank}.log"
        self._handlers[0] = _formatted(_LogFile(path, mode="a" if goes_on else "w"))
        self._early.setTarget(self._handlers[0])
        self._early.flush()
        self._log_here(True)

    def hold_reports(self) -> None:
        """Report no lost rank for ``Watch.LEAVE_S``: all ranks are about to end, and one does so before another."""
        if self._watch is not None:
            self._watch.hold_reports()

    @contextlib.contextmanager
    def aside(self) -> Iterator[None]:
        """Keep the messages of other runs in this process, which have their turn meanwhile, out of this run's logs."""
        self._log_here(False)
        try:
            yield
        finally:
            self._log_here(True)

    def _log_here(self, here: bool) -> None:
        for handler in self._handlers:
            (log.addHandler if here else log.removeHandler)(handler)

    def is_done(self) -> bool:
        """Return whether "done" is on the disk: from then on nothing that any rank does makes the run a failed one."""
        return (self._began and self._folder.is_done()) or self._folder.is_done_by_this_launch()

    def _stop(self) -> None:
        if self._ask_to_stop is None:
            self._lost("a signal asked it to stop before the first step")
            os._exit(1)
        log.warning("a signal asked this rank to stop; all ranks leave after this step")
        self._ask_to_stop()

    def _lost(self, reason: str) -> None:
        if self._failure:  # this rank has written why, and was about to print it
            print(f"error: {visible(self._failure, lines=True)}", file=sys.stderr, flush=True)
        else:
            message = f"rank {self._world.rank}: {reason}; all ranks end, records up to here are kept"
            print(f"error: {visible(message, lines=True)}", file=sys.stderr, flush=True)
            self._log_to_file(message, None)
            self._write_failed(reason)
        self._folder.lock.give_back()

    def __enter__(self) -> "Guard":
        self._log_here(True)
        log.setLevel(logging.INFO)
        return self

    def __exit__(self, kind: Any, error: BaseException | None, trace: Any) -> None:
        failure = None if error is None else self._explain(error)
        if failure is not None and error is not self._reported:
            self._report(failure)
        try:
            self.resources.close()
        except Exception as trouble:
            if failure is None and not self.is_done():
                self._report(trouble)
                raise
            log.warning("closing: %r", trouble)
        finally:
            if self._watch is not None and self._reporter is not None:
                self._watch.forget(self._reporter)
            self._log_here(False)
            for handler in self._handlers:
                handler.close()
        if failure is not None and failure is not error:
            raise failure from error

    def fail(self, error: BaseException) -> None:
        """Write now why this rank fails, before it raises the error."""
        self._report(self._explain(error))
        self._reported = error

    def _report(self, failure: BaseException) -> None:
        """Write the reason to status.json and to this rank's log."""
        self.hold_reports()
        reason = "interrupted" if isinstance(failure, KeyboardInterrupt) else self._reason_of(failure)
        refusals: tuple[type[BaseException], ...] = (errors.RunExistsError, errors.RunHeldError)
        if self._watch is None and not self._began:  # a run that could not start, without peers that it would end
            refusals += (errors.ConfigError, errors.DataError)
        if not isinstance(failure, refusals):  # a refused run leaves the folder as it was
            self._write_failed(reason)
        self._failure = reason
        if self._watch is not None:
            self._watch.end_suspended()
        expected = isinstance(failure, (errors.DdpschedError, KeyboardInterrupt))
        self._log_to_file(f"failed: {failure!r}", None if expected else failure)

    def _reason_of(self, failure: BaseException) -> str:
        """Return the message; of an error that is not expected also its type, and of one rank of many which rank."""
        if isinstance(failure, errors.DdpschedError) or self._watch is None:
            return str(failure) or repr(failure)
        return f"rank {self._world.rank} failed: {failure!r}"

    def _write_failed(self, reason: str) -> None:
        """Write to status.json; where even that fails, print so, and let the reason itself be raised."""
        try:
            self._folder.failed(reason)
        except (OSError, ValueError) as error:  # ValueError: no JSON, so it is unknown which run wrote it
            if self._folder.path.exists():  # else there is nowhere to write to, which is what is being raised
                fault = error.strerror if isinstance(error, OSError) else error
                shown = visible(f"status.json could not be written ({fault}): {reason}", lines=True)
                print(shown, file=sys.stderr, flush=True)

    def _log_to_file(self, message: str, error: BaseException | None) -> None:
        """Log to the file alone: the terminal gets the error once, from the function that catches it."""
        exc_info = None if error is None else (type(error), error, error.__traceback__)
        record = log.makeRecord(log.name, logging.ERROR, __file__, 0, message, (), exc_info)
        for handler in self._handlers[:1]:  # the file is the first
            handler.handle(record)

    def _explain(self, error: BaseException) -> BaseException:
        """Return the error that a bare system error means for the run: a full disk, a dead rank, memory."""
        rank = self._world.rank
        if isinstance(error, errors.DdpschedError) or not isinstance(error, (OSError, RuntimeError, MemoryError)):
            return error
        if isinstance(error, OSError):
            full = full_disk(error, self._folder.path)
            return _explain_shortage(error) if full is None else errors.RankFailure(f"rank {rank}: {full}")
        if self._watch is not None:
            # a dying rank's connections close before the system calls it dead
            for _ in range(20 if isinstance(error, RuntimeError) else 1):
                endings = [(each, "died") for each in self._watch.lost()]
                endings += [(each, "was suspended and did not answer") for each in self._watch.suspended()]
                for peer, ending in endings:
                    # this rank's watch may just have ended it for having been suspended
                    return errors.RankFailure(self._watch.was_suspended(peer) or f"rank {peer} {ending}")
                sleep(0.05)
        if "imed out" in str(error) and (awaited := self._awaited()):
            return errors.RankFailure(awaited)
        if "torch" in sys.modules:
            from ddpsched.training.out_of_memory import is_out_of_memory

            if is_out_of_memory(error):
                return errors.StepOutOfMemory(
                    f"rank {rank} ran out of memory outside a step's forward and backward ({error}); {raise_limit()}"
                    "take a smaller model, lower global_batch or data.max_length, or run fewer ranks on this machine"
                )
        return _explain_shortage(error)

    def _awaited(self) -> str | None:
        """Return which other rank a collective waited for in vain; None where heart-beats do not show it."""
        signs = [sign for sign in behind(self._folder.path / "logs", self._world.size) if sign.rank != self._world.rank]
        if not signs:
            return None
        return (
            f"rank {signs[0].rank} did not answer in time: it was last seen {signs[0]}; its log says why, or raise "
            "executor.timeout_s"
        )


def _explain_shortage(error: BaseException) -> BaseException:
    reason = shortage(error)
    return error if reason is None else errors.RankFailure(reason)


def _formatted(handler: logging.Handler) -> logging.Handler:
    handler.setFormatter(LineFormatter("%(asctime)s %(message)s", "%H:%M:%S"))
    return handler


class LineFormatter(logging.Formatter):
    """One message, one line that begins with the time: what others wrote cannot add a line that looks like another."""

    def format(self, record: logging.LogRecord) -> str:
        """Return a message whose further lines are indented."""
        return visible(super().format(record), lines=True).replace("\n", "\n    ")


class _TerminalLog(logging.Handler):
    """Standard error, as it is at each message: while there is a bar, which rich writes messages above."""

    def emit(self, record: logging.LogRecord) -> None:
        """Print a message, unless it is what the bar shows."""
        if getattr(record, IN_BAR, False):
            return
        try:
            print(self.format(record), file=sys.stderr, flush=True)
        except Exception:  # as logging asks of handlers: a message that cannot be printed ends no run, and is reported
            self.handleError(record)


class _LogFile(logging.FileHandler):
    """A log that a full disk cuts short: what it cannot hold is lost, and the error that matters still raised."""

    def handleError(self, record: logging.LogRecord) -> None:
        """Do nothing: the terminal has the message."""

    def close(self) -> None:
        with contextlib.suppress(OSError):
            super().close()
