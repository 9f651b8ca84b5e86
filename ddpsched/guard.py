"""Guard: the logs of a run, the reason why it failed, and in a rank among others the watch on them."""

import contextlib
import errno
import logging
import os
import sys
from collections.abc import Callable
from time import sleep
from typing import Any, Protocol, TypeVar

import numpy as np

from ddpsched.errors import (
    ConfigError,
    DataError,
    DdpschedError,
    RankFailure,
    RunExistsError,
    RunHeldError,
    StepOutOfMemory,
)
from ddpsched.exchange import Exchange
from ddpsched.processes import host_id
from ddpsched.run_folder import RunFolder
from ddpsched.watch import Reports, Watch
from ddpsched.world import World

log = logging.getLogger("ddpsched")


class Closable(Protocol):
    def close(self) -> object: ...


R = TypeVar("R", bound=Closable)


class Guard:
    """Writes down why a run failed; with a ``watch``, which a rank among others has, knows which of them did."""

    def __init__(self, folder: RunFolder, world: World, watch: Watch | None) -> None:
        self._folder, self._world, self._watch = folder, world, watch
        self._handlers: list[logging.Handler] = []
        self._ask_to_stop: Callable[[], object] | None = None
        self._resources = contextlib.ExitStack()
        self._began, self._failure = False, ""
        if watch is not None:
            watch.report_to(Reports(self._stop, self._lost, self.is_done))

    def closing(self, resource: R) -> R:
        """Close it at the end: after the reason of a failure has been written, as others learn of it by the closing."""
        return self._resources.enter_context(contextlib.closing(resource))

    def watch_peers(self, exchange: Exchange, ask_to_stop: Callable[[], object]) -> None:
        """Tell each other the process ids, and the attempt; from now on a signal calls ``ask_to_stop``."""
        if self._watch is not None:
            self._ask_to_stop = ask_to_stop
        host = host_id()
        table = exchange.vote(np.array([[os.getpid(), host, self._folder.attempt]], dtype=np.int64))
        self._folder.meet(int(table[0, 2]))
        if self._watch is not None:
            self._watch.know(np.where(table[:, 1] == host, table[:, 0], 0).tolist(), self._world.rank)

    def begun(self) -> None:
        """The folder is this run's now on every rank; what status.json says is of this run."""
        self._began = True
        self._start_logs()

    def is_done(self) -> bool:
        """Whether "done" is on the disk: from then on nothing that any rank does makes the run a failed one."""
        return self._began and self._folder.is_done()

    def _start_logs(self) -> None:
        """Rank r logs to logs/rank{r}.log, rank 0 to the terminal as well."""
        self._handlers.append(_LogFile(self._folder.log_path(self._world.rank), mode="w"))
        if self._world.is_main:
            self._handlers.append(logging.StreamHandler())
        for handler in self._handlers:
            handler.setFormatter(logging.Formatter("%(asctime)s %(message)s", "%H:%M:%S"))
            log.addHandler(handler)
        log.setLevel(logging.INFO)

    def _stop(self) -> None:
        if self._ask_to_stop is None:
            self._lost("asked to stop before the first step")
            os._exit(1)
        log.warning("asked to stop; leaving after this step")
        self._ask_to_stop()

    def _lost(self, reason: str) -> None:
        if self._failure:  # this rank has written why, and was about to say it
            print(f"error: {self._failure}", file=sys.stderr, flush=True)
        else:
            message = f"rank {self._world.rank}: {reason}; all ranks end, records up to here are kept"
            print(f"error: {message}", file=sys.stderr, flush=True)
            self._log_to_file(message, None)
            self._note(reason)
        self._folder.let_go()

    def __enter__(self) -> "Guard":
        return self

    def __exit__(self, kind: Any, error: BaseException | None, trace: Any) -> None:
        failure = None if error is None else self._explain(error)
        if failure is not None:
            self._say_why(failure)
        try:
            self._resources.close()
        except Exception as trouble:
            if failure is None and not self.is_done():
                self._say_why(trouble)
                raise
            log.warning("closing: %r", trouble)
        finally:
            if self._watch is not None:
                self._watch.over()
            for handler in self._handlers:
                log.removeHandler(handler)
                handler.close()
        if failure is not None and failure is not error:
            raise failure from error

    def _say_why(self, failure: BaseException) -> None:
        if self._watch is not None:
            self._watch.leaving()
        reason = "interrupted" if isinstance(failure, KeyboardInterrupt) else str(failure) or repr(failure)
        if not self._is_refusal(failure):
            self._note(reason)
        self._failure = reason
        if self._watch is not None:
            self._watch.end_suspended()
        expected = isinstance(failure, (DdpschedError, KeyboardInterrupt))
        self._log_to_file(f"failed: {failure!r}", None if expected else failure)

    def _is_refusal(self, failure: BaseException) -> bool:
        """Whether this run could not start, and has no peers who would ask why: what stood there stays as it was."""
        if isinstance(failure, (RunExistsError, RunHeldError)):
            return True
        return self._watch is None and not self._began and isinstance(failure, (ConfigError, DataError))

    def _note(self, reason: str) -> None:
        """Into status.json; where even that cannot be written, say so, and let the reason itself be raised."""
        try:
            self._folder.failed(reason)
        except (OSError, ValueError) as error:  # no JSON, so nobody knows whose it is
            if not self._folder.path.exists():
                return  # there is nowhere to write to, which is what is being raised
            why = error.strerror if isinstance(error, OSError) else error
            print(f"status.json could not be written ({why}): {reason}", file=sys.stderr, flush=True)

    def _log_to_file(self, message: str, error: BaseException | None) -> None:
        """The terminal gets the error once, from whoever catches it."""
        record = log.makeRecord(log.name, logging.ERROR, __file__, 0, message, (), None)
        if error is not None:
            record.exc_info = (type(error), error, error.__traceback__)
        for handler in self._handlers:
            if isinstance(handler, logging.FileHandler):
                handler.handle(record)

    def _explain(self, error: BaseException) -> BaseException:
        """Return the error that a bare system error means for the run: a full disk, a dead rank, memory."""
        rank = self._world.rank
        if isinstance(error, DdpschedError) or not isinstance(error, (OSError, RuntimeError, MemoryError)):
            return error
        if isinstance(error, OSError):
            if error.errno == errno.ENOSPC:
                return RankFailure(
                    f"rank {rank}: no space left for {self._folder.path}; free some, or set outputs=... elsewhere"
                )
            return error
        if self._watch is not None:
            # a dying rank's connections close before the system calls it dead
            for _ in range(20):
                for ranks, what in (
                    (self._watch.lost(), "died"),
                    (self._watch.suspended(), "was suspended and did not answer"),
                ):
                    if ranks:
                        # this rank's watch may just have ended it for having been suspended
                        return RankFailure(self._watch.was_suspended(ranks[0]) or f"rank {ranks[0]} {what}")
                if not isinstance(error, RuntimeError):
                    break
                sleep(0.05)
        if "torch" in sys.modules:
            from ddpsched.training.out_of_memory import is_out_of_memory

            if is_out_of_memory(error):
                return StepOutOfMemory(
                    f"rank {rank} ran out of memory outside a step's forward and backward ({error}); take a smaller "
                    "model, lower global_batch or data.max_length, or run fewer ranks on this machine"
                )
        return error


class _LogFile(logging.FileHandler):
    """A log that a full disk cuts short: what it cannot hold is lost, and the error that matters still raised."""

    def handleError(self, record: logging.LogRecord) -> None:
        """The terminal has the message."""

    def close(self) -> None:
        with contextlib.suppress(OSError):
            super().close()
