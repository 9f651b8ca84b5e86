"""Ranks on this machine: run one function on each, in a separate process, and find the rank at fault where one fails.

The first rank that dies is seldom the one at fault: the ranks that wait for it in a collective fail too, and often
before it. So every rank sends its traceback to the parent, and ranks that merely waited are marked.
"""

import contextlib
import faulthandler
import functools
import itertools
import multiprocessing
import os
import pickle
import random
import signal
import socket
import sys
import tempfile
import threading
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from multiprocessing import forkserver, util
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

from ddpsched.errors import DdpschedError, RankFailure
from ddpsched.processes import SUSPENDED, Process, end_with_parent

PORTS = range(20_000, 30_000)  # below those that the system gives to outgoing connections: gloo opens many of these
LAST_LINES = 20  # of a rank's log, in messages
PRELOADED = ["ddpsched.training.distributed", "ddpsched.training.virtual"]  # and with them torch and transformers
THREADS = {"OMP_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false"}
# what the error of a collective contains where another rank does not join it, or is gone
LONELY = ("Connection closed", "Connection reset", "Connection refused", "Broken pipe", "imed out", "gloo", "NCCL")


@dataclass
class Outcome:
    """The result of one rank.

    Attributes:
        rank: its number.
        ended: "answered", with ``value``; "raised", "died" or "silent", with ``says``.
        value: the function's result.
        says: a description of the failure, with the traceback if there is one.
        waited: whether it raised because another rank did not join a collective.
        error: the error it raised, if that is one of ddpsched's.
        posts: the values that it sent by ``post``.
        log: the end of its printed output.
    """

    rank: int
    ended: str = "silent"
    value: Any = None
    says: str = ""
    waited: bool = False
    error: DdpschedError | None = None
    posts: list[Any] = field(default_factory=list)
    log: str = ""

    @property
    def brief(self) -> str:
        """``says`` on one line; of a traceback, the error."""
        lines = self.says.splitlines() or [""]
        return f"raised {lines[-1]}" if self.ended == "raised" else lines[0]


def run_ranks(
    function: Callable[..., Any], world_size: int, *args: Any, timeout_s: float = 60.0, limit_s: float = 3600.0
) -> list[Outcome]:
    """Run ``function(*args)`` on every rank, started as torchrun would; return the outcomes in rank order.

    ``function`` lies in a module that can be imported, and joins the process group itself (``join_group``). Once a rank
    has ended, the others must end within ``timeout_s`` seconds, and all within ``limit_s``; one that does not writes
    its stack to its log, and is killed. Nothing that a rank prints reaches the terminal.

    >>> [outcome.value for outcome in run_ranks(os.getenv, 2, "RANK")]
    ['0', '1']
    """
    # unpickled by the rank itself, in whose log the warnings of imports belong
    work, port, context = pickle.dumps((function, args)), str(free_port()), rank_context()
    with tempfile.TemporaryDirectory(prefix="ddpsched-ranks-") as folder:
        ranks: dict[Connection, tuple[BaseProcess, Outcome]] = {}
        try:
            for rank in range(world_size):
                receive, send = context.Pipe(duplex=False)
                environ = {  # as torchrun sets it, and one thread for each rank
                    **os.environ, "RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(world_size),
                    "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "GLOO_SOCKET_IFNAME": "lo", **THREADS,
                }  # fmt: skip
                arguments = (send, work, rank, environ, f"{folder}/rank{rank}.log")
                process: BaseProcess = context.Process(target=_rank, args=arguments, daemon=True)
                process.start()
                send.close()
                ranks[receive] = process, Outcome(rank)
            _listen(ranks, timeout_s, limit_s)
        finally:
            for process, outcome in ranks.values():
                _end(process, outcome)
                if (log := Path(folder, f"rank{outcome.rank}.log")).exists():
                    outcome.log = log.read_text(encoding="utf-8", errors="replace")[-8000:]
    return [outcome for _, outcome in ranks.values()]


def at_fault(outcomes: Sequence[Outcome]) -> list[Outcome]:
    """Return the ranks that failed by themselves; those that waited for others only where nobody else failed."""
    failed = [outcome for outcome in outcomes if outcome.ended != "answered"]
    return [outcome for outcome in failed if not outcome.waited] or failed


def answers(outcomes: Sequence[Outcome]) -> list[Any]:
    """Return every rank's value. Raises RankFailure with the tracebacks of the ranks at fault."""
    if any(outcome.ended != "answered" for outcome in outcomes):
        raise RankFailure(blame(outcomes))
    return [outcome.value for outcome in outcomes]


def blame(outcomes: Sequence[Outcome]) -> str:
    """Return the ranks at fault as text, with tracebacks, and then the ranks that waited for them.

    A rank that died or was killed has no traceback: the end of its log may hold its stack.
    """
    guilty, texts = at_fault(outcomes), []
    for each in guilty:
        texts.append(f"rank {each.rank} {each.says}")
        if each.ended in ("died", "silent") and each.log.strip():
            texts[-1] += "\n".join(["", "it printed last:", *each.log.strip().splitlines()[-LAST_LINES:]])
    if others := [str(each.rank) for each in outcomes if each.ended != "answered" and each not in guilty]:
        texts.append(f"waited in vain: rank {', '.join(others)}")
    return "\n\n".join(texts)


def free_port() -> int:
    """Return a TCP port that nobody listens on, each call another. Raises RankFailure where 100 of them are in use."""
    for port in itertools.islice(_ports(), 100):
        with socket.socket() as probe, contextlib.suppress(OSError):
            probe.bind(("127.0.0.1", port))
            return port
    raise RankFailure(f"no free port between {PORTS[0]} and {PORTS[-1]}; end some of the programs that listen there")


@functools.cache
def _ports() -> Iterator[int]:
    """Every port of the range in random order: two draws would give one port twice before its first user is gone."""
    return itertools.cycle(random.SystemRandom().sample(PORTS, len(PORTS)))


def post(value: Any) -> None:
    """Send a value to the process that started this rank, at once and from any thread; no effect elsewhere."""
    if _post is not None:
        _post(("post", value))


def join_group(timeout_s: float = 60.0) -> None:
    """Join the gloo process group of all ranks; a rank silent for ``timeout_s`` seconds fails the others."""
    from datetime import timedelta

    import torch.distributed as dist

    dist.init_process_group("gloo", timeout=timedelta(seconds=timeout_s))


def leave_group() -> None:
    """Leave it. Raises what ``torch.distributed.destroy_process_group`` does.

    gloo's threads need the interpreter lock to drop the tensors of a last all_to_all. Destroying the group holds it
    while it waits for them, in torch 2.6 for ever; so they have a moment to do it before.
    """
    import torch.distributed as dist

    time.sleep(0.1)
    dist.destroy_process_group()


_post: Callable[[tuple[str, Any]], None] | None = None  # of a rank's process


def rank_context() -> Any:
    """Return the context that starts processes: forks of a server that has imported torch once, for every call.

    Elsewhere than on Linux each rank imports it anew.
    """
    if sys.platform != "linux":
        return multiprocessing.get_context("spawn")
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(PRELOADED)
    environ = dict(os.environ)
    os.environ.update(THREADS)  # read as torch is imported; ranks inherit it
    try:
        forkserver.ensure_running()
    finally:
        for name in THREADS:
            del os.environ[name]
        os.environ.update(environ)
    return context


def _rank(pipe: Connection, work: bytes, rank: int, environ: dict[str, str], log: str) -> None:
    """Run the function in a rank's process. All that it prints goes to ``log``, and its stack at a crash or SIGUSR1."""
    global _post
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent ends its ranks
    end_with_parent()
    target = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    for descriptor in (1, 2):
        os.dup2(target, descriptor)
    faulthandler.enable()
    if hasattr(faulthandler, "register"):
        faulthandler.register(signal.SIGUSR1, all_threads=True)
    os.environ.clear()  # it is the server's, or the parent's as it was
    os.environ.update(environ)
    # a rank may start processes, as under torchrun: forks of its own, which see by their parent that it has ended
    multiprocessing.current_process()._config["daemon"] = False  # type: ignore[attr-defined]
    multiprocessing.set_start_method(None, force=True)
    lock = threading.Lock()

    def send(message: tuple[str, Any]) -> None:
        with lock:
            pipe.send(message)

    _post = send
    try:
        function, args = pickle.loads(work)
        send(("answered", {"value": function(*args)}))
    except BaseException as error:
        known = error if isinstance(error, DdpschedError) else None
        says = f"raised:\n{traceback.format_exc().rstrip()}"
        send(("raised", {"says": says, "waited": _waited(error, rank), "error": known}))
    sys.stdout.flush()
    util._run_finalizers(0)  # type: ignore[attr-defined] # semaphores that libraries made
    os._exit(0)  # gloo may abort a process that ends in order


def _waited(error: BaseException | None, rank: int) -> bool:
    """Return whether another rank's absence raised this error, or one that led to it."""
    while error is not None:
        if isinstance(error, RankFailure) and not str(error).startswith(f"rank {rank} "):
            return True
        if isinstance(error, RuntimeError) and any(word in str(error) for word in LONELY):
            return True
        error = error.__cause__ or error.__context__
    return False


def _listen(ranks: dict[Connection, tuple[BaseProcess, Outcome]], timeout_s: float, limit_s: float) -> None:
    """Receive what ranks send until all have ended, or time is up."""
    deadline, waiting = time.monotonic() + limit_s, list(ranks)
    while waiting:
        ready = wait(waiting, max(0.0, deadline - time.monotonic()))
        if not ready:
            return
        for pipe in ready:
            assert isinstance(pipe, Connection)
            process, outcome = ranks[pipe]
            try:
                kind, values = pipe.recv()
            except (EOFError, OSError):
                process.join(5)
                kind, values = "died", {}
            if kind == "post":
                outcome.posts.append(values)
                continue
            outcome.ended = kind
            vars(outcome).update(values)
            waiting.remove(pipe)
            deadline = min(deadline, time.monotonic() + timeout_s)


def _end(process: BaseProcess, outcome: Outcome) -> None:
    """End the process if it has not ended; describe one that gave no answer in ``outcome.says``."""
    if outcome.ended == "died":
        code = process.exitcode
        how = f"killed by {signal.Signals(-code).name}" if code is not None and code < 0 else f"exit code {code}"
        outcome.says = f"died without an answer ({how})"
    elif outcome.ended == "silent":
        suspended = Process.of(process.pid or 0).state in SUSPENDED
        outcome.says = "was suspended and gave no answer" if suspended else "gave no answer in time"
        if process.is_alive() and process.pid and not suspended:
            with contextlib.suppress(ProcessLookupError):
                os.kill(process.pid, signal.SIGUSR1)  # its stack, to its log
            process.join(0.5)
    else:
        process.join(5)
    if process.is_alive():
        process.kill()
        process.join(5)
