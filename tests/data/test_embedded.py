"""The embedded sentences have SST-2's lengths, known words, and labels that the words give away."""

from collections import Counter

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from ddpsched.data.embedded.length_histogram import sst2_lengths
from ddpsched.data.embedded.sentences import (
    CONTINUATIONS,
    OPENINGS,
    SLOTS,
    SPECIAL_TOKENS,
    compose,
    embedded_tokenizer,
)


@settings(deadline=None, max_examples=20)
@given(seed=st.integers(0, 2**32 - 1), size=st.integers(1, 300))
def test_token_lengths_are_the_drawn_ones_and_no_word_is_unknown(seed: int, size: int) -> None:
    texts, labels = compose(size, seed)
    encodings = embedded_tokenizer().encode_batch(texts)
    assert [len(e.ids) for e in encodings] == sst2_lengths(size, np.random.default_rng(seed)).tolist()
    assert not any("[UNK]" in e.tokens for e in encodings)
    assert labels.shape == (size,)
    assert set(labels.tolist()) <= {0, 1}


def test_the_same_seed_gives_the_same_data_and_another_seed_other_data() -> None:
    (texts, labels), (again, same_labels), (other, _) = compose(200, 5), compose(200, 5), compose(200, 6)
    assert texts == again
    np.testing.assert_array_equal(labels, same_labels)
    assert texts != other


def test_the_majority_class_has_about_55_percent() -> None:
    _, labels = compose(20_000, 0)
    assert abs(labels.mean() - 0.55) < 0.02


def test_counting_words_gives_most_labels_away() -> None:
    """Naive Bayes over words, fitted on one draw, beats the majority on another by a margin."""
    (train, train_labels), (dev, dev_labels) = compose(4096, 0), compose(1000, 1)
    counts = [
        Counter(word for text, y in zip(train, train_labels, strict=True) if y == label for word in text.split())
        for label in (0, 1)
    ]
    words = sorted(set(counts[0]) | set(counts[1]))
    weight = {w: np.log((counts[1][w] + 1) / (counts[0][w] + 1)) for w in words}
    guess = np.array([sum(weight.get(w, 0.0) for w in text.split()) > 0 for text in dev])
    assert (guess == dev_labels).mean() > 0.88  # the rest is negation
    assert (guess[::-1] == dev_labels).mean() < 0.6, "against shuffled labels it must fail"


def test_every_sentence_opens_with_a_word_of_its_label() -> None:
    for template in OPENINGS:
        assert set(template.split()) & {"ADJ", "THING", "VERB", "WELL", "OTHER"}, template
    assert not set(SLOTS[0]["ADJ"]) & set(SLOTS[1]["ADJ"])
    assert (SLOTS[0]["OTHER"], SLOTS[1]["OTHER"]) == (SLOTS[1]["ADJ"], SLOTS[0]["ADJ"])


def test_any_number_of_words_can_be_composed() -> None:
    assert min(len(template.split()) for template in OPENINGS) == 1
    assert {len(template.split()) for template in CONTINUATIONS} >= {2, 3}


def test_every_slot_of_a_template_has_a_word_list() -> None:
    used = {word for template in OPENINGS + CONTINUATIONS for word in template.split() if word.isupper()}
    assert used == set(SLOTS[0]) == set(SLOTS[1])


def test_the_tokenizer_knows_special_tokens_case_and_punctuation() -> None:
    tokenizer = embedded_tokenizer()
    assert [tokenizer.token_to_id(token) for token in SPECIAL_TOKENS] == [0, 1, 2, 3]
    assert tokenizer.encode("A SUPERB film, xylophone!").tokens == [
        *("[CLS]", "a", "superb", "film", ",", "[UNK]", "[UNK]", "[SEP]")
    ]
