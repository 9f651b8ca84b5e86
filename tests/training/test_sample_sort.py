"""The distributed sample sort on 1 to 4 gloo ranks: one order, even slices, balanced buckets, and refusals."""

from itertools import pairwise
from typing import Any

import numpy as np
import pytest
import torch
from ranks import free_port, run_ranks

from ddpsched.errors import DataError
from ddpsched.orders.lexicographic_sort import sort_rows
from ddpsched.training.sample_sort import sample_sort, sorted_by_torch, union_by_halves

SIZE = 8000
RANKS = [1, 2, 3, 4]


def keys_of(name: str, size: int, rng: np.random.Generator) -> np.ndarray:
    return {
        "uniform": lambda: rng.integers(0, 10**6, size),
        "zipf": lambda: np.minimum(rng.zipf(1.5, size), 10**6),
        "80 % ties": lambda: np.where(rng.random(size) < 0.8, 7, rng.integers(0, 100, size)),
        "all equal": lambda: np.full(size, 3),
        "presorted": lambda: np.arange(size),
        "falling": lambda: np.arange(size)[::-1].copy(),
        "normal": lambda: rng.normal(size=size),
        "float ties": lambda: rng.choice(rng.normal(size=40), size),
        "wide": lambda: rng.integers(-(2**63), 2**63 - 1, size),
    }[name]()


KEYS = ["uniform", "zipf", "80 % ties", "all equal", "presorted", "falling", "normal", "float ties", "wide"]
CUTS = ["even", "one has all", "first is empty", "few"]


def parts_of(columns: list[np.ndarray], cut: str, world_size: int) -> list[list[np.ndarray]]:
    """Cut the rows into each rank's part."""
    size = len(columns[0])
    if cut == "one has all":
        bounds = [0] * world_size + [size]
    elif cut == "first is empty":
        bounds = [0, 0, *(rank * size // max(1, world_size - 1) for rank in range(1, world_size))]
        bounds[-1] = size
    else:
        bounds = [rank * size // world_size for rank in range(world_size + 1)]
    return [[column[a:b] for column in columns] for a, b in pairwise(bounds)]


def table_of(keys: str, cut: str) -> list[np.ndarray]:
    rng = np.random.default_rng(0)
    size = {"few": 3}.get(cut, SIZE if cut == "even" else 500)
    return [keys_of(keys, size, rng), rng.permutation(size)]


CASES = [*((keys, "even") for keys in KEYS), *((keys, cut) for keys in ("zipf", "normal") for cut in CUTS[1:])]


def every_case() -> list[tuple[list[np.ndarray], list[int]]]:
    """Return this rank's slice of each case, and the bucket sizes."""
    rank, size = torch.distributed.get_rank(), torch.distributed.get_world_size()
    found = []
    for keys, cut in CASES:
        part = parts_of(table_of(keys, cut), cut, size)[rank]
        held: list[int] = []
        rows = sample_sort([torch.from_numpy(column.copy()) for column in part], seen=held.extend)
        found.append(([column.numpy() for column in rows], held))
    # three columns, of which the first two are full of ties
    ties = [np.arange(60) % 3, np.arange(60) % 7 / 2, np.arange(60)[::-1].copy()]
    part = parts_of(ties, "even", size)[rank]
    found.append(([column.numpy() for column in sample_sort([torch.from_numpy(c.copy()) for c in part])], []))
    return found


@pytest.mark.parametrize("world_size", RANKS)
def test_one_order_whatever_the_ranks(world_size: int) -> None:
    ranks = run_ranks(joined(every_case), world_size)
    for number, (keys, cut) in enumerate(CASES):
        columns = table_of(keys, cut)
        turn, size = np.lexsort(columns[::-1]), len(columns[0])
        for column, values in enumerate(columns):
            slices = [ranks[rank][number][0][column] for rank in range(world_size)]
            np.testing.assert_array_equal(np.concatenate(slices), values[turn], err_msg=f"{keys}, {cut}")
            starts = [rank * size // world_size for rank in range(world_size + 1)]
            assert [len(part) for part in slices] == np.diff(starts).tolist(), "slices are even to the row"
            np.testing.assert_array_equal(np.concatenate(slices), sort_rows(columns)[column], err_msg="the serial twin")
        if cut == "even":
            largest = max(ranks[0][number][1]) * world_size / size
            print(f"{keys}, {world_size} ranks: largest bucket {largest:.3f} x the mean")
            assert largest <= 1.10, (keys, largest)
    ties = [np.arange(60) % 3, np.arange(60) % 7 / 2, np.arange(60)[::-1]]
    turn = np.lexsort(ties[::-1])
    for column, values in enumerate(ties):
        np.testing.assert_array_equal(np.concatenate([rank[-1][0][column] for rank in ranks]), values[turn])


def test_the_balance_test_can_fail() -> None:
    """Comparing keys alone, as the well-known implementation does, puts all ties into one bucket."""
    keys = table_of("80 % ties", "even")[0]
    samples = np.sort(np.concatenate([np.sort(part)[::20] for part in np.split(keys, 4)]))
    splitters = samples[[len(samples) * rank // 4 for rank in (1, 2, 3)]]
    buckets = np.diff([0, *np.searchsorted(np.sort(keys), splitters), len(keys)])
    assert buckets.max() * 4 / len(keys) > 1.5, buckets


def every_fault() -> list[str]:
    """Return this rank's message for each bad call."""
    rank = torch.distributed.get_rank()
    ids = torch.arange(4)
    calls: list[Any] = [
        lambda: sample_sort([torch.tensor([1.0, float("nan") if rank else 2.0]).double(), ids[:2]]),
        lambda: sample_sort([ids if rank else ids.double(), ids]),
        lambda: sample_sort([ids, ids] if rank else [ids]),
        lambda: sample_sort([ids.int() if rank else ids, ids]),
        lambda: sample_sort([ids, ids[: 3 if rank else 4]]),
        lambda: sample_sort([ids, ids], num_samples=0 if rank else 5),
        lambda: sample_sort([ids, ids], num_samples=4 if rank else 5),
        lambda: sample_sort(ids.view(2, 2)),  # type: ignore[arg-type]
        lambda: sample_sort([ids, ids.numpy()] if rank else [ids, ids]),
    ]
    messages = []
    for call in calls:
        try:
            call()
            messages.append("nothing")
        except DataError as error:
            messages.append(str(error))
    found = sample_sort([ids, ids])  # the group is whole after each of them
    assert len(found[0]) == 4
    return messages


def test_what_is_refused_is_refused_on_all_ranks() -> None:
    first, second = run_ranks(joined(every_fault), 2)
    assert all("1 keys are NaN" in messages[0] for messages in (first, second))
    assert all(
        "rank 0 has columns of float64, int64, rank 1 of int64, int64" in messages[1] for messages in (first, second)
    )
    assert all("rank 0 has columns of int64, rank 1 of int64, int64" in messages[2] for messages in (first, second))
    assert "column 0 is int32" in second[3]
    assert "rank 1 has rows that cannot be sorted" in first[3]
    assert "[4, 3] rows" in second[4]
    assert "num_samples = 0" in second[5]
    assert all("num_samples = [5, 4] by rank" in messages[6] for messages in (first, second))
    assert all("rows = Tensor, needs a list of columns" in messages[7] for messages in (first, second))
    assert "needs a list of columns, each a tensor" in second[8]
    assert "rank 1 has rows that cannot be sorted" in first[8]


def no_rows() -> list[list[int]]:
    rows = sample_sort([torch.zeros(0, dtype=torch.float64), torch.zeros(0, dtype=torch.int64)])
    return [[*map(int, column.shape)] for column in rows]


def test_no_rows_at_all() -> None:
    assert run_ranks(joined(no_rows), 2) == [[[0], [0]]] * 2


@pytest.mark.parametrize("size", [1, 2, 3, 64, 1001])
def test_what_a_gpu_would_do(size: int) -> None:
    """The two reductions that run on the device give the same on the CPU."""
    rng = np.random.default_rng(size)
    words = [rng.integers(-5, 5, size), rng.integers(-(2**63), 2**63 - 1, size), rng.permutation(size)]
    turn = np.lexsort(words[::-1])
    for found, word in zip(sorted_by_torch([torch.from_numpy(word) for word in words]), words, strict=True):
        np.testing.assert_array_equal(found.numpy(), word[turn])
    assert union_by_halves(torch.from_numpy(words[1])) == int(np.bitwise_or.reduce(words[1]))


@pytest.mark.gpu
def test_on_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """One rank sorts over NCCL."""
    address = {"MASTER_ADDR": "localhost", "MASTER_PORT": str(free_port()), "RANK": "0", "WORLD_SIZE": "1"}
    for name, value in address.items():
        monkeypatch.setenv(name, value)
    torch.distributed.init_process_group("nccl")
    try:
        for keys in KEYS:
            columns = table_of(keys, "even")
            found = sample_sort([torch.from_numpy(column).cuda() for column in columns])
            for column, expected in zip(found, sort_rows(columns), strict=True):
                np.testing.assert_array_equal(column.cpu().numpy(), expected)
    finally:
        torch.distributed.destroy_process_group()


class joined:
    """Wrap a function to run within the group that a test's ranks form."""

    def __init__(self, function: Any) -> None:
        self.function = function

    def __call__(self) -> Any:
        from ddpsched.local_ranks import join_group, leave_group

        join_group()
        try:
            return self.function()
        finally:
            leave_group()
