"""Tokenizers by folder, file or hub name, and the encoding of texts, or prompts and texts, as token ids."""

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from tokenizers import BertWordPieceTokenizer, Encoding, Tokenizer

from ddpsched.data.embedded.sentences import embedded_tokenizer
from ddpsched.data.hub import offline_unless_reachable
from ddpsched.decode import decode_json
from ddpsched.errors import DataError
from ddpsched.regular_file import check_regular

# One thread: ranks share the machine's cores, online lengths are computed during a training step, and the library
# warns (or may hang) when a process forks after it started threads.
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")

CHUNK = 4096  # texts encoded at a time; an Encoding takes some 50 times the memory of its ids

Ids = npt.NDArray[np.int64]
Row = npt.NDArray[np.int32]
TEXT = 1  # a pair's second sequence, as Encoding.sequence_ids numbers them


@dataclass(frozen=True, eq=False)
class Encoded:
    """N samples one after another, of which ``num_truncated`` were cut.

    ``flat``: int32 (total,); ``lengths``: int64 (N,); ``prompts``: int64 (N,), the tokens before each text's first.
    """

    flat: Row
    lengths: Ids
    prompts: Ids
    num_truncated: int


class Encoder:
    """A tokenizer that cuts from the right to ``max_length`` tokens and keeps the special tokens.

    ``paired``: each text follows a prompt, which is never cut: ``[CLS] prompt [SEP] text [SEP]`` with BERT's tokenizer.
    ``least``: tokens that a sample needs, 2 where each but the first is to be learnt. Raises DataError where
    ``max_length`` leaves no room beside the special tokens.
    """

    def __init__(self, tokenizer: Tokenizer, max_length: int, paired: bool = False, least: int = 1) -> None:
        num_special = tokenizer.num_special_tokens_to_add(is_pair=paired)
        room = num_special + (2 if paired else 1)
        if max_length < room:
            what = "prompt and text" if paired else "text"
            raise DataError(
                f"data.max_length = {max_length}: the tokenizer adds {num_special} special tokens to every {what}; "
                f"give at least {room}"
            )
        self._max_length, self._paired, self._least = max_length, paired, least
        self._tokenizer = Tokenizer.from_str(tokenizer.to_str())  # a copy: the caller's does not change
        self._tokenizer.no_padding()
        self._tokenizer.no_truncation()
        if not paired:  # the library cuts the second of a pair too, but fails without a row where nothing is left
            self._tokenizer.enable_truncation(max_length)

    def encode(self, texts: Sequence[str], prompts: Sequence[str] | None, rows: Sequence[int]) -> Encoded:
        """Return the token ids of each text after its prompt, if any; ``rows``: each one's number in its source.

        Raises DataError that names the rows whose text has no token, or none that fits after the prompt.
        """
        inputs: Sequence[Any] = texts if prompts is None else list(zip(prompts, texts, strict=True))
        chunks = (inputs[start : start + CHUNK] for start in range(0, len(inputs), CHUNK))
        samples = [self._row(encoding) for chunk in chunks for encoding in self._tokenizer.encode_batch_fast(chunk)]
        lengths = np.array([len(ids) for ids, _, _ in samples], dtype=np.int64)
        before = np.array([prompt for _, prompt, _ in samples], dtype=np.int64)
        lost = lengths <= before if self._paired else lengths < self._least
        if lost.any():
            raise DataError(self._refusal([rows[i] for i in np.flatnonzero(lost).tolist()], int(before[lost].max())))
        flat = np.concatenate([np.zeros(0, np.int32), *(ids for ids, _, _ in samples)])
        return Encoded(flat, lengths, before, sum(cut for _, _, cut in samples))

    def _row(self, encoding: Encoding) -> tuple[Row, int, bool]:
        """Return ids, the prompt's tokens, and whether it was cut; all ids are the prompt's where no text is left."""
        ids = np.array(encoding.ids, dtype=np.int32)
        if not self._paired:
            return ids, 0, bool(encoding.overflowing)
        sequences = encoding.sequence_ids
        if TEXT not in sequences:
            return ids, len(ids), False
        prompt = sequences.index(TEXT)
        if len(ids) <= self._max_length:
            return ids, prompt, False
        tail = sequences[::-1].index(TEXT)  # special tokens after the text
        if prompt + tail >= self._max_length:
            return ids[:prompt], prompt, True
        return np.concatenate([ids[: self._max_length - tail], ids[len(ids) - tail :]]), prompt, True

    def _refusal(self, rows: Sequence[int], longest_prompt: int) -> str:
        named = f"rows {', '.join(map(str, rows[:5]))}{', ...' if len(rows) > 5 else ''}"
        if self._paired:
            return (
                f"{len(rows)} texts have no token within data.max_length = {self._max_length} after their prompts "
                f"({named}), of which the longest takes {longest_prompt} tokens; raise data.max_length, or remove the "
                "rows"
            )
        if self._least > 1:
            return f"{len(rows)} texts have no second token to learn under this tokenizer ({named}); remove the rows"
        return (
            f"{len(rows)} texts have no tokens under this tokenizer ({named}); remove them, or use a tokenizer that "
            "adds special tokens"
        )


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
    names = [name for name in ("tokenizer.json", "vocab.txt") if (path / name).exists()]
    if path.is_dir() and not names:
        raise DataError(f"tokenizer {path}: the folder has neither tokenizer.json nor vocab.txt; {_TOKENIZER_WAYS}")
    file = path / names[0] if names else path
    try:
        check_regular(file)
        return _wordpiece(file) if file.suffix == ".txt" else Tokenizer.from_file(str(file))
    except Exception as error:  # the library raises a bare Exception for a bad file
        raise DataError(f"tokenizer {file}: cannot be read ({error}); {_TOKENIZER_WAYS}") from error


def _wordpiece(vocab: Path) -> Tokenizer:
    """Return BERT's tokenizer for a vocab.txt, with the letter options of the tokenizer_config.json beside it."""
    config_file = vocab.with_name("tokenizer_config.json")
    config = decode_json(config_file.read_bytes()) if config_file.exists() else {}
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


def is_text(value: Any) -> bool:
    """Return whether a value is a text that can be tokenised: neither blank nor with halves of characters."""
    return isinstance(value, str) and bool(value.strip()) and value.encode(errors="ignore").decode() == value
