"""The default data: short film reviews that the program composes itself, without network or files.

Their token lengths follow SST-2's distribution, as planning is about uneven lengths, and their labels can be learnt
from the words.
"""

import random
from functools import cache

import numpy as np
import numpy.typing as npt

from ddpsched.data.embedded.length_histogram import sst2_lengths
from ddpsched.data.embedded.vocabulary import CONTINUATIONS, OPENINGS, embedded_tokenizer, slots

__all__ = ["compose", "embedded_tokenizer"]

POSITIVE_SHARE = 0.55


def compose(size: int, seed: int) -> tuple[list[str], npt.NDArray[np.int64]]:
    """Return ``size`` sentences and their labels, int64 ``(size,)``: 1 for praise, 0 for the opposite.

    A sentence's number of tokens under ``embedded_tokenizer``, [CLS] and [SEP] included, is drawn from
    ``sst2_lengths``. The same seed gives the same data.

    >>> texts, labels = compose(3, seed=0)
    >>> [len(text.split()) + 2 for text in texts] == sst2_lengths(3, np.random.default_rng(0)).tolist()
    True
    """
    rng = np.random.default_rng(seed)
    lengths = sst2_lengths(size, rng)
    labels = (rng.random(size) < POSITIVE_SHARE).astype(np.int64)
    # scalar draws, some 20 a sentence: much cheaper from the standard library than from numpy
    draw = random.Random(seed)
    fillings = [slots(label) for label in (0, 1)]
    texts = [
        _sentence(length - 2, fillings[label], draw)
        for length, label in zip(lengths.tolist(), labels.tolist(), strict=True)
    ]
    return texts, labels


def _sentence(num_words: int, filling: dict[str, list[str]], draw: random.Random) -> str:
    """Return exactly ``num_words`` words and punctuation marks, separated by spaces."""
    template = draw.choice(_fitting(OPENINGS, num_words))
    while len(template) + 1 < num_words:
        template = template + draw.choice(_fitting(CONTINUATIONS, num_words - len(template)))
    if len(template) < num_words:
        template = (*template, ".")
    words = [draw.choice(filling[word]) if word in filling else word for word in template]
    for i in range(len(words) - 1):
        if words[i] == "a" and words[i + 1][0] in "aeiou":
            words[i] = "an"
    return " ".join(words)


@cache
def _fitting(templates: tuple[str, ...], room: int) -> list[tuple[str, ...]]:
    """Return the templates of at most ``room`` words, split."""
    split = [tuple(template.split()) for template in templates]
    return [template for template in split if len(template) <= room]
