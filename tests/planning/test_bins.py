"""The policy bins: ranges and batch sizes, each sample once, and the recipe with replacement."""

from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ddpsched.config import parse
from ddpsched.costs.memory_cap import Cap, probed
from ddpsched.data.embedded.length_histogram import sst2_lengths
from ddpsched.data.token_table import tokenise
from ddpsched.data.tokenizer import load_tokenizer
from ddpsched.errors import ConfigError, InfeasibleError
from ddpsched.planning.assignment import Assignment
from ddpsched.planning.policies.bins import Bins, default_bins
from ddpsched.planning.policies.filling import Supply


def filled(lengths: Any, world_size: int = 1, seed: int = 0, caps: Any = None, **values: Any) -> list[Assignment]:
    given = np.array(lengths, dtype=np.int64)
    return list(Bins(**values).fill(Supply(given, world_size, (seed, 0), caps=caps)))


def batches(step: Assignment) -> list[list[int]]:
    """Return the positions of every micro-batch, rank by rank."""
    positions = iter(step.positions.tolist())
    return [list(islice(positions, size)) for share in step.sizes for size in share]


def test_the_sources_defaults() -> None:
    """A longest of 1,024 and a median batch of 64.

    The third size is an error of the recipe, kept with replacement only.
    """
    recipe = Bins()
    assert default_bins(1024, recipe.median_batch, replacement=True) == [
        (1, 256, 128), (257, 512, 64), (513, 768, 96), (769, 1024, 32),
    ]  # fmt: skip
    assert default_bins(1024, recipe.median_batch, replacement=False)[2] == (513, 768, 48)
    assert default_bins(2, 64, replacement=False) == [(1, 1, 64), (2, 2, 32)]


@given(
    st.lists(st.integers(1, 40), min_size=1, max_size=120),
    st.integers(1, 4),
    st.integers(1, 2),
    st.integers(1, 6),
    st.booleans(),
    st.integers(0, 3),
)
def test_once_an_epoch_one_bin_a_batch(
    lengths: list[int], ranks: int, accumulation: int, median: int, per_rank: bool, seed: int
) -> None:
    values = {"median_batch": median, "per_rank_bins": per_rank, "batches_per_optimizer_step": accumulation}
    steps = filled(lengths, ranks, seed, **values)
    assert sorted(p for step in steps for p in step.positions.tolist()) == list(range(len(lengths)))
    spans = default_bins(max(lengths), median, replacement=False)
    for step in steps:
        drawn = []
        for micro in batches(step):
            ((low, high, size),) = [s for s in spans if s[0] <= lengths[micro[0]] <= s[1]]
            assert all(low <= lengths[p] <= high for p in micro)
            assert len(micro) <= size
            drawn.append(low)
        if not per_rank:
            assert len(set(drawn)) == 1, "all ranks draw the same bin"


def test_every_rank_draws_its_own_bin_where_asked() -> None:
    lengths = sst2_lengths(4000, np.random.default_rng(0))
    for per_rank in (False, True):
        steps = filled(lengths, 4, median_batch=8, per_rank_bins=per_rank)
        mixed = [
            len({-(-4 * int(lengths[micro].max()) // int(lengths.max())) for micro in batches(step)}) for step in steps
        ]
        assert (max(mixed) > 1) == per_rank


def test_bins_come_in_proportion_all_through_the_epoch() -> None:
    """No bin is used up long before the others, although batches have different sizes."""
    lengths = np.repeat([10, 20, 30, 40], [4000, 2000, 1000, 1000])
    steps = filled(lengths, 1, median_batch=8)
    longest = np.array([lengths[batches(step)[0]].max() for step in steps])
    for length in (10, 20, 30, 40):
        halves = [(half == length).mean() for half in np.array_split(longest, 2)]
        assert halves[0] == pytest.approx(halves[1], rel=0.25)


def test_replacement_repeats_and_leaves_out_as_the_recipe_does() -> None:
    lengths = sst2_lengths(20_000, np.random.default_rng(0))
    for values in ({}, {"per_rank_bins": True}, {"batches_per_optimizer_step": 2}):
        steps = filled(lengths, 2, median_batch=32, replacement=True, **values)
        for step in steps:
            assert len(set(step.positions.tolist())) == len(step.positions), "no sample twice in a step"
        drawn = np.concatenate([step.positions for step in steps])
        dropped = 1 - len(np.unique(drawn)) / len(lengths)
        assert 0.02 < dropped < 0.4
        assert len(drawn) >= len(lengths)


def test_bins_are_drawn_by_the_seed() -> None:
    lengths = sst2_lengths(2000, np.random.default_rng(0))
    for replacement in (False, True):
        drawn = [
            [step.positions.tolist() for step in filled(lengths, 2, seed=seed, replacement=replacement)]
            for seed in (0, 0, 1)
        ]
        assert drawn[0] == drawn[1] != drawn[2]


def test_edges_of_ones_own() -> None:
    steps = filled([1, 5, 6, 9, 12], 1, bins=[[1, 5, 2], [6, 12, 1]])
    assert sorted(map(sorted, (micro for step in steps for micro in batches(step)))) == [[0, 1], [2], [3], [4]]


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ([[1, 5, 2], [7, 12, 1]], "a gap: lengths 6 to 6 have no bin"),
        ([[1, 5, 2], [5, 12, 1]], "an overlap"),
        ([[5, 1, 2]], "from long to short"),
        ([[1, 5]], "at least 3 items"),
        ([[1, 5, 0]], "greater than 0"),
    ],
)
def test_bins_that_leave_a_gap(given: Any, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        parse({"epochs": 1, "policy": {"kind": "bins", "bins": given}})


def test_lengths_without_a_bin() -> None:
    with pytest.raises(ConfigError, match=r"reach from 2 to 12 tokens, but samples from 1 to 13: 2 of 3 have no bin"):
        filled([1, 5, 13], bins=[[2, 5, 2], [6, 12, 1]])


def test_memory_is_never_outgrown() -> None:
    lengths = sst2_lengths(2000, np.random.default_rng(0))
    steps = filled(lengths, 2, caps=(probed(9, 66), probed(20, 66)))
    assert max(size for step in steps for share in step.sizes for size in share) == 9
    with pytest.raises(InfeasibleError, match="one sample of 66 tokens alone"):
        filled([5, 66], caps=(Cap(65, lambda length: length),))


def test_padding_on_sst2(data_dir: Path) -> None:
    """Four default bins and median batch 32: at least 0.6 of the padded tokens are real."""
    lines = (data_dir / "sst2" / "train.tsv").read_text(encoding="utf-8").splitlines()[1:]
    table = tokenise(load_tokenizer(str(data_dir / "bert-uncased")), [line.split("\t")[1] for line in lines], 128)
    lengths = table.lengths(np.arange(len(table)))
    for ranks in (1, 8):
        steps = filled(lengths, ranks, median_batch=32)
        sizes = [size for step in steps for share in step.sizes for size in share]
        efficiency = lengths.sum() / np.dot(sizes, [lengths[micro].max() for step in steps for micro in batches(step)])
        print(f"four bins, median batch 32, {ranks} ranks: {efficiency:.4f} of the padded tokens are real")
        assert efficiency >= 0.60
