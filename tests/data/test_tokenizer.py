"""Tokenizers by folder, file and name, and those that cannot be loaded."""

import json
from pathlib import Path

import pytest
from tokenizers import Tokenizer, models

from ddpsched.data.embedded.sentences import embedded_tokenizer
from ddpsched.data.tokenizer import load_tokenizer, pad_id
from ddpsched.errors import DataError


@pytest.mark.parametrize(("lower", "token"), [(True, "film"), (False, "Film")])
def test_a_vocabulary_folder_and_its_config(tmp_path: Path, lower: bool, token: str) -> None:
    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "film", "Film", "##s"]
    (tmp_path / "vocab.txt").write_text("\n".join(words) + "\n")
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"do_lower_case": lower}))
    for given in (tmp_path, tmp_path / "vocab.txt"):
        assert load_tokenizer(str(given)).encode("Films x").tokens == ["[CLS]", token, "##s", "[UNK]", "[SEP]"]


def test_the_real_vocabulary_folder(data_dir: Path) -> None:
    tokenizer = load_tokenizer(str(data_dir / "bert-uncased"))
    assert tokenizer.get_vocab_size() == 30_522
    assert tokenizer.encode("Unaffable Crème brûlée!").tokens == [
        *("[CLS]", "una", "##ffa", "##ble", "cr", "##eme", "br", "##ule", "##e", "!", "[SEP]")
    ]


def test_none_is_the_embedded_tokenizer() -> None:
    assert load_tokenizer(None).to_str() == embedded_tokenizer().to_str()


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("./none", "no such file or folder"),
        ("some/deep/folder", "no such file or folder"),
        ("vocab.txt", "no such file or folder"),
        ("EMPTY", "neither tokenizer.json nor vocab.txt"),
        ("EMPTY/../broken.json", "cannot be read"),
        ("EMPTY/../broken.txt", "cannot be read"),
        ("distilbert-base-uncased", "nor on the hub or in its cache"),
    ],
)
def test_a_tokenizer_that_is_not_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, expected: str
) -> None:
    monkeypatch.setattr("ddpsched.data.hub._reachable", lambda: False)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "hub"))
    (tmp_path / "EMPTY").mkdir()
    (tmp_path / "broken.json").write_text("{")
    (tmp_path / "broken.txt").write_text("a\nb\n")
    with pytest.raises(DataError, match=expected) as caught:
        load_tokenizer(name.replace("EMPTY", str(tmp_path / "EMPTY")))
    assert "data.tokenizer" in str(caught.value), "it says what to do"


def test_pad_id_is_the_pad_tokens() -> None:
    assert pad_id(embedded_tokenizer()) == 0
    assert pad_id(Tokenizer(models.WordLevel({"a": 0, "<pad>": 1}))) == 1
    assert pad_id(Tokenizer(models.WordLevel({"a": 0, "<pad>": 1, "[PAD]": 2}))) == 2
    assert pad_id(Tokenizer(models.WordLevel({"a": 0}))) == 0
