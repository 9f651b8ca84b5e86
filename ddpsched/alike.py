"""Agreement of ranks on where they begin, and on a failure of one that the others have no part in."""

from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np

from ddpsched.errors import ConfigError, RankFailure
from ddpsched.exchange import Exchange
from ddpsched.guard import Guard
from ddpsched.recovery.start import Start


def same_start(start: Start, exchange: Exchange) -> None:
    """Raise ConfigError where ranks see different checkpoints."""
    seen = exchange.vote(np.full((len(exchange.ranks), 1), start.position.step, dtype=np.int64))[:, 0]
    if (seen != seen[0]).any():
        raise ConfigError(
            f"ranks see checkpoints after {seen.tolist()} steps; all need the same outputs folder, or give --restart"
        )


@contextmanager
def failing_together(exchange: Exchange, guard: Guard) -> Iterator[None]:
    """Let all ranks fail where one does, so that none waits for it, and they go on together to what comes next.

    status.json has that rank's own reason before the others hear of it. Raises RankFailure on them.
    """
    error = None
    try:
        yield
    except Exception as raised:  # raised below, when the others have heard of it
        error = raised
        guard.fail(raised)
    failed = exchange.vote(np.full((len(exchange.ranks), 1), error is not None, dtype=np.int64))[:, 0]
    if error is not None:
        raise error
    if failed.any():
        raise RankFailure(f"rank {int(np.flatnonzero(failed)[0])} failed after the last step; its log says why")
