"""Distributed sample sort: rows that no rank could hold alone, sorted over a process group.

Each rank sorts its rows and sends regular samples of them. All ranks choose the same
splitters from these. A row travels once, to the rank whose range it is in, and is
merged there; a last exchange between neighbours makes the slices even. Rows are
compared on all their columns, ids included, so equal keys spread over ranks like any
others (Shi and Schaeffer 1992, "Parallel sorting by regular sampling").
"""

from collections.abc import Callable, Sequence
from itertools import pairwise

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor

from ddpsched.errors import DataError
from ddpsched.orders.lexicographic_sort import Span, WordLayout, checked, joined, ordered_bits, refuse_nan, sort_words
from ddpsched.orders.lexicographic_sort import trailing_zeros as zeros_of

MAX_COLUMNS = 16
Group = dist.ProcessGroup | None
Seen = Callable[[Sequence[int]], None]


def sample_sort(
    rows: Sequence[Tensor], group: Group = None, num_samples: int = 100, seen: Seen | None = None
) -> list[Tensor]:
    """Return this rank's slice of all ranks' rows in rising order: rows r * n // G to (r + 1) * n // G.

    ``rows``: this rank's columns, the key first, then what settles ties, an id last; each (n_r,), int64 or
    float64, on the group's device (CPU for gloo, CUDA for NCCL); n_r may be 0. A row compares by its first column, then
    by its second, and so on. ``num_samples``: rows that each rank shows for the choice of splitters; the largest bucket
    exceeds the mean by at most G / num_samples of it where rows are distinct. ``seen`` is called with the sizes of all
    buckets before slices are made even.

    Collective: all ranks of ``group`` (None: all there are) call it alike. The result is unique where rows are, and
    does not depend on the number of ranks. -0.0 becomes 0.0. Raises DataError, on all ranks, where columns differ in
    number or type between ranks, or hold NaN; peak memory beside ``rows`` is some three times their size.
    """
    floats = _agreed(rows, num_samples, group)
    columns = [_integers(column) for column in rows]
    if len(columns) == 1:  # sorted in place, so it must not be the caller's
        columns = [columns[0].clone()]
    spans = _spans(columns, group)
    if spans is None:  # no rank has a row
        return [column.clone() for column in rows]
    packing = WordLayout.of(spans)
    words = packing.pack(columns)
    del columns
    second_bits = packing.word_bits(1) if len(words) > 1 else 0
    words = _sorted(words, second_bits)
    cuts = [_place(words, splitter) for splitter in _splitters(words, num_samples, group)]
    words = _exchanged(words, [0, *cuts, len(words[0])], group)
    words = _sorted(words, second_bits)
    held = _gathered(torch.tensor([len(words[0])], device=words[0].device), group)[:, 0].tolist()
    if seen is not None:
        seen(held)
    rank, size, total = dist.get_rank(group), dist.get_world_size(group), sum(held)
    ends = np.arange(size + 1) * total // size - sum(held[:rank])  # of the even slices, as places in this bucket
    words = _exchanged(words, ends.clip(0, held[rank]).tolist(), group)
    return [
        ordered_bits(column).view(torch.float64) if is_float else column
        for column, is_float in zip(packing.unpack(words), floats, strict=True)
    ]


def _agreed(rows: Sequence[Tensor], num_samples: int, group: Group) -> list[bool]:
    """Return which columns are float64, the same on all ranks; raise DataError on all where one has a fault."""
    fault, floats, nans = None, list[bool](), 0
    try:
        if not isinstance(rows, list | tuple) or not all(isinstance(column, Tensor) for column in rows):
            raise DataError(f"sorting: rows = {type(rows).__name__}, needs a list of columns, each a tensor")
        floats = checked(rows)
        if len(rows) > MAX_COLUMNS:
            raise DataError(f"sorting: {len(rows)} columns; at most {MAX_COLUMNS}")
        if type(num_samples) is not int or num_samples < 1:
            raise DataError(f"sorting: num_samples = {num_samples!r}, needs an integer of 1 or more")
        nans = sum(int(column.isnan().sum()) for column in rows if column.is_floating_point())
    except DataError as error:
        fault = error
    # fixed shape: the number of columns, each one's kind, and what else must agree
    kinds = [int(is_float) for is_float in floats[:MAX_COLUMNS]] + [-1] * (MAX_COLUMNS - len(floats[:MAX_COLUMNS]))
    row = [int(fault is not None), nans, min(num_samples, 2**62) if fault is None else 0, *kinds]
    reports = _gathered(torch.tensor(row, dtype=torch.int64, device=_device_of(group)), group).tolist()
    if fault is not None:
        raise fault
    faults, all_nans, samples = ([report[place] for report in reports] for place in range(3))
    if any(faults):
        raise DataError(f"sorting: rank {faults.index(True)} has rows that cannot be sorted; its own error says why")
    if odd := next((rank for rank, report in enumerate(reports) if report[3:] != reports[0][3:]), 0):
        raise DataError(
            f"sorting: rank 0 has columns of {_named(reports[0][3:])}, rank {odd} of {_named(reports[odd][3:])}; give "
            "the same on all ranks"
        )
    if len(set(samples)) > 1:
        raise DataError(f"sorting: num_samples = {samples} by rank; give all the same")
    refuse_nan(sum(all_nans))
    return floats


def _device_of(group: Group) -> torch.device:
    """Return the device whose tensors the group exchanges, which a rank with unusable rows needs as well."""
    on_cuda = dist.get_backend(group) == "nccl"
    return torch.device("cuda", torch.cuda.current_device()) if on_cuda else torch.device("cpu")


def _named(kinds: Sequence[int]) -> str:
    """Return the kinds of columns as words."""
    return ", ".join("float64" if kind else "int64" for kind in kinds if kind >= 0)


def _spans(columns: Sequence[Tensor], group: Group) -> list[Span] | None:
    """Return the span of each column over all ranks; None where no rank has a row."""
    table = torch.zeros((len(columns), 4), dtype=torch.int64)  # low, high, zeros, whether there are rows
    for number, column in enumerate(columns):
        if len(column):
            on_cpu = column.device.type == "cpu"
            union = int(np.bitwise_or.reduce(column.numpy())) if on_cpu else union_by_halves(column)
            table[number] = torch.tensor([*map(int, torch.aminmax(column)), zeros_of(union), 1])
    tables = _gathered(table.flatten().to(columns[0].device), group).view(-1, len(columns), 4).tolist()
    held = [spans for spans in tables if spans[0][3]]
    if not held:
        return None
    return [joined([Span(*spans[number][:3]) for spans in held]) for number in range(len(columns))]


def union_by_halves(column: Tensor) -> int:
    """Return the bitwise or of all values, computed on the column's device; torch has no reduction for it."""
    while len(column) > 1:
        half = len(column) // 2
        rest = column[2 * half :]
        column = torch.cat([column[:half] | column[half : 2 * half], rest])
    return int(column[0])


def _splitters(words: Sequence[Tensor], num_samples: int, group: Group) -> list[list[int]]:
    """Return G - 1 rows, as words, that cut all ranks' rows into ranges of about equal size.

    Each of a rank's samples stands for an equal share of its rows, so a rank with few rows has little weight.
    """
    size, held = dist.get_world_size(group), len(words[0])
    count = min(num_samples, held)
    table = torch.zeros((num_samples, len(words) + 1), dtype=torch.int64, device=words[0].device)
    if count:
        places = (2 * torch.arange(count, device=words[0].device) + 1) * held // (2 * count)
        table[:count, :-1] = torch.stack([word[places] for word in words], 1)
        # in units of 1 / num_samples rows, so that it is whole for all
        table[:count, -1] = num_samples if count == held else held
    samples = _gathered(table.flatten(), group).view(-1, len(words) + 1).numpy()
    samples = samples[samples[:, -1] > 0]
    samples = samples[np.lexsort(samples[:, -2::-1].T)]
    # rows before the middle of the share that a sample stands for
    before = np.cumsum(samples[:, -1]) - samples[:, -1] // 2
    total = int(samples[:, -1].sum())
    chosen = np.searchsorted(before, [rank * total // size for rank in range(1, size)])
    return samples[chosen.clip(max=len(samples) - 1), :-1].tolist()


def _place(words: Sequence[Tensor], row: Sequence[int]) -> int:
    """Return how many rows come before ``row``, found word by word among those that are equal so far."""
    low, high = 0, len(words[0])
    for word, value in zip(words, row, strict=True):
        within = word[low:high]
        high = low + int(torch.searchsorted(within, value, side="right"))
        low += int(torch.searchsorted(within, value, side="left"))
    return low


def _exchanged(words: list[Tensor], cuts: Sequence[int], group: Group) -> list[Tensor]:
    """Send the rows between cuts k and k + 1 to rank k; return what arrives, by rank. Empties ``words`` on the way."""
    sent = [end - begin for begin, end in pairwise(cuts)]
    device = words[0].device
    received = _gathered(torch.tensor(sent, device=device), group)[:, dist.get_rank(group)].tolist()
    arrived = []
    while words:
        arrived.append(torch.empty(sum(received), dtype=torch.int64, device=device))
        dist.all_to_all_single(arrived[-1], words.pop(0), received, sent, group=group)
    return arrived


def _sorted(words: list[Tensor], second_bits: int) -> list[Tensor]:
    """Sort rows by numpy on a CPU, whose sort of a word has vector instructions; else by torch, on the device."""
    if words[0].device.type == "cpu":
        arrays = [words.pop(0).numpy() for _ in range(len(words))]
        return [torch.from_numpy(word) for word in sort_words(arrays, second_bits)]
    return sorted_by_torch(words)


def sorted_by_torch(words: list[Tensor]) -> list[Tensor]:
    """Sort rows on their device, by a stable sort a word, the last one first. Empties ``words``."""
    turn = None
    for word in reversed(words):
        order = torch.sort(word if turn is None else word[turn], stable=True).indices
        turn = order if turn is None else turn[order]
    return [words.pop(0)[turn] for _ in range(len(words))]


def _gathered(row: Tensor, group: Group) -> Tensor:
    """Return every rank's row, on the CPU: (G, len(row))."""
    rows = [torch.empty_like(row) for _ in range(dist.get_world_size(group))]
    dist.all_gather(rows, row, group=group)
    return torch.stack(rows).cpu()


def _integers(column: Tensor) -> Tensor:
    """Return a column as integers that compare alike."""
    return ordered_bits((column + 0.0).view(torch.int64)) if column.is_floating_point() else column
