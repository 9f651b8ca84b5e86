"""``ddpsched sort``: one pass over a data set, then its order in a file."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from hashlib import blake2b
from pathlib import Path
from typing import Any

import numpy as np

from ddpsched.data.order_file import About, OrderedFile, OrderedWriter
from ddpsched.data.samples import tokenizer_of
from ddpsched.errors import DataError
from ddpsched.sort.metrics import Metric, Values, rarities
from ddpsched.sort.parts import Parts
from ddpsched.sort.ranks import Alone, Ranks, Together
from ddpsched.sort.work import Request, Work
from ddpsched.world import World


@dataclass(frozen=True)
class Summary:
    """What was done. ``held``: rows that each rank merged, before slices were evened out."""

    output: Path
    digest: str
    num_rows: int
    held: tuple[int, ...]
    num_kept: int  # chunks that an earlier try had measured
    num_truncated: int  # samples that were longer than data.max_length
    left_out: str  # keys of the config by which a run uses fewer rows
    measure_s: float
    sort_s: float
    write_s: float


class Sorting:
    """A sort under way, and what it has begun to write."""

    def __init__(self, request: Request) -> None:
        self.request = request
        self.writer: OrderedWriter | None = None
        self.parts: Parts | None = None
        world = World.detect()
        alone = world.size == 1 or not World.launched()
        self.ranks: Ranks = Alone() if alone else Together(world, self.leave)

    def leave(self) -> None:
        """Nothing half-written stays, but for what was measured."""
        if self.writer is not None:
            self.writer.drop()
        if self.parts is not None and self.ranks.world.is_main:
            self.parts.leave()

    def run(self) -> Summary:
        """Measure, sort and write."""
        ranks, size, begin = self.ranks, self.request.chunk, time.perf_counter()
        world = ranks.world
        work = ranks.together(lambda: Work.of(self.request))
        _same_data(work, ranks)
        self.parts = parts = Parts(self.request.output, work.identity(size))
        ranks.together(parts.begin if world.is_main else _nothing)
        seen = ranks.together(lambda: _measure(work, parts, size, world))
        counts = np.zeros(0, dtype=np.int64)
        if work.counts_tokens:
            counts = ranks.total(ranks.together(lambda: _counts(work, parts, seen, world)))
        rows, cut = ranks.together(lambda: _rows(work, parts, seen, size, world, counts))
        _refuse_nan(work.metrics, rows, ranks)
        num_rows, num_kept, num_truncated = ranks.total(np.array([len(rows[-1]), seen.kept, cut])).tolist()
        if not num_rows:
            raise DataError(f"{work.source.name}: no rows to sort")
        assert num_rows == seen.num_rows, f"{num_rows} rows in parts, {seen.num_rows} in the data"
        measured = time.perf_counter()
        rows, held = ranks.sort(rows)
        sorted_at = time.perf_counter()
        about = About(tuple(metric.name for metric in work.metrics), work.fingerprint, work.source.short, work.how)
        self.writer = OrderedWriter(self.request.output, num_rows, [column.dtype for column in rows], about)
        digest = _written(self.writer, rows, num_rows, ranks)
        ranks.together(parts.end if world.is_main else _nothing)
        times = measured - begin, sorted_at - measured, time.perf_counter() - sorted_at
        return Summary(
            self.request.output, digest, num_rows, tuple(held), num_kept, num_truncated, work.left_out, *times
        )


def sort(request: Request) -> Summary:
    """Measure, sort and write, as one process or as one rank of those that torchrun started.

    Raises ConfigError, DataError or OSError before anything is written under the final name; RankFailure where another
    rank fails.
    """
    sorting = Sorting(request)
    try:
        return sorting.run()
    except BaseException:
        sorting.leave()
        raise
    finally:
        sorting.ranks.close()


def _nothing() -> None:
    """What other ranks do meanwhile."""


@dataclass(frozen=True)
class _Seen:
    """What a pass over the data saw: all chunks and rows; and how many of this rank's chunks had been measured."""

    num_chunks: int
    num_rows: int
    kept: int


def _same_data(work: Work, ranks: Ranks) -> None:
    """DataError where ranks of several machines see different files under one name."""
    own = int.from_bytes(blake2b(work.fingerprint.encode(), digest_size=8).digest(), "little", signed=True)
    world = ranks.world
    told = ranks.total(np.eye(world.size, dtype=np.int64)[world.rank] * own)
    if (told != told[0]).any():
        odd = int((told != told[0]).argmax())
        raise DataError(f"{work.source.name}: is not the same data on ranks 0 and {odd}; copy it to all machines")


def _measure(work: Work, parts: Parts, size: int, world: World) -> _Seen:
    """Every chunk of this rank that has no part yet."""
    num_chunks = num_rows = kept = 0

    def mine(number: int) -> bool:
        return number % world.size == world.rank and not parts.has(number)

    with _progress(world, work) as show:
        for chunk in work.source.chunks(work.wanted, size, mine):
            if chunk.number % world.size == world.rank:
                if mine(chunk.number):
                    parts.write(chunk.number, work.measured(chunk))
                else:
                    kept += 1
            num_chunks, num_rows = chunk.number + 1, chunk.first + chunk.num_rows
            show(chunk.share, num_rows)
    return _Seen(num_chunks, num_rows, kept)


def _counts(work: Work, parts: Parts, seen: _Seen, world: World) -> Any:
    """How often each token occurs in this rank's chunks."""
    assert work.encoder is not None
    found = np.zeros(tokenizer_of(work.config.data, work.config.model.name).get_vocab_size(), dtype=np.int64)
    for _, part in _own_parts(parts, seen, world):
        found += np.bincount(part["flat"], minlength=len(found))
    return found


def _own_parts(parts: Parts, seen: _Seen, world: World) -> Iterator[tuple[int, dict[str, Any]]]:
    for number in range(world.rank, seen.num_chunks, world.size):
        yield number, parts.read(number)


def _rows(work: Work, parts: Parts, seen: _Seen, size: int, world: World, counts: Any) -> tuple[list[Values], int]:
    """This rank's columns: each metric's values, then ids; and how many samples were cut."""
    columns: list[list[Values]] = [[] for _ in (*work.metrics, "id")]
    cut = 0
    for number, part in _own_parts(parts, seen, world):
        for n, metric in enumerate(work.metrics):
            if metric.values is not None:
                columns[n].append(part[str(n)])
            else:
                columns[n].append(rarities(part["flat"], part["lengths"], counts))
        cut += int(part["num_truncated"])
        columns[-1].append(number * size + np.arange(int(part["num_rows"]), dtype=np.int64))
    # a rank without chunks has columns of the same kinds
    kinds = [*(np.int64 if metric.name == "length" else np.float64 for metric in work.metrics), np.int64]
    return [np.concatenate([*column, np.zeros(0, kind)]) for column, kind in zip(columns, kinds, strict=True)], cut


def _refuse_nan(metrics: list[Metric], rows: list[Values], ranks: Ranks) -> None:
    """DataError, on all ranks, that says how many samples of which metric have no number."""
    for metric, column in zip(metrics, rows, strict=False):
        missing = np.isnan(column) if column.dtype == np.float64 else np.zeros(len(column), dtype=bool)
        total = int(ranks.total(np.array([missing.sum()]))[0])
        if total:
            own = ", ".join(str(row + 1) for row in np.sort(rows[-1][missing])[:5])
            where = f" (of this rank's rows, from 1: {own})" if own else ""
            raise DataError(
                f"--metric {metric.name}: {total} samples have no number, or NaN, which has no place in an "
                f"order{where}; mend or remove them"
            )


def _written(writer: OrderedWriter, rows: list[Values], num_rows: int, ranks: Ranks) -> str:
    world = ranks.world
    ranks.together(writer.begin if world.is_main else _nothing)
    sums = ranks.together(lambda: writer.write(world.rank * num_rows // world.size, rows))
    total = ranks.total(sums.view(np.int64)).view(np.uint64)
    return ranks.together((lambda: writer.finish(total)) if world.is_main else lambda: "")


@contextmanager
def _progress(world: World, work: Work) -> Iterator[Callable[[float, int], None]]:
    """A bar on rank 0 of how much it has read; ranks take turns, so the others are about as far."""
    if not world.is_main:
        yield lambda share, rows: None
        return
    from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn

    from ddpsched.terminal import plain_console

    what = ", ".join(metric.name for metric in work.metrics)
    described = TextColumn("{task.description}", markup=False)  # names of columns may hold brackets
    columns = (described, BarColumn(), TaskProgressColumn(), TimeRemainingColumn())
    with Progress(*columns, console=plain_console(stderr=True)) as bar:
        task = bar.add_task(what, total=1.0)
        yield lambda share, rows: bar.update(task, completed=share, description=f"{what} of {rows:,} samples")


def answer(request: Request) -> None:
    """Sort, and say what came of it."""
    found = sort(request)
    if not World.detect().is_main:
        return
    file = OrderedFile.open(found.output)
    size = len(found.held)
    kept = f" ({found.num_kept} chunks of an earlier try were kept)" if found.num_kept else ""
    print(f"{found.num_rows:,} samples of {file.about.source}{kept}, {size} rank{'s' * (size > 1)}")
    for name in file.about.metrics:
        places = [0, found.num_rows // 2, found.num_rows - 1]
        low, median, high = (file.rows(place, place + 1)[name][0] for place in places)
        if name == file.about.metrics[0]:
            print(f"{name}: {low:g} to {high:g}, median {median:g}")
    if found.left_out:
        print(f"all rows are ordered; {found.left_out} chooses among them in the run")
    if found.num_truncated:
        print(f"{found.num_truncated:,} samples were longer than data.max_length, and count as cut to it")
    if size > 1:
        print(f"largest bucket before slices were evened out: {max(found.held) * size / found.num_rows:.3f} x the mean")
    print(f"measured in {found.measure_s:.2f} s, sorted in {found.sort_s:.2f} s, written in {found.write_s:.2f} s")
    print(f"order {found.digest}: {found.output}")
