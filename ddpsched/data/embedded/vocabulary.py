"""The words of the embedded sentences, and a tokenizer with exactly these.

A template is a run of words; one in capitals is a slot that takes any word of
its list. Every word and every punctuation mark is one token, so a template has
the same number of tokens whatever fills its slots.
"""

from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.normalizers import Lowercase
from tokenizers.pre_tokenizers import BertPreTokenizer
from tokenizers.processors import TemplateProcessing

SPECIAL_TOKENS = ("[PAD]", "[UNK]", "[CLS]", "[SEP]")

NEUTRAL = {
    "FILM": "film movie drama comedy thriller feature picture debut sequel remake western musical",
    "PART": "story script plot music ending camera dialogue acting pace humour opening editing cast score",
    "PERSON": "director writer actor producer singer teacher soldier doctor mother father sister neighbour",
    "TOPIC": "love war family grief money school marriage crime memory music work friendship revenge faith",
    "PLACE": "city village house desert hotel theatre school forest harbour kitchen hospital train",
    "KIND": "young french quiet small old famous local modern early new american late",
    "DEGREE": "very truly quite really rather deeply often so simply mostly",
    "DOES": "leaves meets follows visits remembers finds watches calls loses joins",
}

# SENTIMENT[label] fills the slots that carry the label
SENTIMENT = (
    {
        "ADJ": "dull tedious awful clumsy shallow bland stale lifeless tiresome pointless silly messy "
        "forgettable annoying lazy ugly",
        "THING": "mess bore failure disaster waste letdown mistake dud",
        "VERB": "bores annoys disappoints irritates fails tires confuses stumbles drags collapses",
        "WELL": "badly poorly carelessly clumsily weakly",
    },
    {
        "ADJ": "superb moving funny charming brilliant fresh touching clever warm gripping lovely witty "
        "elegant memorable delightful wise",
        "THING": "gem triumph delight treat masterpiece pleasure success winner",
        "VERB": "delights charms moves thrills amuses shines works surprises soars sparkles",
        "WELL": "beautifully finely gracefully expertly wonderfully",
    },
)

# The first words of a sentence: each carries the label, a few of them by negation.
OPENINGS = (
    "ADJ",
    "DEGREE ADJ",
    "ADJ FILM",
    "WELL made",
    "a ADJ FILM",
    "ADJ and ADJ",
    "the PART VERB",
    "a real THING",
    "the PART is ADJ",
    "this FILM is ADJ",
    "a DEGREE ADJ FILM",
    "the FILM DEGREE VERB",
    "the PART is not OTHER",
    "the PERSON made a THING",
    "this FILM is a THING",
    "the PART is WELL done",
    "a ADJ and DEGREE ADJ FILM",
    "the PART of this FILM VERB",
)

# What may follow, as often as there is room: neutral, or of the label.
CONTINUATIONS = (
    "for once",
    "after all",
    "on screen",
    ", ADJ",
    "about the TOPIC",
    "by its PERSON",
    "in the PLACE",
    ", and ADJ",
    "about TOPIC and TOPIC",
    "from a KIND PERSON",
    "with a ADJ PART",
    "set in a KIND PLACE",
    "and the PART is ADJ",
    "while a PERSON DOES the PERSON",
    "where the PERSON DOES a PLACE",
    ", not at all OTHER",
    "in which a PERSON and a PERSON talk",
    ", as the PERSON DOES the KIND PERSON",
    ", and the PART of the FILM VERB",
)


def slots(label: int) -> dict[str, list[str]]:
    """Return the words for each slot in a sentence of this label; OTHER is an ADJ of the opposite one."""
    lists = {**NEUTRAL, **SENTIMENT[label], "OTHER": SENTIMENT[1 - label]["ADJ"]}
    return {slot: words.split() for slot, words in lists.items()}


def vocabulary() -> list[str]:
    """Return every word that a sentence can hold, sorted."""
    words = {"an", "."}
    words.update(word for template in OPENINGS + CONTINUATIONS for word in template.split() if not word.isupper())
    words.update(word for label in (0, 1) for choices in slots(label).values() for word in choices)
    return sorted(words)


def embedded_tokenizer() -> Tokenizer:
    """Return a word-level, lower-case tokenizer over ``vocabulary()``: ``[CLS] words [SEP]``; ``[PAD]`` is 0.

    >>> embedded_tokenizer().encode("A superb film.").tokens
    ['[CLS]', 'a', 'superb', 'film', '.', '[SEP]']
    """
    ids = {token: index for index, token in enumerate([*SPECIAL_TOKENS, *vocabulary()])}
    tokenizer = Tokenizer(WordLevel(ids, unk_token="[UNK]"))
    tokenizer.add_special_tokens(list(SPECIAL_TOKENS))
    tokenizer.normalizer = Lowercase()
    tokenizer.pre_tokenizer = BertPreTokenizer()
    tokenizer.post_processor = TemplateProcessing(
        single="[CLS] $A [SEP]",
        pair="[CLS] $A [SEP] $B:1 [SEP]:1",
        special_tokens=[("[CLS]", ids["[CLS]"]), ("[SEP]", ids["[SEP]"])],
    )
    return tokenizer
