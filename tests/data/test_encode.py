"""Prompts and texts are encoded as the tokenizer encodes the pair, truncated as it truncates the text."""

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from tokenizers import Tokenizer, models

from ddpsched.data import tokenizer as module
from ddpsched.data.embedded.sentences import VOCABULARY, embedded_tokenizer
from ddpsched.data.tokenizer import Encoded, Encoder
from ddpsched.errors import DataError

TOKENIZER = embedded_tokenizer()
SEP = 3
sentences = st.lists(st.sampled_from(VOCABULARY), min_size=1, max_size=12).map(" ".join)
pairs = st.lists(st.tuples(sentences, sentences), min_size=1, max_size=8)


def encoded(given_: list[tuple[str, str]], max_length: int, tokenizer: Tokenizer = TOKENIZER) -> Encoded:
    prompts, texts = zip(*given_, strict=True)
    return Encoder(tokenizer, max_length, paired=True, least=2).encode(texts, prompts, range(1, len(texts) + 1))


def rows_of(found: Encoded) -> list[list[int]]:
    return [row.tolist() for row in np.split(found.flat, np.cumsum(found.lengths)[:-1])]


@given(pairs)
def test_pairs_are_the_tokenizers(given_: list[tuple[str, str]]) -> None:
    found = encoded(given_, 64)
    assert rows_of(found) == [TOKENIZER.encode(*pair).ids for pair in given_]
    # [CLS] prompt [SEP]
    assert found.prompts.tolist() == [len(prompt.split()) + 2 for prompt, _ in given_]
    assert found.num_truncated == 0


@given(pairs, st.integers(5, 30))
def test_cut_pairs_are_the_tokenizers(given_: list[tuple[str, str]], max_length: int) -> None:
    """Pairs are cut as the library cuts the second of a pair, where it can."""
    assume(all(len(prompt.split()) + 4 <= max_length for prompt, _ in given_))
    cutting = Tokenizer.from_str(TOKENIZER.to_str())
    cutting.enable_truncation(max_length, strategy="only_second")
    found = encoded(given_, max_length)
    assert rows_of(found) == [cutting.encode(*pair).ids for pair in given_]
    assert found.num_truncated == sum(len(TOKENIZER.encode(*pair).ids) > max_length for pair in given_)
    assert all(row[-1] == SEP for row in rows_of(found))


def test_chunks_are_no_matter(monkeypatch: pytest.MonkeyPatch) -> None:
    given_ = [("a film", "superb"), ("the plot", "is dull ."), ("war", "a a a")]
    whole = encoded(given_, 8)
    monkeypatch.setattr(module, "CHUNK", 2)
    parts = encoded(given_, 8)
    np.testing.assert_array_equal(whole.flat, parts.flat)
    np.testing.assert_array_equal(whole.prompts, parts.prompts)


def test_a_tokenizer_without_special_tokens() -> None:
    bare = Tokenizer(models.WordLevel({"a": 0, "b": 1}, unk_token="b"))
    assert rows_of(encoded([("a", "b")], 2, bare)) == [[0, 1]]
    assert encoded([("a", "b")], 2, bare).prompts.tolist() == [1]


def test_a_prompt_that_leaves_no_room_is_refused_with_its_rows() -> None:
    long = " ".join(["film"] * 9)
    given_ = [("a", "b"), (long, "good"), ("a", long), (long, "bad")]
    why = r"2 texts have no token within data.max_length = 12 after their prompts \(rows 2, 4\), of which the longest"
    with pytest.raises(DataError, match=why + r" takes 11 tokens; raise data.max_length, or remove the rows"):
        encoded(given_, 12)
    assert encoded(given_, 13).lengths.tolist() == [5, 13, 13, 13], "one token of the text is enough"


def test_a_text_without_a_token_is_refused() -> None:
    bare = Tokenizer(models.BPE({"a": 0}, []))  # drops what it does not know
    with pytest.raises(DataError, match=r"1 texts have no token .* \(rows 2\)"):
        encoded([("a", "a"), ("a", "xyz")], 8, bare)
    with pytest.raises(DataError, match=r"1 texts have no second token to learn .* \(rows 2\)"):
        Encoder(bare, 8, least=2).encode(["aa", "a"], None, [1, 2])
    assert Encoder(bare, 8).encode(["aa", "a"], None, [1, 2]).lengths.tolist() == [2, 1]


def test_room_for_a_pair() -> None:
    with pytest.raises(
        DataError, match=r"max_length = 4: .* 3 special tokens to every prompt and text; give at least 5"
    ):
        Encoder(TOKENIZER, 4, paired=True)
    assert encoded([("a", "film about war")], 5).lengths.tolist() == [5]
