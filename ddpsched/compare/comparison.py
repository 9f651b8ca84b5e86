"""``ddpsched.plan``: the table of ``ddpsched plan`` as a value."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from ddpsched.compare.arms import Question, Row, arms, compare
from ddpsched.data.lengths import KnownLengths
from ddpsched.errors import ConfigError
from ddpsched.peers import PEERS

if TYPE_CHECKING:
    import pandas as pd

NEAR = 1.01  # yardsticks within one in a hundred: the simpler arm is recommended


@dataclass(frozen=True)
class Comparison:
    """Policies and peers side by side: ``rows`` in the order of the table, whose first line is ``title``.

    ``print(comparison)`` prints the table of ``ddpsched plan``.
    """

    title: str
    rows: tuple[Row, ...]

    def to_frame(self) -> pd.DataFrame:
        """Return a row for each arm, its name as index; NaN or None where a figure has no meaning for it."""
        import pandas as pd

        return pd.DataFrame([row.flat() for row in self.rows]).set_index("arm")

    @property
    def recommendation(self) -> str:
        """The arms to begin with, of those with static's gradient: the simplest within 1 % of the best.

        Several micro-batches and packed rows are named beside it, with what they need.
        """
        exact = [row for row in self.rows if row.same_gradient and row.figures is not None and row.package is None]
        packed = [row for row in exact if "packed" in row.arm]
        several = [row for row in exact if "M = " in row.arm]
        plain = [row for row in exact if row not in (*packed, *several)]
        best = _simplest([row for row in plain if row.arm == "static" or _ratio(row) < 1] or plain)
        words = []
        if best is not None:
            words = [f"{best.arm}, at {_ratio(best):.3f} times the cost of static and with its gradient"]
        priced = "micro-batches cost little by themselves (`ddpsched calibrate` measures it)"
        for rows, need in ((several, priced), (packed, "the model takes packed rows")):
            better = _simplest(rows)
            if better is not None and (best is None or _ratio(better) * NEAR < _ratio(best)):
                words.append(f"{better.arm} at {_ratio(better):.3f} where {need}")
        return f"recommended: {'; '.join(words) or 'none, as no arm here has the gradient of static'}"

    def __str__(self) -> str:
        from ddpsched.compare.show import text

        return text(self.rows, self.title, self.recommendation)


def plan(
    lengths: npt.ArrayLike,
    *,
    world_size: int,
    global_batch: int,
    policy: str | Sequence[str] = (),
    peer: str | Sequence[str] = (),
    max_microbatches: int | None = None,
    max_tokens: int | None = None,
    lookahead: int = 1,
    prefetch: int | None = None,
    epochs: int = 1,
    seed: int = 0,
    cost: str | Mapping[str, Any] = "padded_tokens",
    memory: Mapping[str, Any] | None = None,
) -> Comparison:
    """Plan ``epochs`` of these lengths with every policy, train nothing, and return the yardsticks side by side.

    ``lengths``: (N,), as ``ddpsched.lengths(dataset)`` returns them. ``world_size``: G, ranks. ``global_batch``: B,
    samples of a step over all ranks. ``policy``: one or several names; without it all that apply. ``peer``: other
    packages' batching beside them, by name, or "all". ``max_microbatches``, ``max_tokens``, ``lookahead`` and
    ``prefetch``: options of the policies and peers that have them. ``seed``: of the epochs' orders. ``cost``,
    ``memory``: tables [cost] and [memory] of a config; ``memory`` as ``{"path": calibration, "budget_bytes": bytes}``.

    Raises ConfigError or DataError for arguments out of range.

    >>> table = plan([5, 60, 7, 8, 30, 6, 9, 10], world_size=2, global_batch=8, policy=["static", "balanced"])
    >>> table.to_frame().times_static.to_dict()
    {'static': 1.0, 'balanced': 0.5}
    >>> table.recommendation
    'recommended: balanced, at 0.500 times the cost of static and with its gradient'
    """
    known = KnownLengths(lengths)
    question = Question(
        known.lengths(np.arange(len(known))),
        world_size=world_size,
        global_batch=global_batch,
        max_microbatches=max_microbatches,
        max_tokens=max_tokens,
        lookahead=lookahead,
        prefetch=prefetch,
        epochs=epochs,
        seed=seed,
        cost={"kind": cost} if isinstance(cost, str) else dict(cost),
        memory=None if memory is None else dict(memory),
    )
    policies = (policy,) if isinstance(policy, str) else tuple(policy)
    peers = (peer,) if isinstance(peer, str) else tuple(peer)
    return compared(question, policies, peers, "lengths")


def compared(question: Question, policies: Sequence[str], peers: Sequence[str], name: str) -> Comparison:
    """Return the comparison that answers ``question``. ``name``: of the lengths, in its title.

    Raises ConfigError for policies whose options do not fit, before any is planned, and where no arm can be planned.
    """
    for arm in arms(question, policies or ("static",)).values():
        question.spec(arm)
    rows = tuple(compare(question, policies, tuple(PEERS) if "all" in peers else peers))
    if not any(row.figures for row in rows):
        raise ConfigError("no arm can be planned:\n" + "\n".join(f"{row.arm}: {row.skipped}" for row in rows))
    lengths = question.lengths
    title = (
        f"{name}: {len(lengths):,} samples, mean {lengths.mean():.1f}, longest {lengths.max()} tokens; G = "
        f"{question.world_size}, B = {question.global_batch}, seed {question.seed}"
    )
    return Comparison(title, rows)


def _simplest(rows: Sequence[Row]) -> Row | None:
    """Return the first row that is within 1 % of the best; None of none."""
    least = min(map(_ratio, rows), default=0.0)
    return next((row for row in rows if _ratio(row) <= least * NEAR), None)


def _ratio(row: Row) -> float:
    return row.times_static or 0.0
