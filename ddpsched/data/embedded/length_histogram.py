"""The distribution of lengths of the embedded data: that of the sentences of SST-2.

The package ships counts, not text: the number of the 67,349 training sentences
that have each number of tokens under BERT's uncased vocabulary, [CLS] and [SEP]
included (mean 13.3, median 10, 95th percentile 33, longest 66).
"""

import json
from functools import cache
from importlib.resources import files

import numpy as np
import numpy.typing as npt


@cache
def sst2_histogram() -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """Return ``(lengths, counts)``: rising token lengths, and the number of sentences of each; read-only.

    >>> lengths, counts = sst2_histogram()
    >>> int(counts.sum()), round(float(lengths @ counts / counts.sum()), 1)
    (67349, 13.3)
    """
    table = json.loads(files("ddpsched.data.embedded").joinpath("sst2_lengths.json").read_text(encoding="utf-8"))
    lengths, counts = (np.array(table[key], dtype=np.int64) for key in ("lengths", "counts"))
    for array in (lengths, counts):
        array.setflags(write=False)  # one cached value, many callers
    return lengths, counts


def sst2_lengths(n: int, rng: np.random.Generator) -> npt.NDArray[np.int64]:
    """Return ``n`` token lengths, int64 ``(n,)``, drawn independently from SST-2's histogram."""
    lengths, counts = sst2_histogram()
    return rng.choice(lengths, size=n, p=counts / counts.sum())
