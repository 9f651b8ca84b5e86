"""A step is a plan, and a plan is a value: which rank runs which samples.

A plan holds sample ids, never lengths or texts. A rank that tokenises ahead
knows only the lengths of its own window, yet every rank must hold the same plan
(compare ``digest``); whoever runs a micro-batch knows how long its samples are.
"""

import sys
from array import array
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from functools import cached_property
from hashlib import blake2b
from typing import Any

import numpy as np
import numpy.typing as npt

from ddpsched.errors import ConfigError

Ids = npt.NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class Microbatch:
    """Samples that go through the model together, padded to the longest of them or packed without padding.

    ``ids``: (count,), int64 sample ids. ``packed``: one row that holds all of them end to end. ``pad_to``: tokens
    that every row is filled up to, where that is more than the longest.
    """

    ids: Ids
    packed: bool = False
    pad_to: int = 0

    def __post_init__(self) -> None:
        ids = self.ids
        if type(ids) is not np.ndarray or ids.dtype != np.int64 or ids.flags.writeable:
            ids = np.array(ids, dtype=np.int64)
            ids.flags.writeable = False
            object.__setattr__(self, "ids", ids)

    def __len__(self) -> int:
        return len(self.ids)

    def padded_length(self, lengths: Ids) -> int:
        """Tokens of each of its padded rows, from the ``lengths`` of its samples."""
        return max(int(lengths.max()), self.pad_to)


@dataclass
class PlanTimes:
    """Seconds that planning this step took; different on each rank, null where not measured."""

    offer_s: float | None = None  # lengths of the window looked up or tokenised, cost row made
    exchange_s: float | None = None  # the gather of all rows
    solve_s: float | None = None  # policy, solver, the plan itself with its digest and the position after it
    wait_s: float | None = None  # what the step still had to wait for its plan


@dataclass(frozen=True, eq=False)
class Position:
    """The position at which a stream of plans goes on: all that its next step follows from beside config and data.

    ``step``: number of the next step. ``cursor``: ids of the epoch's order handed out so far. ``windows[r]``: of
    these, the ids that rank r has waiting; () for policies without windows, and at an epoch's start. The seed is
    the config's, and measured speeds are the caller's. Compare ``as_dict()``.

    >>> Position.from_dict(Position(epoch=1, step=40, cursor=96).as_dict())
    Position(epoch=1, step=40, cursor=96, windows=())
    """

    epoch: int = 0
    step: int = 0
    cursor: int = 0
    windows: tuple[Ids, ...] = ()

    def as_dict(self) -> dict[str, Any]:
        """Plain integers and lists, as JSON takes them."""
        windows = [ids.tolist() for ids in self.windows]
        return {"epoch": self.epoch, "step": self.step, "cursor": self.cursor, "windows": windows}

    @classmethod
    def from_dict(cls, state: Mapping[str, Any]) -> "Position":
        """Return the position that ``as_dict`` gave; ConfigError for anything else."""
        needed = sorted(each.name for each in fields(cls))
        if not isinstance(state, Mapping) or set(state) != set(needed):
            given = sorted(map(str, state)) if isinstance(state, Mapping) else repr(state)
            raise ConfigError(f"a position needs exactly {needed}, got {given}")
        for name in ("epoch", "step", "cursor"):
            if not _is_number(state[name]):
                raise ConfigError(f"position: {name} = {state[name]!r}, needs an integer of 0 or more")
        windows = state["windows"]
        if not isinstance(windows, list | tuple) or not all(isinstance(ids, list | tuple) for ids in windows):
            raise ConfigError(f"position: windows = {windows!r}, needs a list of ids for each rank")
        for rank, ids in enumerate(windows):
            wrong = [each for each in ids if not _is_number(each)]
            if wrong:
                raise ConfigError(f"position: windows[{rank}] holds {wrong[0]!r}, needs integers of 0 or more")
        arrays = tuple(np.array(ids, dtype=np.int64) for ids in windows)
        for ids in arrays:
            ids.flags.writeable = False
        return cls(state["epoch"], state["step"], state["cursor"], arrays)


def _is_number(value: object) -> bool:
    return type(value) is int and 0 <= value < 2**63


@dataclass(frozen=True, eq=False)
class StepPlan:
    """One optimizer step: ``ranks[r]`` are rank r's micro-batches, run in this order.

    ``predicted_cost``: one integer per rank in the units of the cost model, or
    None where lengths are learnt online and the policy needs none.
    ``lower_bound`` is what no plan of these samples can go below; ``status`` is
    "optimal" when the makespan meets a proof, else "feasible"; ``after`` is where
    the stream goes on right after this step, None where that is not known. It
    and ``times`` are not part of the plan's identity.

    >>> plan = StepPlan(0, 0, ((Microbatch([3, 1]),), (Microbatch([2]),)))
    >>> plan.global_batch, plan.counts.tolist(), plan.world_size
    (3, [2, 1], 2)
    """

    epoch: int
    step: int
    ranks: tuple[tuple[Microbatch, ...], ...]
    predicted_cost: tuple[int, ...] | None = None
    lower_bound: int | None = None
    status: str = "feasible"
    tie_break: str = "best found"
    method: str = ""
    times: PlanTimes = field(default_factory=PlanTimes)
    after: Position | None = None

    def __post_init__(self) -> None:
        ids = np.sort(self.ids)
        if (ids[1:] == ids[:-1]).any():
            twice = np.unique(ids[1:][ids[1:] == ids[:-1]])
            raise ValueError(f"step {self.step}: ids {twice[:5].tolist()} planned twice")

    @classmethod
    def cut(
        cls,
        epoch: int,
        step: int,
        ids: Ids,
        sizes: Sequence[Sequence[int]],
        packed: bool = False,
        pad_to: int = 0,
        **rest: Any,
    ) -> "StepPlan":
        """A plan from its ids in order, ``sizes[r]`` samples for each micro-batch of rank r; ``rest``: other fields.

        Its digest is made at once.

        >>> [len(micro) for micro in StepPlan.cut(0, 0, np.arange(6), [[2, 1], [3]]).ranks[0]]
        [2, 1]
        """
        ids = np.array(ids, dtype=np.int64)
        ids.flags.writeable = False
        ranks, start = [], 0
        for own in sizes:
            microbatches = []
            for size in own:
                # what Microbatch(...) makes, at a third of its time: a step has up to G * M of them
                micro = object.__new__(Microbatch)
                micro.__dict__.update(ids=ids[start : start + size], packed=packed, pad_to=pad_to)
                microbatches.append(micro)
                start += size
            ranks.append(tuple(microbatches))
        assert start == len(ids), f"sizes add up to {start}, there are {len(ids)} ids"
        # likewise what cls(...) makes; and ids, which the property would put together again
        plan = object.__new__(cls)
        plan.__dict__.update(epoch=epoch, step=step, ranks=tuple(ranks), times=PlanTimes(), ids=ids, **rest)
        plan.__post_init__()
        plan.digest  # noqa: B018 (it is kept; the step that votes on it has it made beforehand)
        return plan

    @property
    def world_size(self) -> int:
        return len(self.ranks)

    @cached_property
    def counts(self) -> npt.NDArray[np.int64]:
        """(world_size,), samples of each rank."""
        return np.array([sum(map(len, rank)) for rank in self.ranks], dtype=np.int64)

    @property
    def global_batch(self) -> int:
        """B of this step; smaller than the config's at the end of an epoch."""
        return len(self.ids)

    @cached_property
    def ids(self) -> Ids:
        """(global_batch,), every id of the step, rank by rank."""
        parts = [micro.ids for rank in self.ranks for micro in rank]
        return np.concatenate(parts) if parts else np.empty(0, dtype=np.int64)

    def rank_ids(self, rank: int) -> Ids:
        """The samples of one rank, micro-batch by micro-batch."""
        parts = [micro.ids for micro in self.ranks[rank]]
        return np.concatenate(parts) if parts else np.empty(0, dtype=np.int64)

    def loss_scale(self, rank: int) -> float:
        """G * b_r / B: what rank r's *mean* loss is multiplied by where gradients are averaged over ranks."""
        return self.world_size * int(self.counts[rank]) / self.global_batch

    @cached_property
    def digest(self) -> int:
        """64 bits (signed) over epoch, step and who runs what, in order; equal on every rank."""
        header = array("q", (self.epoch, self.step, self.world_size))
        for rank in self.ranks:
            header.append(len(rank))
            header.extend([-len(m.ids) if m.packed else len(m.ids) for m in rank])
        wider = [m.pad_to for rank in self.ranks for m in rank if m.pad_to]
        header.extend(wider)
        if sys.byteorder == "big":
            header.byteswap()
        blob = header.tobytes() + self.ids.astype("<i8", copy=False).tobytes()
        return int.from_bytes(blake2b(blob, digest_size=8).digest(), "little", signed=True)
