"""The part of torchrun's store that the ranks of one attempt share.

torchrun keeps one store over all its restarts, and gloo finds in it the addresses of the attempt before, where nobody
listens any more. The number of restarts does not tell attempts apart: on several machines each agent counts for itself.
So rank 0 draws a name for the attempt, and every other rank asks it for that name.
"""

import os
import secrets
from time import monotonic, sleep

import torch.distributed as dist

from ddpsched.errors import RankFailure
from ddpsched.world import World

POLL_S = 0.002
SHOWN = 8  # ranks in a message


def survives_restarts() -> bool:
    """Return whether this process's store outlives a restart: torchrun's agent then holds it."""
    return os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True"


def attempt_store(store: dist.Store, world: World, timeout_s: float) -> dist.Store:
    """Return the store of this attempt, which holds nothing of earlier ones.

    ``ask/r`` holds a word that rank r has just drawn, so that an answer to an earlier rank r is not taken for its own,
    and then the attempt that it was given, by which rank 0 knows that rank r has it. Raises RankFailure, with the ranks
    that are missing, where not all of them ask and are answered within ``timeout_s`` seconds.
    """
    deadline = monotonic() + timeout_s
    attempt = _answer(store, world, deadline) if world.is_main else _ask(store, world, deadline)
    if attempt is None:
        raise RankFailure(
            f"rank 0 did not answer rank {world.rank} within {timeout_s:g} s; its log says why, or raise "
            "executor.timeout_s where ranks start that far apart"
        )
    return dist.PrefixStore(f"attempt/{attempt}", store)


def _ask(store: dist.Store, world: World, deadline: float) -> str | None:
    """Return the attempt's name, from rank 0; None after the deadline."""
    word, answer = secrets.token_hex(8), f"answer/{world.rank}"
    store.set(f"ask/{world.rank}", word)
    while monotonic() < deadline:
        if store.check([answer]):
            asked, attempt = store.get(answer).decode().split()
            if asked == word:
                store.set(f"ask/{world.rank}", f"{word} {attempt}")
                return attempt
        sleep(POLL_S)
    return None


def _answer(store: dist.Store, world: World, deadline: float) -> str:
    """Draw the attempt's name and return it as soon as all ranks have it. Raises RankFailure after the deadline."""
    attempt, missing, begin = secrets.token_hex(8), set(range(1, world.size)), monotonic()
    answered: dict[int, str] = {}
    while missing:
        for rank in sorted(missing):
            words = store.get(f"ask/{rank}").decode().split() if store.check([f"ask/{rank}"]) else []
            if words[1:] == [attempt]:
                missing.remove(rank)
            elif words and answered.get(rank) != words[0]:
                store.set(f"answer/{rank}", f"{words[0]} {attempt}")
                answered[rank] = words[0]
        if missing and monotonic() > deadline:
            names = ", ".join(map(str, sorted(missing)[:SHOWN])) + ", ..." * (len(missing) > SHOWN)
            raise RankFailure(
                f"rank(s) {names} of {world.size} did not join within {monotonic() - begin:.0f} s; their logs say why, "
                "or raise executor.timeout_s where ranks start that far apart"
            )
        sleep(POLL_S)
    return attempt
