"""The policy pool: choices against their plain definition, how full batches are, and how long choosing takes."""

from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from ddpsched.costs.memory_cap import Cap, probed
from ddpsched.data.embedded.length_histogram import sst2_lengths
from ddpsched.data.token_table import tokenise
from ddpsched.data.tokenizer import load_tokenizer
from ddpsched.errors import InfeasibleError
from ddpsched.planning.assignment import Assignment
from ddpsched.planning.policies.filling import Supply
from ddpsched.planning.policies.pool import Pool


def pooled(lengths: Any, world_size: int = 1, **values: Any) -> Iterator[Assignment]:
    given = {key: values.pop(key) for key in ("caps", "cursor", "windows") if key in values}
    lengths = np.array(lengths, dtype=np.int64)
    return Pool(**values).fill(Supply(lengths, world_size, **given))


def batches(steps: list[Assignment]) -> list[list[list[int]]]:
    """Return the micro-batches of each step, rank by rank, as positions."""
    result = []
    for step in steps:
        positions = iter(step.positions.tolist())
        result.append([list(islice(positions, size)) for share in step.sizes for size in share])
    return result


def by_definition(lengths: list[int], size: int, budget: int, strategy: str) -> list[list[int]]:
    """Return one rank's micro-batches, chosen by searching the whole pool as the definition states."""
    waiting: list[int] = []
    fed, result = 0, []
    while fed < len(lengths) or waiting:
        while len(waiting) < size and fed < len(lengths):
            waiting.append(fed)
            fed += 1
        batch = [waiting.pop(0)]
        while True:
            longest = max(lengths[p] for p in batch)
            fits = [p for p in waiting if max(longest, lengths[p]) * (len(batch) + 1) <= budget]
            if not fits:
                break
            # smallest padded size first; of equal sizes the closest length, or none preferred; of equals the oldest
            closest = strategy == "prefer_closest"
            best = min(fits, key=lambda p: (max(longest, lengths[p]), abs(lengths[p] - longest) * closest, p))
            waiting.remove(best)
            batch.append(best)
        result.append(batch)
    return result


@given(
    st.lists(st.integers(1, 30), min_size=1, max_size=60),
    st.integers(1, 20),
    st.integers(1, 90),
    st.sampled_from(["prefer_closest", "prefer_first"]),
)
@example([5, 5, 5, 4, 9, 5], 4, 20, "prefer_closest")
def test_choices_as_by_definition(lengths: list[int], size: int, budget: int, strategy: str) -> None:
    steps = list(pooled(lengths, pool_size=size, max_tokens_for_batch=budget, strategy=strategy))
    expected = by_definition(lengths, size, budget, strategy)
    assert [sorted(micro) for step in batches(steps) for micro in step] == [sorted(micro) for micro in expected]


def test_strategies_differ() -> None:
    lengths = sst2_lengths(2000, np.random.default_rng(0))
    closest, first = (
        batches(list(pooled(lengths, max_tokens_for_batch=200, strategy=kind)))
        for kind in ("prefer_closest", "prefer_first")
    )
    assert closest != first


@given(
    st.lists(st.integers(1, 30), min_size=1, max_size=80),
    st.integers(1, 4),
    st.integers(1, 3),
    st.integers(1, 20),
    st.integers(1, 90),
    st.sampled_from(["prefer_closest", "prefer_first", "sequence_packing"]),
)
def test_exactly_once_within_the_budget_and_together(
    lengths: list[int], ranks: int, batches_a_step: int, size: int, budget: int, kind: str
) -> None:
    how: dict[str, Any] = {"sequence_packing": True} if kind == "sequence_packing" else {"strategy": kind}
    values = {"batches_per_optimizer_step": batches_a_step, "pool_size": size, "max_tokens_for_batch": budget, **how}
    steps = list(pooled(lengths, ranks, **values))
    assert sorted(p for step in steps for p in step.positions.tolist()) == list(range(len(lengths)))
    for step in batches(steps):
        for micro in step:
            tokens = [lengths[p] for p in micro]
            used = sum(tokens) if kind == "sequence_packing" else len(micro) * max(tokens)
            assert used <= budget or len(micro) == 1
    counts = [[len(share) for share in step.sizes] for step in steps]
    assert all(count == [batches_a_step] * ranks for count in counts[:-1]), "only the last step may have fewer"


def test_the_oldest_is_always_in_the_next_batch() -> None:
    lengths = sst2_lengths(3000, np.random.default_rng(1))
    for how in ({}, {"strategy": "prefer_first"}, {"sequence_packing": True}):
        done: set[int] = set()
        for (micro,) in batches(list(pooled(lengths, pool_size=64, max_tokens_for_batch=200, **how))):
            assert min(set(range(len(lengths))) - done) in micro
            done |= set(micro)


def test_longer_than_the_budget_runs_alone_and_is_counted() -> None:
    lengths = [5, 40, 6, 60, 7]
    (steps,) = (batches(list(pooled(lengths, max_tokens_for_batch=30))),)
    assert [[1]] in steps
    assert [[3]] in steps
    assert Pool(max_tokens_for_batch=30).over_budget(np.array(lengths)) == 2
    assert Pool().over_budget(np.array(lengths)) == 0


def test_memory_is_never_outgrown() -> None:
    lengths = sst2_lengths(2000, np.random.default_rng(2))
    by_bytes = Cap(9000, lambda length: 10 * length + length**2)
    for cap in (probed(3, 66), by_bytes):
        for how in ({}, {"strategy": "prefer_first"}, {"sequence_packing": True}):
            steps = list(pooled(lengths, 2, max_tokens_for_batch=10**6, caps=(cap, probed(50, 66)), **how))
            assert sum(len(step.positions) for step in steps) == len(lengths)
            for micro in (micro for step in batches(steps) for micro in step):
                if how.get("sequence_packing"):
                    assert cap.weigh(lengths[micro]).sum() <= cap.room
                else:
                    assert len(micro) <= cap.limit(lengths[micro].max()[None])[0]
    with pytest.raises(InfeasibleError, match="one sample of 66 tokens alone needs more memory"):
        next(pooled([5, 66], caps=(Cap(65, lambda length: length),)))


@pytest.fixture(scope="module")
def sst2(data_dir: Path) -> np.ndarray:
    """Return the token lengths of the whole training split."""
    lines = (data_dir / "sst2" / "train.tsv").read_text(encoding="utf-8").splitlines()[1:]
    texts = [line.split("\t")[1] for line in lines]
    table = tokenise(load_tokenizer(str(data_dir / "bert-uncased")), texts, 128)
    return table.lengths(np.arange(len(table)))


def shuffled(lengths: np.ndarray, world_size: int, **values: Any) -> tuple[np.ndarray, list[Assignment], int]:
    """Return the lengths in order, the steps, and the budget."""
    policy = Pool(max_tokens_for_batch=round(32 * lengths.mean()), **values)
    order = np.random.default_rng(0).permutation(len(lengths))
    return lengths[order], list(policy.fill(Supply(lengths[order], world_size))), policy.max_tokens_for_batch


def test_padding_on_sst2(sst2: np.ndarray) -> None:
    """A pool of 256 at 8 ranks, with a budget of 32 times the mean, pads at most a tenth and loses nothing."""
    lengths, steps, _ = shuffled(sst2, 8, pool_size=256)
    sizes = [size for step in steps for share in step.sizes for size in share]
    longest = [lengths[micro].max() for step in batches(steps) for micro in step]
    efficiency = sst2.sum() / np.dot(sizes, longest)
    print(f"prefer_closest, pool of 256, 8 ranks: {efficiency:.4f} of the padded tokens are real")
    assert efficiency >= 0.90
    assert sum(sizes) == len(sst2)


@pytest.mark.parametrize("world_size", [1, 8])
def test_packed_rows_are_full_on_sst2(sst2: np.ndarray, world_size: int) -> None:
    lengths, steps, budget = shuffled(sst2, world_size, pool_size=256, sequence_packing=True)
    fill = np.array([lengths[micro].sum() for step in batches(steps) for micro in step]) / budget
    print(f"sequence_packing, pool of 256, {world_size} ranks: {fill.mean():.5f} of the budget, last row included")
    assert fill.mean() >= 0.999
