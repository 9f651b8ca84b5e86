"""The plan of a step, as a value: which rank runs which samples.

A plan holds sample ids, never lengths or texts. A rank that tokenises ahead knows only the lengths of its window, yet
every rank must hold the same plan (compare ``digest``). The rank that runs a micro-batch knows its samples' lengths.
"""

from __future__ import annotations

import sys
from array import array
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import cached_property
from hashlib import blake2b
from typing import Any

import numpy as np
import numpy.typing as npt

from ddpsched.decode import shown
from ddpsched.errors import ConfigError
from ddpsched.packed_ids import pack, unpack
from ddpsched.parts import Part, fault_of, finish_times

Ids = npt.NDArray[np.int64]
FEW = 256  # ids whose repetitions a set finds sooner than sorting
NO_IDS: Ids = np.empty(0, dtype=np.int64)
Sizes = Sequence[Sequence[int]]  # sizes[r][m]: samples of rank r's micro-batch m


@dataclass(frozen=True, eq=False)
class Microbatch:
    """Samples that run through the model together, padded to the longest of them or packed without padding.

    ``ids``: (count,), int64 sample ids. ``packed``: one row holds all of them end to end. ``pad_to``: tokens that every
    row is padded to, where that is more than the longest. ``part``: what of the one sample that it holds is run here,
    with the rest on other ranks at the same time; None for whole samples.
    """

    ids: Ids
    packed: bool = False
    pad_to: int = 0
    part: Part | None = None

    def __post_init__(self) -> None:
        if type(self.ids) is not np.ndarray or self.ids.dtype != np.int64 or self.ids.flags.writeable:
            object.__setattr__(self, "ids", _read_only(self.ids))
        if self.part is not None and len(self.ids) != 1:
            raise ValueError(f"a part is of one sample, got {len(self.ids)} ids; give each part a micro-batch")

    def __len__(self) -> int:
        return len(self.ids)

    def padded_length(self, lengths: Ids) -> int:
        """Return the tokens of each of its padded rows, from the ``lengths`` of its samples."""
        return max(int(lengths.max()), self.pad_to)

    def tokens(self, lengths: Ids) -> Ids:
        """Return the tokens that run here of each of its samples, (count,), from the ``lengths`` of these."""
        return lengths if self.part is None else np.array([self.part.tokens], dtype=np.int64)

    @property
    def counted(self) -> Ids:
        """The samples that it counts: a sample in parts counts with the first one."""
        return self.ids if self.part is None or self.part.is_counted else NO_IDS


@dataclass
class PlanTimes:
    """The seconds that planning this step took; different on each rank, None where not measured."""

    offer_s: float | None = None  # look up or tokenise the lengths of the window, make the offer
    exchange_s: float | None = None  # gather all offers
    solve_s: float | None = None  # policy, solver, the plan itself with its digest and the position after it
    wait_s: float | None = None  # the step's wait for its plan


@dataclass(frozen=True, eq=False)
class Position:
    """The position in a stream of plans: with config and data, all that its next step depends on.

    ``step``: number of the next step. ``cursor``: ids of the epoch's order handed out so far. ``windows[r]``: of these,
    the ids that wait in rank r's window; () for policies without windows, and at an epoch's start. The seed is the
    config's, and measured speeds are the caller's. Compare ``as_dict()``.

    >>> Position.from_dict(Position(epoch=1, step=40, cursor=96).as_dict())
    Position(epoch=1, step=40, cursor=96, windows=())
    """

    epoch: int = 0
    step: int = 0
    cursor: int = 0
    windows: tuple[Ids, ...] = ()

    def as_dict(self) -> dict[str, Any]:
        """Return plain integers and lists, as JSON takes them."""
        windows = [ids.tolist() for ids in self.windows]
        return {"epoch": self.epoch, "step": self.step, "cursor": self.cursor, "windows": windows}

    def as_packed(self) -> dict[str, Any]:
        """Return the same with the windows packed, for files that shall stay small."""
        return {"epoch": self.epoch, "step": self.step, "cursor": self.cursor, "windows": pack(self.windows)}

    @classmethod
    def from_dict(cls, state: Mapping[str, Any]) -> Position:
        """Return the position that ``as_dict`` or ``as_packed`` gave. Raises ConfigError for anything else."""
        needed = sorted(each.name for each in fields(cls))
        if not isinstance(state, Mapping) or set(state) != set(needed):
            given = sorted(map(str, state)) if isinstance(state, Mapping) else repr(state)
            raise ConfigError(f"a position needs exactly {needed}, got {given}; give what as_dict() returned")
        for name in ("epoch", "step", "cursor"):
            if not _is_number(state[name]):
                raise ConfigError(f"position: {name} = {shown(state[name])}, needs an integer of 0 or more")
        windows = state["windows"]
        if isinstance(windows, Mapping):
            try:
                return cls(state["epoch"], state["step"], state["cursor"], tuple(map(_read_only, unpack(windows))))
            except ValueError as error:
                raise ConfigError(f"position: windows are not what was packed: {error}") from None
        if not isinstance(windows, list | tuple) or not all(isinstance(ids, list | tuple) for ids in windows):
            raise ConfigError(f"position: windows = {shown(windows)}, needs a list of ids for each rank")
        for rank, ids in enumerate(windows):
            wrong = [each for each in ids if not _is_number(each)]
            if wrong:
                raise ConfigError(f"position: windows[{rank}] holds {shown(wrong[0])}, needs integers of 0 or more")
        return cls(state["epoch"], state["step"], state["cursor"], tuple(map(_read_only, windows)))


def _is_number(value: object) -> bool:
    return type(value) is int and 0 <= value < 2**63


def _read_only(ids: Any) -> Ids:
    array = np.array(ids, dtype=np.int64)
    array.flags.writeable = False
    return array


@dataclass(frozen=True, eq=False)
class StepPlan:
    """One optimizer step: ``ranks[r]`` are rank r's micro-batches, run in this order.

    ``epoch``, ``step``: from 0; steps are numbered over all epochs. ``predicted_cost``: one integer per rank in the
    units of the cost model, or None where lengths are learnt online and the policy needs none. ``lower_bound``: no plan
    of these samples has a smaller largest cost. ``status``: "optimal" where the largest cost is proved to be the
    smallest, else "feasible". ``tie_break``, ``method``: how one of several smallest was chosen, and by which solver.
    ``after``: the position right after this step, None where it is not known. It and ``times`` are not part of the
    plan's identity.

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
        if len(self.ids) <= FEW:
            repeats = len(set(self.ids.tolist())) < len(self.ids)
        else:
            ids = np.sort(self.ids)
            repeats = bool((ids[1:] == ids[:-1]).any())
        if repeats:
            values, counts = np.unique(self.ids, return_counts=True)
            raise ValueError(f"step {self.step}: ids {values[counts > 1][:5].tolist()} planned twice")
        for id, parts in self.parts.items():
            if fault := fault_of(part for _, part in parts):
                raise ValueError(f"step {self.step}: sample {id} is split, and {fault}")
            ranks = [rank for rank, _ in parts]
            if len(set(ranks)) < len(ranks):
                raise ValueError(f"step {self.step}: sample {id} is split over ranks {ranks}; each needs one part")
        if self.parts:
            finish_times([[(0, None if m.part is None else int(m.ids[0])) for m in rank] for rank in self.ranks])

    @classmethod
    def cut(
        cls, epoch: int, step: int, ids: Ids, sizes: Sizes, packed: bool = False, pad_to: int = 0,
        parts: Sequence[Sequence[Part | None]] | None = None, **rest: Any,
    ) -> StepPlan:  # fmt: skip
        """Return the plan of these ids in order, cut into micro-batches of these sizes; ``rest``: other fields.

        ``parts``: of each micro-batch, where samples are split; its id then comes once for each of its parts.

        >>> [len(micro) for micro in StepPlan.cut(0, 0, np.arange(6), [[2, 1], [3]]).ranks[0]]
        [2, 1]
        """
        ids, start, ranks = np.array(ids, dtype=np.int64), 0, []
        ids.flags.writeable = False
        for rank, rank_sizes in enumerate(sizes):
            microbatches = []
            for place, size in enumerate(rank_sizes):
                # what Microbatch(...) makes, at a third of its time: a step has up to G * M of them
                micro = object.__new__(Microbatch)
                part = None if parts is None else parts[rank][place]
                micro.__dict__.update(ids=ids[start : start + size], packed=packed, pad_to=pad_to, part=part)
                microbatches.append(micro)
                start += size
            ranks.append(tuple(microbatches))
        assert start == len(ids), f"sizes add up to {start}, there are {len(ids)} ids"
        # likewise what cls(...) makes; and ids, which the property would concatenate again
        plan = object.__new__(cls)
        plan.__dict__.update(epoch=epoch, step=step, ranks=tuple(ranks), times=PlanTimes(), **rest)
        if parts is None:
            plan.__dict__.update(ids=ids, parts={})
        plan.__post_init__()
        return plan

    def halved(self, ranks: Sequence[int]) -> StepPlan | None:
        """Return the plan with each micro-batch of these ranks cut in two; None where one has only single samples.

        The step's samples stay where they are, and so does its gradient. ``predicted_cost`` is of the plan as it was.

        >>> plan = StepPlan(0, 0, ((Microbatch([3, 1, 5]),), (Microbatch([2]),)))
        >>> [micro.ids.tolist() for micro in plan.halved([0]).ranks[0]], plan.halved([1])
        ([[3, 1], [5]], None)
        """
        if any(max(map(len, self.ranks[rank]), default=0) < 2 for rank in ranks):
            return None
        return replace(
            self,
            ranks=tuple(tuple(_halves(micros)) if rank in ranks else micros for rank, micros in enumerate(self.ranks)),
            status="feasible",
        )

    @property
    def world_size(self) -> int:
        """G, the number of ranks."""
        return len(self.ranks)

    @cached_property
    def counts(self) -> npt.NDArray[np.int64]:
        """(world_size,), samples of each rank."""
        if self.parts:
            return np.array([len(self.rank_ids(rank)) for rank in range(self.world_size)], dtype=np.int64)
        return np.array([sum(map(len, rank)) for rank in self.ranks], dtype=np.int64)

    @property
    def global_batch(self) -> int:
        """B of this step; smaller than the config's at the end of an epoch."""
        return len(self.ids)

    @cached_property
    def ids(self) -> Ids:
        """(global_batch,), every id of the step, rank by rank; that of a split sample where its first part is."""
        return np.concatenate([NO_IDS, *(micro.counted for rank in self.ranks for micro in rank)])

    @cached_property
    def parts(self) -> dict[int, list[tuple[int, Part]]]:
        """The ranks and parts of each sample that is split, by id, in the order in which ranks run them."""
        found: dict[int, list[tuple[int, Part]]] = {}
        for rank, micros in enumerate(self.ranks):
            for micro in micros:
                if micro.part is not None:
                    found.setdefault(int(micro.ids[0]), []).append((rank, micro.part))
        return found

    def rank_ids(self, rank: int) -> Ids:
        """Return the samples that one rank counts, micro-batch by micro-batch."""
        microbatches = self.ranks[rank]
        if len(microbatches) == 1:
            return microbatches[0].counted
        return np.concatenate([NO_IDS, *(micro.counted for micro in microbatches)])

    def loss_scale(self, rank: int) -> float:
        """Return G * b_r / B, the factor of rank r's *mean* loss where gradients are averaged over ranks."""
        return self.world_size * int(self.counts[rank]) / self.global_batch

    @cached_property
    def digest(self) -> int:
        """64 bits (signed) over epoch, step and each rank's micro-batches, in order; equal on every rank."""
        header = array("q", (self.epoch, self.step, self.world_size))
        for rank in self.ranks:
            header.append(len(rank))
            header.extend([-len(m.ids) if m.packed else len(m.ids) for m in rank])
        header.extend([m.pad_to for rank in self.ranks for m in rank if m.pad_to])
        for number, micro in enumerate(m for rank in self.ranks for m in rank if self.parts):
            if micro.part is not None:
                header.extend([number, int(micro.ids[0]), *micro.part.numbers()])
        if sys.byteorder == "big":
            header.byteswap()
        blob = header.tobytes() + self.ids.astype("<i8", copy=False).tobytes()
        return int.from_bytes(blake2b(blob, digest_size=8).digest(), "little", signed=True)

    @property
    def digest_hex(self) -> str:
        """The digest as records and the ledger have it: 16 hexadecimal digits."""
        return f"{self.digest & (2**64 - 1):016x}"


def _halves(micros: Sequence[Microbatch]) -> Iterator[Microbatch]:
    """Yield each micro-batch in two, the first half the larger one; one of a single sample as it is."""
    for micro in micros:
        middle = -(-len(micro) // 2)
        yield replace(micro, ids=micro.ids[:middle])
        if len(micro) > 1:
            yield replace(micro, ids=micro.ids[middle:])
