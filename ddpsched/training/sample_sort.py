"""Distributed sample sort: rows that no rank could hold alone, sorted over a process group.

Each rank sorts its own rows and sends regular samples of them; all choose the same
splitters from these; a row travels once to the rank whose range it is in, is merged
there, and a last exchange of neighbours evens the slices out. Rows are compared on
all their columns, ids included, so equal keys spread over ranks like any others
(Shi and Schaeffer 1992, "Parallel sorting by regular sampling").
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor

from ddpsched.errors import DataError
from ddpsched.orders.lexicographic_sort import Packing, Span, checked, joined, ordered_bits, refuse_nan, sort_words
from ddpsched.orders.lexicographic_sort import trailing_zeros as zeros_of

MAX_COLUMNS = 16
Group = dist.ProcessGroup | None
Seen = Callable[[Sequence[int]], None]


def sample_sort(
    rows: Sequence[Tensor], group: Group = None, num_samples: int = 100, seen: Seen | None = None
) -> list[Tensor]:
    """This rank's slice of all ranks' rows in rising order: rows r * n // G to (r + 1) * n // G.

    ``rows``: this rank's columns, the key first, then what settles ties, an id at last; each (n_r,), int64 or
    float64, on the group's device (CPU for gloo, CUDA for NCCL); n_r may be 0. A row compares by its first column, then
    by its second, and so on. ``num_samples``: rows that each rank shows for the choice of splitters; the largest bucket
    is over the mean by no more than G / num_samples of it where rows are distinct. ``seen`` is told every bucket's
    size before slices are evened out.

    Collective: all ranks of ``group`` (None: all there are) call it alike. The result is unique where rows are, and
    does not depend on the number of ranks. -0.0 becomes 0.0. Raises DataError, on all ranks, where columns differ in
    number or type between ranks, or hold NaN; peak memory beside ``rows`` is some three times their size.
    """
    floats = _agreed(rows, num_samples, group)
    columns = [_integers(column) for column in rows]
    if len(columns) == 1:  # what is sorted in place is not the caller's
        columns = [columns[0].clone()]
    size = dist.get_world_size(group)
    spans = _spans(columns, group)
    if spans is None:  # no rank has a row
        return [column.clone() for column in rows]
    packing = Packing.of(spans)
    words = packing.pack(columns)
    del columns
    second_bits = packing.word_bits(1) if len(words) > 1 else 0
    words = _sorted(words, second_bits)
    cuts = _cuts(words, _splitters(words, num_samples, group))
    words = _exchanged(words, cuts, group)
    words = _sorted(words, second_bits)
    held = _gathered(torch.tensor([len(words[0])], device=words[0].device), group)[:, 0].tolist()
    if seen is not None:
        seen(held)
    words = _exchanged(words, _even_cuts(held, dist.get_rank(group), size), group)
    return [_numbers(column, is_float) for column, is_float in zip(packing.unpack(words), floats, strict=True)]


@dataclass(frozen=True)
class _Columns:
    """What a rank says of its columns before it sends any."""

    number: int
    floats: int  # bit c: column c is float64
    nan: int
    fault: int  # 1: they cannot be sorted, as this rank's own error says
    num_samples: int


def _agreed(rows: Sequence[Tensor], num_samples: int, group: Group) -> list[bool]:
    """Which columns are float64, the same on all ranks; DataError on all where one has a fault."""
    fault: DataError | None = None
    floats: list[bool] = []
    try:
        if not isinstance(rows, list | tuple) or not all(isinstance(column, Tensor) for column in rows):
            raise DataError(f"sorting: rows = {type(rows).__name__}, needs a list of columns, each a tensor")
        floats = checked(rows)
        if len(rows) > MAX_COLUMNS:
            raise DataError(f"sorting: {len(rows)} columns; at most {MAX_COLUMNS}")
        if type(num_samples) is not int or num_samples < 1:
            raise DataError(f"sorting: num_samples = {num_samples!r}, needs an integer of 1 or more")
    except DataError as error:
        fault = error
    nan = 0 if fault else sum(int(column.isnan().sum()) for column in rows if column.is_floating_point())
    own = [len(floats), sum(is_float << column for column, is_float in enumerate(floats)), nan, int(fault is not None)]
    own.append(0 if fault else num_samples)
    device = rows[0].device if fault is None else _device(group)
    told = [_Columns(*each) for each in _gathered(torch.tensor(own, device=device), group).tolist()]
    if fault is not None:
        raise fault
    at_fault = [rank for rank, each in enumerate(told) if each.fault]
    if at_fault:
        raise DataError(f"sorting: rank {at_fault[0]} has rows that cannot be sorted; its own error says why")
    kinds = [_kinds(each) for each in told]
    if len(set(kinds)) > 1:
        odd = next(rank for rank, kind in enumerate(kinds) if kind != kinds[0])
        raise DataError(
            f"sorting: rank 0 has columns of {kinds[0]}, rank {odd} of {kinds[odd]}; give the same on all ranks"
        )
    if len({each.num_samples for each in told}) > 1:
        raise DataError(f"sorting: num_samples = {[each.num_samples for each in told]} by rank; give all the same")
    refuse_nan(sum(each.nan for each in told))
    return floats


def _device(group: Group) -> torch.device:
    """Where the group's messages lie."""
    return torch.device("cuda" if dist.get_backend(group) == "nccl" else "cpu")


def _kinds(told: _Columns) -> str:
    return ", ".join("float64" if told.floats >> column & 1 else "int64" for column in range(told.number))


def _spans(columns: Sequence[Tensor], group: Group) -> list[Span] | None:
    """Of each column over all ranks; None where none has a row."""
    table = torch.zeros((len(columns), 4), dtype=torch.int64)  # low, high, zeros, whether there are rows
    for number, column in enumerate(columns):
        if len(column):
            low, high = (int(value) for value in torch.aminmax(column))
            table[number] = torch.tensor([low, high, zeros_of(_union(column)), 1])
    told = _gathered(table.flatten().to(columns[0].device), group).view(-1, len(columns), 4).tolist()
    held = [each for each in told if each[0][3]]
    if not held:
        return None
    return [joined([Span(*each[number][:3]) for each in held]) for number in range(len(columns))]


def _union(column: Tensor) -> int:
    """Bitwise or of all values, which torch has no reduction for."""
    if column.device.type == "cpu":
        return int(np.bitwise_or.reduce(column.numpy()))
    return union_by_halves(column)


def union_by_halves(column: Tensor) -> int:
    """As numpy's reduction, where the column is."""
    while len(column) > 1:
        half = len(column) // 2
        rest = column[2 * half :]
        column = column[:half] | column[half : 2 * half]
        column = torch.cat([column, rest])
    return int(column[0])


def _splitters(words: Sequence[Tensor], num_samples: int, group: Group) -> list[list[int]]:
    """G - 1 rows, words of each, that cut all rows into ranges of about as many.

    A rank's samples stand for as many of its rows each, so one with few rows has little say.
    """
    own, size = len(words[0]), dist.get_world_size(group)
    count = min(num_samples, own)
    table = torch.zeros((num_samples, len(words) + 1), dtype=torch.int64, device=words[0].device)
    if count:
        places = (2 * torch.arange(count, device=words[0].device) + 1) * own // (2 * count)
        for number, word in enumerate(words):
            table[:count, number] = word[places]
        # in units of 1 / num_samples rows, so that it is whole for all
        table[:count, -1] = num_samples if count == own else own
    told = _gathered(table.flatten(), group).view(-1, len(words) + 1).cpu().numpy()
    told = told[told[:, -1] > 0]
    told = told[np.lexsort(told[:, -2::-1].T)]
    # rows before the middle of what a sample stands for
    before = np.cumsum(told[:, -1]) - told[:, -1] // 2
    total = int(told[:, -1].sum())
    chosen = np.searchsorted(before, [rank * total // size for rank in range(1, size)])
    return [told[min(place, len(told) - 1), :-1].tolist() for place in chosen.tolist()]


def _cuts(words: Sequence[Tensor], splitters: Sequence[Sequence[int]]) -> list[int]:
    """Where this rank's sorted rows are cut: G + 1 places, a splitter's equals behind it."""
    inner = [_place(words, splitter) for splitter in splitters]
    return [0, *inner, len(words[0])]


def _place(words: Sequence[Tensor], row: Sequence[int]) -> int:
    """Rows that come before ``row``, found word by word among those that are equal so far."""
    low, high = 0, len(words[0])
    for word, value in zip(words, row, strict=True):
        within = word[low:high]
        low, high = (
            low + int(torch.searchsorted(within, value, side="left")),
            low + int(torch.searchsorted(within, value, side="right")),
        )
    return low


def _even_cuts(held: Sequence[int], rank: int, size: int) -> list[int]:
    """Cuts of a bucket that begins behind the ones before it, where slices of all rows begin."""
    begin, total = sum(held[:rank]), sum(held)
    ends = [number * total // size for number in range(size + 1)]
    return [min(max(end - begin, 0), held[rank]) for end in ends]


def _exchanged(words: list[Tensor], cuts: Sequence[int], group: Group) -> list[Tensor]:
    """Rows between cuts k and k + 1 go to rank k; what came, in the order of ranks. ``words`` is emptied on the way."""
    given = [end - begin for begin, end in pairwise(cuts)]
    device = words[0].device
    table = _gathered(torch.tensor(given, device=device), group)
    taken = table[:, dist.get_rank(group)].tolist()
    found = []
    while words:
        received = torch.empty(sum(taken), dtype=torch.int64, device=device)
        dist.all_to_all_single(received, words.pop(0), taken, given, group=group)
        found.append(received)
    return found


def _sorted(words: list[Tensor], second_bits: int) -> list[Tensor]:
    """By numpy on a CPU, whose sort of a word has vector instructions; else by torch, on the device."""
    if words[0].device.type == "cpu":
        arrays = [words.pop(0).numpy() for _ in range(len(words))]
        return [torch.from_numpy(word) for word in sort_words(arrays, second_bits)]
    return sorted_by_torch(words)


def sorted_by_torch(words: list[Tensor]) -> list[Tensor]:
    """On the device that they are on: a stable sort a word, the last one first. ``words`` is emptied."""
    turn = None
    for word in reversed(words):
        order = torch.sort(word if turn is None else word[turn], stable=True).indices
        turn = order if turn is None else turn[order]
    return [words.pop(0)[turn] for _ in range(len(words))]


def _gathered(row: Tensor, group: Group) -> Tensor:
    """(G, len(row)): every rank's."""
    rows = [torch.empty_like(row) for _ in range(dist.get_world_size(group))]
    dist.all_gather(rows, row, group=group)
    return torch.stack(rows).cpu()


def _integers(column: Tensor) -> Tensor:
    if not column.is_floating_point():
        return column
    found: Tensor = ordered_bits((column + 0.0).view(torch.int64))
    return found


def _numbers(column: Tensor, is_float: bool) -> Tensor:
    return ordered_bits(column).view(torch.float64) if is_float else column
