"""The shipped histogram is SST-2's, and draws follow it."""

import csv
from pathlib import Path

import numpy as np
import pytest

from ddpsched.data.embedded.length_histogram import sst2_histogram, sst2_lengths
from ddpsched.data.token_table import tokenise
from ddpsched.data.tokenizer import load_tokenizer


def test_the_histogram_has_the_known_statistics() -> None:
    lengths, counts = sst2_histogram()
    sample = np.repeat(lengths, counts)
    assert len(sample) == 67_349
    assert sample.mean() == pytest.approx(13.319, abs=1e-3)
    assert (sample.min(), np.median(sample), sample.max()) == (3, 10, 66)
    assert np.percentile(sample, [95, 99]).tolist() == [33, 44]
    assert np.all(np.diff(lengths) > 0)
    assert np.all(counts > 0)


@pytest.mark.slow
def test_the_histogram_is_counted_from_the_real_sentences(data_dir: Path) -> None:
    with (data_dir / "sst2" / "train.tsv").open(encoding="utf-8", newline="") as file:
        texts = [row[1] for row in csv.reader(file, delimiter="\t", quoting=csv.QUOTE_NONE)][1:]
    table = tokenise(load_tokenizer(str(data_dir / "bert-uncased")), texts, 512)
    counted = np.unique(table.lengths(np.arange(len(table))), return_counts=True)
    for shipped, expected in zip(sst2_histogram(), counted, strict=True):
        np.testing.assert_array_equal(shipped, expected)


def test_draws_follow_the_histogram() -> None:
    lengths, counts = sst2_histogram()
    n = 200_000
    drawn = sst2_lengths(n, np.random.default_rng(0))
    assert drawn.shape == (n,)
    assert drawn.dtype == np.int64
    share = counts / counts.sum()
    found = np.array([(drawn == length).mean() for length in lengths])
    # five standard errors of each share; what never occurs in SST-2 is never drawn
    assert np.all(np.abs(found - share) <= 5 * np.sqrt(share * (1 - share) / n))
    assert np.isin(drawn, lengths).all()


def test_draws_depend_on_the_generator_alone() -> None:
    first, again, other = (sst2_lengths(100, np.random.default_rng(seed)) for seed in (1, 1, 2))
    np.testing.assert_array_equal(first, again)
    assert (first != other).any()


def test_the_histogram_cannot_be_changed_by_a_caller() -> None:
    with pytest.raises(ValueError, match="read-only"):
        sst2_histogram()[1][0] = 0
