"""Costs of plans with up to M micro-batches a rank, and how often a larger M costs more, as Markdown.

    python -m experiments.benchmarks.microbatches [DIR] [--save FILE] [--against FILE]

Batches of an epoch of SST-2-like lengths (of SST-2 itself, where DIR holds `sst2/train.tsv` and `bert-uncased/`),
small batches of random lengths, and one named example, in padded tokens. `proved` is the share of plans whose makespan
equals its lower bound, `dearer` the number of batches for which this M costs more than a smaller one. Everything but
the time is the same on every machine.

`--save` writes each batch's cost, and `--against` compares with such a file: run the first on an older checkout and the
second on a newer one to see which plans a change has made cheaper or dearer.
"""

import argparse
import json
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from ddpsched.costs.cost_model import CostModel, Int
from ddpsched.data.embedded.length_histogram import sst2_lengths
from ddpsched.data.length_files import read_lengths
from ddpsched.planning.solvers.partition.several import accumulate_split
from ddpsched.planning.solvers.partition.sorted_batch import line_of

COST = CostModel(0, 1, 0, scale=1)  # padded tokens
EXAMPLE = [100, 3, 2, 1, 100]
EPOCHS = ((4, 32), (8, 64), (8, 256))  # G, B
COUNTS = (2, 4, 8)  # M
SIZE = 67_349  # samples of an epoch, as many as SST-2 has
SMALL = 500  # batches

Costs = dict[str, list[int]]


def epoch(folder: Path | None) -> Int:
    """Return the lengths of an epoch in random order, (samples,), in tokens."""
    rng = np.random.default_rng(0)
    if folder is None:
        return sst2_lengths(SIZE, rng)
    tokenizer = str(folder / "bert-uncased")
    return rng.permutation(read_lengths(folder / "sst2" / "train.tsv", texts=("sentence",), tokenizer=tokenizer))


def small_batches() -> Iterator[Int]:
    """Yield lengths of four to twelve samples, some of them far longer than the others."""
    rng = np.random.default_rng(0)
    for _ in range(SMALL):
        size = int(rng.integers(4, 13))
        yield np.where(rng.random(size) < 0.3, rng.integers(80, 120, size), rng.integers(1, 30, size))


def cases(folder: Path | None) -> Iterator[tuple[str, list[Int], int]]:
    """Yield the name of each case, its batches and its number of ranks."""
    yield f"example {EXAMPLE}, G = 2", [np.array(EXAMPLE)], 2
    yield "4 to 12 samples, G = 2", list(small_batches()), 2
    yield "4 to 12 samples, G = 4", list(small_batches()), 4
    lengths = epoch(folder)
    for ranks, size in EPOCHS:
        yield f"epoch, G = {ranks}, B = {size}", [lengths[a : a + size] for a in range(0, len(lengths), size)], ranks


def measure(folder: Path | None) -> tuple[Costs, dict[str, float], dict[str, int]]:
    """Return the costs of each case's batches, the share that is proved, and how often a larger M costs more."""
    costs: Costs = {}
    proved, dearer = {}, {}
    for name, batches, ranks in cases(folder):
        least = [2**62] * len(batches)
        for most in COUNTS:
            case = f"{name}, M = {most}"
            placements = [accumulate_split(line_of(batch, COST), ranks, most) for batch in batches]
            costs[case] = [each.makespan for each in placements]
            proved[case] = sum(each.makespan == each.lower_bound for each in placements) / len(placements)
            dearer[case] = sum(cost > before for cost, before in zip(costs[case], least, strict=True))
            least = [min(pair) for pair in zip(costs[case], least, strict=True)]
    return costs, proved, dearer


def change(after: list[int], before: list[int]) -> str:
    """Return cells: cost before, shares of plans that cost less and more, and before / after in total and at most."""
    pairs = list(zip(after, before, strict=True))
    less, more = (sum(sign * (b - a) > 0 for a, b in pairs) / len(pairs) for sign in (1, -1))
    largest = max(b / a for a, b in pairs)
    return f" {sum(before):,} | {less:.1%} | {more:.1%} | {sum(before) / sum(after):.4f} | {largest:.3f} |"


def table(costs: Costs, proved: dict[str, float], dearer: dict[str, int], before: Costs | None) -> Iterator[str]:
    """Yield the lines of the table, as Markdown. ``before``: the costs of another version, by case."""
    yield "| batches | cost | proved | dearer |" + (
        " before | cheaper now | dearer now | before / now | largest |" if before else ""
    )
    yield "|:--|" + "--:|" * (8 if before else 3)
    for case, values in costs.items():
        line = f"| {case} | {sum(values):,} | {proved[case]:.1%} | {dearer[case]} |"
        yield line + (change(values, before[case]) if before else "")


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(
        prog="python -m experiments.benchmarks.microbatches",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("folder", nargs="?", type=Path, metavar="DIR")
    parser.add_argument("--save", type=Path, help="write each batch's cost here, as JSON")
    parser.add_argument("--against", type=Path, help="compare with costs written by --save")
    options = parser.parse_args()
    costs, proved, dearer = measure(options.folder)
    if options.save:
        options.save.write_text(json.dumps(costs), encoding="utf-8")
    before = json.loads(options.against.read_text(encoding="utf-8")) if options.against else None
    print("\n".join(table(costs, proved, dearer, before)))


if __name__ == "__main__":
    main()
