"""Time of a DataLoader with ddpsched's sampler against torch's own, and of the sampler alone.

    python -m experiments.benchmarks.loaders [--size 8192] [--rounds 20] [--launches 5]

Rank 0 of two loads one epoch of sentences as token ids, as long as SST-2's: from a tokenised data set of ``datasets``
with transformers' DataCollatorWithPadding, in its own process and by two workers, and from tensors in memory, which are
padded. No model runs; the global batch is 32. Seconds are of a sample that the rank loads. The sampler alone is
iterated over SST-2's 67,349 lengths; its time is over all ranks' samples, as it plans the whole step on each. Asked are
a loader that is no slower, and at most 2 us a sample for the sampler.
"""

import argparse
import sys
from collections.abc import Callable, Sequence
from functools import partial
from time import perf_counter
from typing import Any

import numpy as np

from ddpsched.cli import guarded
from ddpsched.data.embedded.length_histogram import sst2_lengths
from ddpsched.data.embedded.sentences import embedded_tokenizer
from ddpsched.terminal import plain_console
from ddpsched.world import World
from experiments.benchmarks.bench import AA, Seconds, add_options, in_turn, launched, tables

RANKS, GLOBAL_BATCH, SST2 = 2, 32, 67_349
TORCH, BALANCED, PLAIN = "DistributedSampler", "ddpsched, balanced", "ddpsched, static"


def arrow(lengths: list[int]) -> tuple[Any, Callable[[Any], Any]]:
    """Return a tokenised data set of ``datasets``, and transformers' collator."""
    from datasets import Dataset
    from transformers import DataCollatorWithPadding, PreTrainedTokenizerFast

    draw = np.random.default_rng(1)
    rows = [draw.integers(1, 30, length).tolist() for length in lengths]
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=embedded_tokenizer(), pad_token="[PAD]")
    return Dataset.from_dict({"input_ids": rows, "labels": [0] * len(rows)}), DataCollatorWithPadding(tokenizer)


def memory(lengths: list[int]) -> tuple[Any, Callable[[Any], Any]]:
    """Return a list of tensors, and torch's padding."""
    import torch
    from torch.nn.utils.rnn import pad_sequence

    return [torch.randint(1, 30_000, (length,)) for length in lengths], partial(pad_sequence, batch_first=True)


SOURCES = {"a data set of datasets": arrow, "tensors in memory": memory}
LOADED = [("a data set of datasets", 0), ("a data set of datasets", 2), ("tensors in memory", 0)]


def loading(source: str, workers: int, size: int, rounds: int, seed: int) -> Seconds:
    """Return the seconds of a loaded sample by arm and round; one launch."""
    from torch.utils.data import DataLoader, DistributedSampler

    from ddpsched import BatchSampler

    lengths = sst2_lengths(size, np.random.default_rng(0))
    data, collate = SOURCES[source](lengths.tolist())
    words: Any = {"collate_fn": collate, "num_workers": workers, "persistent_workers": bool(workers)}

    def ours(policy: str) -> DataLoader[Any]:
        sampler = BatchSampler(lengths, global_batch=GLOBAL_BATCH, policy=policy, world=World(0, RANKS))
        return DataLoader(data, batch_sampler=sampler, **words)

    def theirs() -> DataLoader[Any]:
        sampler: Any = DistributedSampler(data, RANKS, 0)
        return DataLoader(data, GLOBAL_BATCH // RANKS, sampler=sampler, **words)

    def epoch(loader: DataLoader[Any]) -> float:
        begin, samples = perf_counter(), 0
        for batch in loader:
            samples += len(batch if source == "tensors in memory" else batch["input_ids"])
        return (perf_counter() - begin) / samples

    arms = {TORCH: theirs(), AA: theirs(), PLAIN: ours("static"), BALANCED: ours("balanced")}
    return in_turn({name: partial(epoch, loader) for name, loader in arms.items()}, rounds, seed)


def planning(size: int, rounds: int, seed: int) -> dict[str, Seconds]:
    """Return the seconds of a planned sample, of all ranks, by title; one launch."""
    from ddpsched import BatchSampler

    lengths = sst2_lengths(size, np.random.default_rng(0))

    def epoch(sampler: Any) -> float:
        begin = perf_counter()
        for _ in sampler:
            pass
        return (perf_counter() - begin) / size

    found = {}
    for ranks, batch in ((2, 32), (4, 32), (8, 256)):
        words: Any = {"global_batch": batch, "world": World(0, ranks)}
        arms: dict[str, Callable[[], float]] = {
            policy: partial(epoch, BatchSampler(lengths, policy=policy, **words)) for policy in ("balanced", "static")
        }
        found[f"the sampler alone, G = {ranks}, B = {batch}"] = in_turn(arms, rounds, seed)
    return found


def main(words: Sequence[str]) -> int:
    """Measure and print; return the exit code."""
    parser = argparse.ArgumentParser(prog="python -m experiments.benchmarks.loaders", description=__doc__)
    parser.add_argument("--size", type=int, default=8192, help="samples that are loaded (8192)")
    add_options(parser)
    given = parser.parse_args(words)

    def body() -> None:
        console = plain_console()
        loaded = {
            f"{source}, {given.size} samples, {workers} workers, rank 0 of {RANKS}": launched(
                loading, source, workers, given.size, given.rounds, launches=given.launches
            )
            for source, workers in LOADED
        }
        planned = launched(planning, SST2, given.rounds, launches=given.launches)
        sections = {title: [each[title] for each in planned] for title in planned[0]}
        for table in (*tables(loaded, "us a sample", 1e6), *tables(sections, "us a sample", 1e6)):
            console.print(table)

    return guarded(body)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
