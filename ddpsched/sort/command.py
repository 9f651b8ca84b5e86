"""``ddpsched sort``: one pass over a data set, then its order in a file."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from hashlib import blake2b
from pathlib import Path
from typing import TypeVar

import numpy as np

from ddpsched.data.order_file import About, OrderedFile, OrderedWriter
from ddpsched.data.samples import tokenizer_of
from ddpsched.errors import DataError
from ddpsched.sort.metrics import Values, rarities
from ddpsched.sort.parts import Parts
from ddpsched.sort.ranks import Int, LaunchedRanks, Ranks
from ddpsched.sort.work import Request, Work
from ddpsched.world import World

T = TypeVar("T")


@dataclass(frozen=True)
class Summary:
    """The result of a sort, and its times in seconds."""

    output: Path
    digest: str
    num_rows: int
    held: tuple[int, ...]  # rows that each rank merged, before slices were evened out
    num_kept: int  # chunks that an earlier attempt had measured
    num_truncated: int  # samples that were longer than data.max_length
    left_out: str  # keys of the config by which a run uses fewer rows
    measure_s: float
    sort_s: float
    write_s: float


class Sorting:
    """A sort in progress."""

    work: Work
    parts: Parts

    def __init__(self, request: Request) -> None:
        self.request = request
        self._undo: list[Callable[[], None]] = []
        world = World.detect()
        alone = world.size == 1 or not World.launched()
        self.ranks = Ranks() if alone else LaunchedRanks(world, self.leave)
        self.world = self.ranks.world

    def leave(self) -> None:
        """Remove the unfinished file, and the parts if nothing was measured."""
        for undo in reversed(self._undo):
            undo()

    def run(self) -> Summary:
        """Measure, sort and write."""
        ranks, begin = self.ranks, time.perf_counter()
        self.work = work = ranks.together(lambda: Work.of(self.request))
        self._check_same_data()
        self.parts = Parts(self.request.output, work.identity(self.request.chunk))
        if self.world.is_main:
            self._undo.append(self.parts.leave)
        self._on_main(self.parts.begin)
        num_chunks, num_read, num_kept = ranks.together(self._measure)
        chunks = range(self.world.rank, num_chunks, self.world.size)
        counts = np.zeros(0, dtype=np.int64)
        if work.counts_tokens:
            counts = ranks.total(ranks.together(lambda: self._counts(chunks)))
        rows, cut = ranks.together(lambda: self._rows(chunks, counts))
        self._refuse_nan(rows)
        num_rows, num_kept, num_truncated = ranks.total(np.array([len(rows[-1]), num_kept, cut])).tolist()
        if not num_rows:
            raise DataError(f"{work.source.name}: no rows to sort")
        assert num_rows == num_read, f"{num_rows} rows in parts, {num_read} in the data"
        measured = time.perf_counter()
        rows, held = ranks.sort(rows)
        sorted_at = time.perf_counter()
        digest = self._write(rows, num_rows)
        self._on_main(self.parts.end)
        times = measured - begin, sorted_at - measured, time.perf_counter() - sorted_at
        return Summary(
            self.request.output, digest, num_rows, tuple(held), num_kept, num_truncated, work.left_out, *times
        )

    def _on_main(self, do: Callable[[], T]) -> T | None:
        """Return the result of ``do`` on rank 0, None on the others, which wait for it."""
        return self.ranks.together(do if self.world.is_main else lambda: None)

    def _check_same_data(self) -> None:
        """Raise DataError where ranks of several machines see different files under one name."""
        digest = blake2b(self.work.fingerprint.encode(), digest_size=8).digest()
        digests = self.ranks.by_rank(int.from_bytes(digest, "little", signed=True))
        if (digests != digests[0]).any():
            odd = int((digests != digests[0]).argmax())
            raise DataError(
                f"{self.work.source.name}: is not the same data on ranks 0 and {odd}; copy it to all machines"
            )

    def _measure(self) -> tuple[int, int, int]:
        """Measure each chunk of this rank that has no part yet.

        Return the number of all chunks, of all rows, and of this rank's chunks that had a part.
        """
        num_chunks = num_rows = num_kept = 0

        def mine(number: int) -> bool:
            return number % self.world.size == self.world.rank and not self.parts.has(number)

        with _progress(self.world, self.work) as show:
            for chunk in self.work.source.chunks(self.work.wanted, self.request.chunk, mine):
                if mine(chunk.number):
                    self.parts.write(chunk.number, self.work.measured(chunk))
                else:
                    num_kept += chunk.number % self.world.size == self.world.rank
                num_chunks, num_rows = chunk.number + 1, chunk.first + chunk.num_rows
                show(chunk.share, num_rows)
        return num_chunks, num_rows, num_kept

    def _counts(self, chunks: range) -> Int:
        """Return the number of times that each token occurs in some chunks."""
        tokenizer = tokenizer_of(self.work.config.data, self.work.config.model.name)
        counts = np.zeros(tokenizer.get_vocab_size(), dtype=np.int64)
        for number in chunks:
            counts += np.bincount(self.parts.read(number)["flat"], minlength=len(counts))
        return counts

    def _rows(self, chunks: range, counts: Int) -> tuple[list[Values], int]:
        """Return the columns of some chunks, each metric's values and then ids; and the number of samples cut."""
        metrics = self.work.metrics
        # a rank without chunks has columns of the same types
        columns: list[list[Values]] = [
            *([np.zeros(0, np.int64 if metric.name == "length" else np.float64)] for metric in metrics),
            [np.zeros(0, np.int64)],
        ]
        cut = 0
        for number in chunks:
            part = self.parts.read(number)
            for n, metric in enumerate(metrics):
                values = rarities(part["flat"], part["lengths"], counts) if metric.values is None else part[str(n)]
                columns[n].append(values)
            cut += int(part["num_truncated"])
            columns[-1].append(number * self.request.chunk + np.arange(int(part["num_rows"]), dtype=np.int64))
        return [np.concatenate(column) for column in columns], cut

    def _refuse_nan(self, rows: list[Values]) -> None:
        """Raise DataError, on all ranks, where a metric is NaN for some samples."""
        for metric, column in zip(self.work.metrics, rows, strict=False):
            missing = np.isnan(column)
            total = int(self.ranks.total(np.array([missing.sum()]))[0])
            if total:
                ids = ", ".join(str(row + 1) for row in np.sort(rows[-1][missing])[:5])
                where = f" (of this rank's rows, from 1: {ids})" if ids else ""
                raise DataError(
                    f"--metric {metric.name}: {total} samples have no number, or NaN, which cannot be ordered{where}; "
                    "correct or remove them"
                )

    def _write(self, rows: list[Values], num_rows: int) -> str:
        """Write this rank's slice of the file; return the file's digest on rank 0."""
        work, world = self.work, self.world
        about = About(tuple(metric.name for metric in work.metrics), work.fingerprint, work.source.short, work.how)
        writer = OrderedWriter(self.request.output, num_rows, [column.dtype for column in rows], about)
        self._undo.append(writer.drop)
        self._on_main(writer.begin)
        sums = self.ranks.together(lambda: writer.write(world.rank * num_rows // world.size, rows))
        total = self.ranks.total(sums.view(np.int64)).view(np.uint64)
        return self._on_main(lambda: writer.finish(total)) or ""


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


@contextmanager
def _progress(world: World, work: Work) -> Iterator[Callable[[float, int], None]]:
    """Show, on rank 0, a bar of the share it has read; ranks take turns, so the others are about as far."""
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
    """Sort, and print a summary on rank 0."""
    done = sort(request)
    if not World.detect().is_main:
        return
    file = OrderedFile.open(done.output)
    size = len(done.held)
    kept = f" ({done.num_kept} chunks of an earlier attempt were kept)" if done.num_kept else ""
    print(f"{done.num_rows:,} samples of {file.about.source}{kept}, {size} rank{'s' * (size > 1)}")
    name = file.about.metrics[0]
    low, median, high = (file.rows(i, i + 1)[name][0] for i in (0, done.num_rows // 2, done.num_rows - 1))
    print(f"{name}: {low:g} to {high:g}, median {median:g}")
    if done.left_out:
        print(f"all rows are ordered; the run uses only some of them, by {done.left_out}")
    if done.num_truncated:
        print(f"{done.num_truncated:,} samples were longer than data.max_length, and count as cut to it")
    if size > 1:
        print(f"largest bucket before slices were evened out: {max(done.held) * size / done.num_rows:.3f} x the mean")
    print(f"measured in {done.measure_s:.2f} s, sorted in {done.sort_s:.2f} s, written in {done.write_s:.2f} s")
    print(f"order {done.digest}: {done.output}")
