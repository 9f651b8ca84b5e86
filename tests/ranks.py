"""Starts small gloo worlds for tests: the same function on every rank, each a process of its own."""

import multiprocessing
import os
import random
import socket
import time
import traceback
from collections.abc import Callable
from multiprocessing.connection import Connection
from typing import Any


def run_ranks(function: Callable[..., Any], world_size: int, *args: Any, timeout_s: float = 120) -> list[Any]:
    """``[function(*args) on rank r for r in range(world_size)]``, started as torchrun would.

    A rank that raises fails the test with its own traceback, whichever rank died first.
    """
    context = multiprocessing.get_context("spawn")
    port = free_port()
    pipes, processes = [], []
    for rank in range(world_size):
        receive, send = context.Pipe(duplex=False)
        process = context.Process(target=_rank, args=(send, function, rank, world_size, port, args), daemon=True)
        process.start()
        send.close()
        pipes.append(receive)
        processes.append(process)
    answers: list[Any] = []
    deadline = time.monotonic() + timeout_s
    for rank, pipe in enumerate(pipes):
        try:
            heard = pipe.poll(max(0.0, deadline - time.monotonic()))
            answers.append(pipe.recv() if heard else ("silent", f"rank {rank} gave no answer"))
        except EOFError:
            answers.append(("died", f"rank {rank} ended without an answer"))
    for process in processes:
        process.join(5)
        if process.is_alive():
            process.kill()
    faults = [text for kind, text in answers if kind != "value"]
    if faults:
        raise AssertionError("\n\n".join(sorted(faults, key=lambda text: "Connection closed" in text)))
    return [value for _, value in answers]


def _rank(
    pipe: Connection, function: Callable[..., Any], rank: int, world_size: int, port: int, args: tuple[Any, ...]
) -> None:
    os.environ.update(
        RANK=str(rank),
        LOCAL_RANK=str(rank),
        WORLD_SIZE=str(world_size),
        MASTER_ADDR="127.0.0.1",
        MASTER_PORT=str(port),
        OMP_NUM_THREADS="1",
        GLOO_SOCKET_IFNAME="lo",
    )
    try:
        pipe.send(("value", function(*args)))
    except BaseException:
        pipe.send(("error", f"rank {rank}:\n{traceback.format_exc()}"))
    pipe.close()
    os._exit(0)  # gloo may abort a process that ends in order


def free_port() -> int:
    """A TCP port that nobody listens on, below those that the system hands to outgoing connections.

    One of theirs could be taken between now and the rendezvous: gloo opens many.
    """
    for port in random.SystemRandom().sample(range(20000, 30000), 100):
        with socket.socket() as probe:
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
            return port
    raise RuntimeError("no free port between 20000 and 30000")
