"""The default data: short film reviews that the program composes itself, without network or files.

Their token lengths follow SST-2's distribution, as planning is about uneven lengths, and their labels can be learnt
from the words. ``words.json`` holds what they are composed of:

``neutral``, ``sentiment``  lists of words by slot; ``sentiment[label]`` fills the slots that carry the label;
``openings``                the first words of a sentence: each carries the label, a few of them by negation;
``continuations``           what may follow, as often as there is room: neutral, or of the label.

An opening or a continuation is a template: a run of words, of which one in capitals is a slot that takes any word of
its list. Every word and every punctuation mark is one token, so a template has the same number of tokens whatever fills
its slots.
"""

import json
import random
from functools import cache
from importlib.resources import files

import numpy as np
import numpy.typing as npt
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.normalizers import Lowercase
from tokenizers.pre_tokenizers import BertPreTokenizer
from tokenizers.processors import TemplateProcessing

from ddpsched.data.embedded.length_histogram import sst2_lengths

POSITIVE_SHARE = 0.55
SPECIAL_TOKENS = ("[PAD]", "[UNK]", "[CLS]", "[SEP]")
WORDS = json.loads(files("ddpsched.data.embedded").joinpath("words.json").read_text(encoding="utf-8"))
OPENINGS, CONTINUATIONS = tuple(WORDS["openings"]), tuple(WORDS["continuations"])
# SLOTS[label]: the words for each slot in a sentence of this label; OTHER is an ADJ of the opposite one
SLOTS = [
    {slot: words.split() for slot, words in {**WORDS["neutral"], **same, "OTHER": opposite["ADJ"]}.items()}
    for same, opposite in (WORDS["sentiment"], WORDS["sentiment"][::-1])
]
# every word that a sentence can hold
VOCABULARY = sorted(
    {"an", "."}
    | {word for template in OPENINGS + CONTINUATIONS for word in template.split() if not word.isupper()}
    | {word for slots in SLOTS for words in slots.values() for word in words}
)


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
    draw, pairs = random.Random(seed), zip(lengths.tolist(), labels.tolist(), strict=True)
    return [_sentence(length - 2, SLOTS[label], draw) for length, label in pairs], labels


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
    return [words for words in map(tuple, map(str.split, templates)) if len(words) <= room]


def embedded_tokenizer() -> Tokenizer:
    """Return a word-level, lower-case tokenizer over ``VOCABULARY``: ``[CLS] words [SEP]``; ``[PAD]`` is 0.

    >>> embedded_tokenizer().encode("A superb film.").tokens
    ['[CLS]', 'a', 'superb', 'film', '.', '[SEP]']
    """
    ids = {token: index for index, token in enumerate([*SPECIAL_TOKENS, *VOCABULARY])}
    tokenizer = Tokenizer(WordLevel(ids, unk_token="[UNK]"))
    tokenizer.add_special_tokens(list(SPECIAL_TOKENS))
    tokenizer.normalizer, tokenizer.pre_tokenizer = Lowercase(), BertPreTokenizer()
    tokenizer.post_processor = TemplateProcessing(
        single="[CLS] $A [SEP]",
        pair="[CLS] $A [SEP] $B:1 [SEP]:1",
        special_tokens=[(token, ids[token]) for token in ("[CLS]", "[SEP]")],
    )
    return tokenizer
