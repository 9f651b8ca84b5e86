"""Tokenizers by folder, file or hub name, ready to count every token."""

import json
from pathlib import Path

from tokenizers import BertWordPieceTokenizer, Tokenizer

from ddpsched.data.embedded.sentences import embedded_tokenizer
from ddpsched.data.hub import offline_unless_reachable
from ddpsched.errors import DataError


def load_tokenizer(name: str | None) -> Tokenizer:
    """Return a tokenizer with padding and truncation switched off, which some published ones have on.

    ``name`` is a folder with tokenizer.json or vocab.txt, one of these files, or a name on the hub; None is the
    embedded sentences' tokenizer. Raises DataError where there is none.
    """
    if name is None:
        return embedded_tokenizer()
    path = Path(name).expanduser()
    if path.exists():
        tokenizer = _from_path(path)
    elif name.startswith((".", "/", "~")) or name.count("/") > 1 or path.suffix in (".json", ".txt"):
        raise DataError(f"tokenizer {name}: no such file or folder; {_TOKENIZER_WAYS}")
    else:
        tokenizer = _from_hub(name)
    tokenizer.no_padding()
    tokenizer.no_truncation()
    return tokenizer


def pad_id(tokenizer: Tokenizer) -> int:
    """Return the id of ``[PAD]`` or ``<pad>``; 0 where the tokenizer has neither."""
    ids = (tokenizer.token_to_id(token) for token in ("[PAD]", "<pad>"))
    return next((id for id in ids if id is not None), 0)


_TOKENIZER_WAYS = (
    "give a folder that holds tokenizer.json or vocab.txt as data.tokenizer, "
    "or leave data.path, data.name and data.tokenizer out for the embedded sentences and their tokenizer"
)


def _from_path(path: Path) -> Tokenizer:
    file = path
    if path.is_dir():
        files = [path / name for name in ("tokenizer.json", "vocab.txt") if (path / name).exists()]
        if not files:
            raise DataError(f"tokenizer {path}: the folder has neither tokenizer.json nor vocab.txt; {_TOKENIZER_WAYS}")
        file = files[0]
    try:
        return _wordpiece(file) if file.suffix == ".txt" else Tokenizer.from_file(str(file))
    except Exception as error:  # the library raises a bare Exception for a bad file
        raise DataError(f"tokenizer {file}: cannot be read ({error}); {_TOKENIZER_WAYS}") from error


def _wordpiece(vocab: Path) -> Tokenizer:
    """Return BERT's tokenizer for a vocab.txt, with the letter options of the tokenizer_config.json beside it."""
    config_file = vocab.with_name("tokenizer_config.json")
    config = json.loads(config_file.read_text(encoding="utf-8")) if config_file.exists() else {}
    return BertWordPieceTokenizer(
        str(vocab),
        lowercase=config.get("do_lower_case", True),
        strip_accents=config.get("strip_accents"),
        handle_chinese_chars=config.get("tokenize_chinese_chars", True),
    )._tokenizer


def _from_hub(name: str) -> Tokenizer:
    from huggingface_hub import constants

    with offline_unless_reachable(constants):
        try:
            return Tokenizer.from_pretrained(name)
        except Exception as error:  # dozens of kinds: network, permissions, name, file
            raise DataError(
                f"tokenizer {name}: no such folder, nor on the hub or in its cache ({error}); {_TOKENIZER_WAYS}"
            ) from error
