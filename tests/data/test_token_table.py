"""Token tables: the tokenizer's ids, truncated as asked, the same from the cache and online."""

import os
import threading
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from tokenizers import Tokenizer, models

from ddpsched.data import tokenizer as module
from ddpsched.data.embedded.sentences import compose, embedded_tokenizer
from ddpsched.data.token_table import OnlineTokens, TokenTable, tokenise
from ddpsched.data.tokenizer import Encoded, Encoder, load_tokenizer
from ddpsched.errors import DataError

TEXTS = compose(300, seed=7)[0]
CLS, SEP = 2, 3


def rows(table: TokenTable | OnlineTokens) -> list[list[int]]:
    return [table.row(i).tolist() for i in range(len(table))]


def count_encodings(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Return a list that grows by the size of each later tokenising call."""
    calls: list[int] = []
    encode = Encoder.encode

    def counting(self: Encoder, texts: Sequence[str], prompts: Sequence[str] | None, rows: Sequence[int]) -> Encoded:
        calls.append(len(texts))
        return encode(self, texts, prompts, rows)

    monkeypatch.setattr(Encoder, "encode", counting)
    return calls


def test_rows_are_the_tokenizers_ids(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "CHUNK", 7)  # the last chunk is not full
    tokenizer = embedded_tokenizer()
    table = tokenise(tokenizer, TEXTS, 128, cache_dir=None)
    assert rows(table) == [tokenizer.encode(text).ids for text in TEXTS]
    assert table.row(5).dtype == np.int32
    assert table.row(5).flags.c_contiguous
    assert (len(table), table.num_truncated, table.max_length) == (300, 0, 128)


def test_lengths_have_the_shape_of_the_ids() -> None:
    table = tokenise(embedded_tokenizer(), TEXTS, 128, cache_dir=None)
    ids = np.array([[3, 0], [3, 299]])
    assert table.lengths(ids).tolist() == [[len(table.row(i)) for i in line] for line in ids.tolist()]
    assert table.lengths([]).shape == (0,)
    assert table.lengths(ids).dtype == np.int64


@pytest.mark.parametrize("online", [False, True])
@pytest.mark.parametrize("id", [-1, 300])
def test_an_id_that_does_not_exist_is_an_error(online: bool, id: int) -> None:
    tokenizer = embedded_tokenizer()
    table = OnlineTokens(tokenizer, TEXTS, 128) if online else tokenise(tokenizer, TEXTS, 128, cache_dir=None)
    with pytest.raises(IndexError, match="300 samples, 0 to 299"):
        table.row(id)
    with pytest.raises(IndexError, match="300 samples, 0 to 299"):
        table.lengths([0, id])


@pytest.mark.parametrize("online", [False, True])
def test_truncation_keeps_the_special_tokens_and_is_counted(online: bool) -> None:
    tokenizer = embedded_tokenizer()
    whole = tokenise(tokenizer, TEXTS, 128, cache_dir=None)
    cut: TokenTable | OnlineTokens
    cut = OnlineTokens(tokenizer, TEXTS, 10) if online else tokenise(tokenizer, TEXTS, 10, cache_dir=None)
    for full, short in zip(rows(whole), rows(cut), strict=True):
        assert short == (full if len(full) <= 10 else [*full[:9], SEP])
        assert short[0] == CLS
    longer = int((whole.lengths(np.arange(300)) > 10).sum())
    assert cut.num_truncated == longer > 50
    assert tokenizer.truncation is None, "the caller's tokenizer is left alone"


def test_max_length_needs_room_for_a_word() -> None:
    assert len(tokenise(embedded_tokenizer(), TEXTS, 3, cache_dir=None).row(0)) == 3
    with pytest.raises(DataError, match=r"max_length = 2: .* 2 special tokens .* at least 3"):
        tokenise(embedded_tokenizer(), TEXTS, 2, cache_dir=None)


def test_a_text_without_tokens_is_an_error() -> None:
    bare = Tokenizer(models.BPE({"a": 0}, []))  # drops unknown text and adds no special tokens
    with pytest.raises(DataError, match=r"1 texts have no tokens .*rows 2\)"):
        tokenise(bare, ["a", "xyz"], 8, cache_dir=None)


def test_no_texts_give_an_empty_table() -> None:
    assert len(tokenise(embedded_tokenizer(), [], 8, cache_dir=None)) == 0


def test_the_cache_is_used_and_gives_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    calls = count_encodings(monkeypatch)
    first = tokenise(embedded_tokenizer(), TEXTS, 10, tmp_path)
    again = tokenise(embedded_tokenizer(), TEXTS, 10, tmp_path)
    assert calls == [300]
    assert rows(first) == rows(again)
    assert first.num_truncated == again.num_truncated > 0
    assert (again.row(0).dtype, again.offsets.dtype, again.max_length) == (np.int32, np.int64, 10)


def test_any_other_input_misses_the_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    calls = count_encodings(monkeypatch)
    other = embedded_tokenizer()
    other.add_tokens(["xylophone"])
    for tokenizer, texts, max_length in (
        (embedded_tokenizer(), ["ab", "c"], 10),
        (embedded_tokenizer(), ["a", "bc"], 10),  # the same letters, divided elsewhere
        (embedded_tokenizer(), ["c", "ab"], 10),
        (embedded_tokenizer(), ["abc"], 10),
        (embedded_tokenizer(), ["ab", "c"], 11),
        (other, ["ab", "c"], 10),
    ):
        tokenise(tokenizer, texts, max_length, tmp_path)
    assert len(calls) == 6
    assert len(list(tmp_path.iterdir())) == 6, "one file each, and none left half-written"


@pytest.mark.parametrize("damage", ["cut", "flipped", "empty", "text", "other arrays"])
def test_a_damaged_cache_file_is_made_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, damage: str) -> None:
    expected = rows(tokenise(embedded_tokenizer(), TEXTS, 128, tmp_path))
    (file,) = tmp_path.iterdir()
    whole = file.read_bytes()
    middle = len(whole) // 2
    if damage == "other arrays":
        with file.open("wb") as out:
            np.savez(out, flat=np.zeros(3, np.int32), offsets=np.array([0, 3]), num_truncated=0)
    else:
        file.write_bytes(
            {
                "cut": whole[:middle],
                "flipped": whole[:middle] + bytes([whole[middle] ^ 1]) + whole[middle + 1 :],
                "empty": b"",
                "text": b"not an archive",
            }[damage]
        )
    calls = count_encodings(monkeypatch)
    assert rows(tokenise(embedded_tokenizer(), TEXTS, 128, tmp_path)) == expected
    tokenise(embedded_tokenizer(), TEXTS, 128, tmp_path)
    assert calls == [300], "made again once, then whole"


def test_a_pickle_in_the_cache_is_not_opened(tmp_path: Path) -> None:
    class Bomb:
        def __reduce__(self) -> tuple[object, tuple[str]]:
            return os.mkdir, (str(tmp_path / "exploded"),)

    tokenise(embedded_tokenizer(), TEXTS, 128, tmp_path)
    (file,) = tmp_path.iterdir()
    with file.open("wb") as out:
        np.savez(out, flat=np.array([Bomb()]), offsets=np.zeros(301, np.int64), num_truncated=0)
    tokenise(embedded_tokenizer(), TEXTS, 128, tmp_path)
    assert not (tmp_path / "exploded").exists()


def test_a_cache_that_cannot_be_written_costs_only_a_warning(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    with pytest.warns(UserWarning, match="DDPSCHED_CACHE"):
        table = tokenise(embedded_tokenizer(), TEXTS, 128, tmp_path / "file" / "cache")
    assert len(table) == 300


def test_the_default_cache_is_the_environments(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DDPSCHED_CACHE", str(tmp_path / "here"))
    tokenise(embedded_tokenizer(), TEXTS, 128)
    assert len(list((tmp_path / "here").iterdir())) == 1


def test_online_tokens_are_the_tables_and_only_what_was_asked_for() -> None:
    tokenizer = embedded_tokenizer()
    table, online = tokenise(tokenizer, TEXTS, 12, cache_dir=None), OnlineTokens(tokenizer, TEXTS, 12)
    assert (len(online), online.num_tokenised) == (300, 0)
    ids = np.array([[4, 9], [4, 200]])
    np.testing.assert_array_equal(online.lengths(ids), table.lengths(ids))
    assert online.num_tokenised == 3
    assert online.num_truncated == sum(len(tokenizer.encode(TEXTS[i]).ids) > 12 for i in (4, 9, 200))
    assert online.row(11).tolist() == table.row(11).tolist()
    online.lengths([4, 11])
    assert online.num_tokenised == 4
    assert rows(online) == rows(table)
    assert online.num_truncated == table.num_truncated


def test_rows_cannot_be_changed_by_a_caller() -> None:
    tokenizer = embedded_tokenizer()
    for table in (tokenise(tokenizer, TEXTS, 128, cache_dir=None), OnlineTokens(tokenizer, TEXTS, 128)):
        with pytest.raises(ValueError, match="read-only"):
            table.row(0)[0] = 1


PAIRED = [("the plot", "is superb"), ("a", "moving film about love and war"), ("a long list of words", "dull")]


def both_ways(max_length: int = 9) -> list[TokenTable | OnlineTokens]:
    """Return the same prompts and texts tokenised at once, and online."""
    prompts, texts = zip(*PAIRED, strict=True)
    return [
        tokenise(embedded_tokenizer(), texts, max_length, None, prompts),
        OnlineTokens(embedded_tokenizer(), texts, max_length, prompts),
    ]


def test_prompts_are_not_learnt() -> None:
    for table in both_ways():
        assert table.num_truncated == (0 if isinstance(table, OnlineTokens) else 1)
        for id, (prompt, _) in enumerate(PAIRED):
            masked = len(prompt.split()) + 2  # [CLS] prompt [SEP]
            row, labels = table.row(id), table.labels(id)
            assert labels.tolist() == [-100] * masked + row[masked:].tolist()
            assert labels.dtype == np.int32
            assert table.parts([id]).tolist() == [[masked, len(row) - masked]]
        ids = np.array([[2, 0], [1, 1]])
        counted = [[np.count_nonzero(table.labels(i)[1:] != -100) for i in line] for line in ids.tolist()]
        assert table.num_targets(ids).tolist() == counted
        assert table.num_targets(ids).dtype == table.parts([0, 2]).dtype == np.int64
        assert table.parts([0, 2, 1]).sum(axis=1).tolist() == table.lengths([0, 2, 1]).tolist()
        assert table.num_truncated == 1


def test_without_prompts_all_but_the_first_token_is_learnt() -> None:
    for table in (
        tokenise(embedded_tokenizer(), TEXTS, 128, cache_dir=None),
        OnlineTokens(embedded_tokenizer(), TEXTS, 128),
    ):
        assert table.labels(5).tolist() == table.row(5).tolist()
        assert table.num_targets([5, 7]).tolist() == (table.lengths([5, 7]) - 1).tolist()
        assert table.parts([5]).tolist() == [[0, len(table.row(5))]]
        assert table.parts([]).shape == (0, 2)


def test_the_cache_knows_prompts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    calls = count_encodings(monkeypatch)
    found = []
    for prompts, texts, least in (
        (None, ["a film", "war"], 1),
        (None, ["a film", "war"], 2),
        (["a", "film"], ["a film", "war"], 2),
        (["film", "a"], ["a film", "war"], 2),
        (["a film", "war"], ["a", "film"], 2),
        (["a fil", "mfilm"], ["a film", "war"], 2),
    ):
        first = tokenise(embedded_tokenizer(), texts, 10, tmp_path, prompts, least=least)
        again = tokenise(embedded_tokenizer(), texts, 10, tmp_path, prompts, least=least)
        assert rows(first) == rows(again)
        assert first.prompts.tolist() == again.prompts.tolist()
        assert (again.prompts.dtype, len(again.prompts)) == (np.int64, 2)
        found.append((rows(first), first.prompts.tolist()))
    assert calls == [2] * 6, "each of them once"
    assert found[0] == found[1]
    assert len({str(each) for each in found}) == 5


def test_rows_are_named_as_the_source_numbers_them() -> None:
    bare = Tokenizer(models.BPE({"a": 0}, []))
    with pytest.raises(DataError, match=r"\(rows 9\)"):
        tokenise(bare, ["a", "xyz"], 8, None, rows=[4, 9])
    with pytest.raises(DataError, match=r"\(rows 9\)"):
        OnlineTokens(bare, ["a", "xyz"], 8, rows=[4, 9]).row(1)


def test_two_threads_may_share_online_tokens() -> None:
    texts = compose(3000, seed=1)[0]
    table, online = (
        tokenise(embedded_tokenizer(), texts, 12, cache_dir=None),
        OnlineTokens(embedded_tokenizer(), texts, 12),
    )
    found: dict[str, list[int]] = {}

    def plan() -> None:
        found["lengths"] = [n for i in range(0, 3000, 20) for n in online.lengths(np.arange(i, i + 20)).tolist()]

    def train() -> None:
        found["rows"] = [len(online.row(i)) for i in range(3000)]

    threads = [threading.Thread(target=work) for work in (plan, train)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found["lengths"] == found["rows"] == table.lengths(np.arange(3000)).tolist()
    assert (online.num_tokenised, online.num_truncated) == (3000, table.num_truncated)


def test_a_published_tokenizers_padding_and_truncation_are_switched_off(tmp_path: Path) -> None:
    published = embedded_tokenizer()
    published.enable_padding(length=16)
    published.enable_truncation(5)
    published.save(str(tmp_path / "tokenizer.json"))
    for given in (tmp_path, tmp_path / "tokenizer.json"):
        tokenizer = load_tokenizer(str(given))
        assert tokenizer.encode("a superb film").tokens == ["[CLS]", "a", "superb", "film", "[SEP]"]
        assert len(tokenizer.encode("a superb film about love and war").ids) == 9
    assert rows(tokenise(published, TEXTS, 128, cache_dir=None)) == rows(
        tokenise(embedded_tokenizer(), TEXTS, 128, cache_dir=None)
    ), "nor do they matter when such a tokenizer is given directly"
