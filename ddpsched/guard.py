"""What stands around a run: its logs, the reason it failed, and in a rank among others the watch on them."""

import errno
import logging
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from ddpsched.config import RunConfig
from ddpsched.errors import DdpschedError, RankFailure
from ddpsched.planning.messages import Exchange
from ddpsched.run_folder import RunFolder
from ddpsched.world import World

log = logging.getLogger("ddpsched")


class Guard:
    """Writes down why a run failed, and in a rank among others watches the others."""

    def __init__(self, folder: RunFolder, world: World, config: RunConfig) -> None:
        self._folder, self._world = folder, world
        self._ask_to_stop: Callable[[], None] | None = None
        self._watch: Any = None
        if config.executor.kind == "distributed" and World.launched() and sys.platform == "linux":
            from ddpsched.watch import Watch

            self._watch = Watch(self._stop, self._lost)

    def watch_peers(self, exchange: Exchange, ask_to_stop: Callable[[], None]) -> None:
        """Tell each other the process ids; from now on a signal calls ``ask_to_stop``."""
        if self._watch is not None:
            self._ask_to_stop = ask_to_stop
            host = np.frombuffer(os.uname().nodename.encode().ljust(8)[:8], dtype=np.int64)[0]
            table = exchange.vote(np.array([[os.getpid(), host]], dtype=np.int64))
            self._watch.know(np.where(table[:, 1] == host, table[:, 0], 0).tolist(), self._world.rank)

    def over(self) -> None:
        if self._watch is not None:
            self._watch.over()

    def _stop(self) -> None:
        log.warning("asked to stop; leaving after this step")
        if self._ask_to_stop is None:
            self._lost("asked to stop before the first step")
            os._exit(1)
        self._ask_to_stop()

    def _lost(self, reason: str) -> None:
        message = f"rank {self._world.rank}: {reason}; all ranks end, records up to here are kept"
        print(f"error: {message}", file=sys.stderr, flush=True)
        log.error(message)
        self._folder.failed(reason)

    def __enter__(self) -> "Guard":
        return self

    def __exit__(self, kind: Any, error: BaseException | None, trace: Any) -> None:
        if error is None:
            return
        failure = self._explain(error)
        self._folder.failed(str(failure) if str(failure) else type(failure).__name__)
        if self._watch is not None:
            self._watch.end_suspended()
        log.error("failed: %s", failure, exc_info=None if isinstance(failure, DdpschedError) else error)
        if failure is not error:
            raise failure from error

    def _explain(self, error: BaseException) -> BaseException:
        """A collective that broke because a rank is gone or stopped says so by number."""
        if isinstance(error, KeyboardInterrupt):
            return error
        if isinstance(error, OSError) and error.errno == errno.ENOSPC:
            return RankFailure(f"rank {self._world.rank}: no space left on the device that holds {self._folder.path}")
        if self._watch is None or isinstance(error, DdpschedError) or not isinstance(error, RuntimeError):
            return error
        for ranks, what in ((self._watch.lost(), "died"), (self._watch.stopped(), "was suspended and did not answer")):
            if ranks:
                return RankFailure(f"rank {ranks[0]} {what}")
        return error


@contextmanager
def logging_to(directory: Path, world: World) -> Iterator[None]:
    """Rank r logs to logs/rank{r}.log, rank 0 to the terminal as well."""
    handlers: list[logging.Handler] = [logging.FileHandler(directory / "logs" / f"rank{world.rank}.log", mode="w")]
    if world.is_main:
        handlers.append(logging.StreamHandler())
    for handler in handlers:
        handler.setFormatter(logging.Formatter("%(asctime)s %(message)s", "%H:%M:%S"))
        log.addHandler(handler)
    log.setLevel(logging.INFO)
    try:
        yield
    finally:
        for handler in handlers:
            log.removeHandler(handler)
            handler.close()
