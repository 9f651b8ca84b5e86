"""``ddpsched sort``: one pass over a data set, then its order in a file."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from hashlib import blake2b
from time import perf_counter
from typing import TypeVar

import numpy as np

from ddpsched.data.order_file import About, OrderedFile, OrderedWriter
from ddpsched.data.samples import tokenizer_of
from ddpsched.errors import DataError
from ddpsched.sort.measure import Request, Values, Work, rarities
from ddpsched.sort.parts import Parts
from ddpsched.sort.ranks import Int, LaunchedRanks, Ranks
from ddpsched.visible_text import visible
from ddpsched.world import World

T = TypeVar("T")


class Sorting:
    """A sort in progress, on this rank. ``undo``: removes an unfinished file, and parts if nothing was measured."""

    work: Work
    parts: Parts

    def __init__(self, request: Request) -> None:
        self.request, self.undo = request, ExitStack()
        world = World.detect()
        alone = world.size == 1 or not World.launched()
        self.ranks = Ranks() if alone else LaunchedRanks(world, self.undo.close)
        self.world = self.ranks.world

    def run(self) -> Callable[[], None]:
        """Measure, sort and write; return what prints a summary, for rank 0. Raises DataError for no rows."""
        ranks, begin = self.ranks, perf_counter()
        self.work = work = ranks.together(lambda: Work.of(self.request))
        self._check_same_data()
        self.parts = Parts(self.request.output, work.identity(self.request.chunk))
        if self.world.is_main:
            self.undo.callback(self.parts.leave)
        self._on_main(self.parts.begin)
        num_chunks, num_read, num_kept = ranks.together(self._measure)
        chunks = range(self.world.rank, num_chunks, self.world.size)
        counts = np.zeros(0, dtype=np.int64)
        if work.counts_tokens:
            counts = ranks.total(ranks.together(lambda: self._counts(chunks)))
        rows, num_truncated = ranks.together(lambda: self._rows(chunks, counts))
        self._refuse_nan(rows)
        num_rows, num_kept, num_truncated = ranks.total(np.array([len(rows[-1]), num_kept, num_truncated])).tolist()
        if not num_rows:
            raise DataError(f"{work.source.name}: no rows to sort")
        assert num_rows == num_read, f"{num_rows} rows in parts, {num_read} in the data"
        measured = perf_counter()
        rows, rows_merged = ranks.sort(rows)
        sorted_at = perf_counter()
        digest = self._write(rows, num_rows)
        self._on_main(self.parts.end)
        times = f"measured in {measured - begin:.2f} s, sorted in {sorted_at - measured:.2f} s, written in "
        last = f"{times}{perf_counter() - sorted_at:.2f} s\norder {digest}: {self.request.output}"
        return lambda: self._print(num_rows, num_kept, num_truncated, max(rows_merged), last)

    def _on_main(self, do: Callable[[], T]) -> T | None:
        """Return the result of ``do`` on rank 0, None on the others, which wait for it."""
        return self.ranks.together(do if self.world.is_main else lambda: None)

    def _check_same_data(self) -> None:
        """Raise DataError where ranks of several machines see different files under one name."""
        digest = blake2b(self.work.fingerprint.encode(), digest_size=8).digest()
        digests = self.ranks.by_rank(int.from_bytes(digest, "little", signed=True))
        if (digests != digests[0]).any():
            ranks = f"ranks 0 and {int((digests != digests[0]).argmax())}"
            raise DataError(f"{self.work.source.name}: is not the same data on {ranks}; copy it to all machines")

    def _measure(self) -> tuple[int, int, int]:
        """Measure each chunk of this rank that has no part yet.

        Return the number of all chunks, of all rows, and of this rank's chunks that had a part.
        """
        num_chunks = num_rows = num_kept = 0

        def mine(number: int) -> bool:
            return number % self.world.size == self.world.rank and not self.parts.has(number)

        with self._progress() as show:
            for chunk in self.work.source.chunks(self.work.wanted, self.request.chunk, mine):
                if mine(chunk.number):
                    self.parts.write(chunk.number, self.work.measured(chunk))
                else:
                    num_kept += chunk.number % self.world.size == self.world.rank
                num_chunks, num_rows = chunk.number + 1, chunk.first + chunk.num_rows
                show(chunk.share, num_rows)
        return num_chunks, num_rows, num_kept

    @contextmanager
    def _progress(self) -> Iterator[Callable[[float, int], None]]:
        """Show, on rank 0, a bar of the share it has read; ranks take turns, so the others are about as far."""
        if not self.world.is_main:
            yield lambda share, rows: None
            return
        from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn

        from ddpsched.terminal import plain_console

        names = ", ".join(metric.name for metric in self.work.metrics)
        described = TextColumn("{task.description}", markup=False)  # names of columns may hold brackets
        columns = (described, BarColumn(), TaskProgressColumn(), TimeRemainingColumn())
        with Progress(*columns, console=plain_console(stderr=True)) as bar:
            task = bar.add_task(names, total=1.0)
            yield lambda share, rows: bar.update(task, completed=share, description=f"{names} of {rows:,} samples")

    def _counts(self, chunks: range) -> Int:
        """Return the number of times that each token occurs in some chunks."""
        tokenizer = tokenizer_of(self.work.config.data, self.work.config.model.name)
        counts = np.zeros(tokenizer.get_vocab_size(), dtype=np.int64)
        for number in chunks:
            counts += np.bincount(self.parts.read(number)["flat"], minlength=len(counts))
        return counts

    def _rows(self, chunks: range, counts: Int) -> tuple[list[Values], int]:
        """Return the columns of some chunks, each metric's values and then ids; and the number of truncated samples."""
        metrics, num_truncated = self.work.metrics, 0
        # a rank without chunks has columns of the same types
        types = [np.int64 if metric.name == "length" else np.float64 for metric in metrics]
        slices: list[list[Values]] = [[np.zeros(0, dtype) for dtype in (*types, np.int64)]]
        for number in chunks:
            part = self.parts.read(number)
            if self.work.counts_tokens:
                part["rarity"] = rarities(part["flat"], part["lengths"], counts)
            values = [part["rarity" if metric.values is None else str(n)] for n, metric in enumerate(metrics)]
            slices.append([*values, number * self.request.chunk + np.arange(int(part["num_rows"]), dtype=np.int64)])
            num_truncated += int(part["num_truncated"])
        return [np.concatenate(column) for column in zip(*slices, strict=True)], num_truncated

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
        self.undo.callback(writer.drop)
        self._on_main(writer.begin)
        sums = self.ranks.together(lambda: writer.write(world.rank * num_rows // world.size, rows))
        total = self.ranks.total(sums.view(np.int64)).view(np.uint64)
        return self._on_main(lambda: writer.finish(total)) or ""

    def _print(self, num_rows: int, num_kept: int, num_truncated: int, most_merged: int, last: str) -> None:
        """Print what the file holds. ``most_merged``: rows of the rank with the most; ``last``: the last lines."""
        file, size = OrderedFile.open(self.request.output), self.world.size
        kept = f" ({num_kept} chunks of an earlier attempt were kept)" if num_kept else ""
        source = visible(file.about.source)
        print(f"{num_rows:,} samples of {source}{kept}, {size} rank{'s' * (size > 1)}")
        name = file.about.metrics[0]
        low, median, high = (file.rows(i, i + 1)[name][0] for i in (0, num_rows // 2, num_rows - 1))
        print(f"{visible(name)}: {low:g} to {high:g}, median {median:g}")
        if self.work.left_out:
            print(f"all rows are ordered; the run uses only some of them, by {self.work.left_out}")
        if num_truncated:
            print(f"{num_truncated:,} samples were longer than data.max_length, and count as cut to it")
        if size > 1:
            print(f"largest bucket before slices were evened out: {most_merged * size / num_rows:.3f} x the mean")
        print(visible(last, lines=True))


def sort(request: Request) -> None:
    """Measure, sort, write and print a summary, as one process or as one rank of those that torchrun started.

    Raises ConfigError, DataError or OSError before anything is written under the final name; RankFailure where another
    rank fails.
    """
    sorting = Sorting(request)
    try:
        print_summary = sorting.run()
    except BaseException:
        sorting.undo.close()
        raise
    finally:
        sorting.ranks.close()  # before rank 0 prints: from here on other ranks may end
    if sorting.world.is_main:
        print_summary()
