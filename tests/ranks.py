"""Starts small gloo worlds for tests: the same function on every rank, each a process of its own."""

from collections.abc import Callable
from typing import Any

from ddpsched import local_ranks
from ddpsched.errors import RankFailure

free_port = local_ranks.free_port


def run_ranks(function: Callable[..., Any], world_size: int, *args: Any, timeout_s: float = 120) -> list[Any]:
    """``[function(*args) on rank r for r in range(world_size)]``, started as torchrun would.

    A rank that raises fails the test with its own traceback, whichever rank died first.
    """
    outcomes = local_ranks.run_ranks(function, world_size, *args, timeout_s=timeout_s, limit_s=timeout_s)
    try:
        return local_ranks.answers(outcomes)
    except RankFailure as error:
        raise AssertionError(str(error)) from None
