"""From texts to token ids: once per data set, kept in a cache, or online and on demand.

``TokenTable`` holds all samples' ids in one flat array; ``OnlineTokens`` has
the same methods and tokenises a sample when it is first asked for.
"""

import hashlib
import json
import os
import threading
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np
import numpy.typing as npt
import tokenizers
from tokenizers import BertWordPieceTokenizer, Tokenizer

from ddpsched.errors import DataError
from ddpsched.planning.array_cache import default_folder, load_arrays, save_arrays
from ddpsched.planning.hub import offline_unless_reachable
from ddpsched.planning.words import embedded_tokenizer

# One thread: ranks share the machine's cores, online lengths are found while a step computes,
# and the library warns (or may hang) when a process forks after it ran threads of its own.
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")

CHUNK = 4096  # texts encoded at a time; an Encoding takes some 50 times the memory of its ids

Ids = npt.NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class TokenTable:
    """The token ids of N samples, one after another in one array; read-only.

    ``flat``: int32 ``(total,)``; ``offsets``: int64 ``(N + 1,)``, sample i is
    ``flat[offsets[i]:offsets[i + 1]]``; ``num_truncated``: how many samples were
    longer than ``max_length`` and were cut to it.
    """

    flat: npt.NDArray[np.int32]
    offsets: Ids
    num_truncated: int
    max_length: int

    def __post_init__(self) -> None:
        self.flat.setflags(write=False)
        self.offsets.setflags(write=False)

    def __len__(self) -> int:
        return len(self.offsets) - 1

    def lengths(self, ids: npt.ArrayLike) -> Ids:
        """Token counts of samples ``ids``, int64 and of the shape of ``ids``."""
        ids = _checked(ids, len(self))
        return self.offsets[ids + 1] - self.offsets[ids]

    def row(self, id: int) -> npt.NDArray[np.int32]:
        """The token ids of one sample, int32 ``(length,)``, a view."""
        _checked(id, len(self))
        return self.flat[self.offsets[id] : self.offsets[id + 1]]


class OnlineTokens:
    """``TokenTable``'s methods over texts that are tokenised on first use and then remembered.

    Planning may ask for lengths in one thread while training reads rows in another.
    """

    def __init__(self, tokenizer: Tokenizer, texts: Sequence[str], max_length: int) -> None:
        self.max_length = max_length
        self._tokenizer = _truncating(tokenizer, max_length)
        self._texts = texts
        self._rows: dict[int, npt.NDArray[np.int32]] = {}
        self._num_truncated = 0
        self._lock = threading.Lock()

    def __len__(self) -> int:
        return len(self._texts)

    @property
    def num_tokenised(self) -> int:
        """How many samples have been tokenised so far."""
        return len(self._rows)

    @property
    def num_truncated(self) -> int:
        """How many of the samples tokenised so far were longer than ``max_length``."""
        return self._num_truncated

    def lengths(self, ids: npt.ArrayLike) -> Ids:
        """Token counts of samples ``ids``, int64 and of the shape of ``ids``; tokenises what is new."""
        ids = _checked(ids, len(self))
        wanted = ids.ravel().tolist()
        self._tokenise(wanted)
        return np.array([len(self._rows[i]) for i in wanted], dtype=np.int64).reshape(ids.shape)

    def row(self, id: int) -> npt.NDArray[np.int32]:
        """The token ids of one sample, int32 ``(length,)``, read-only."""
        id = int(_checked(id, len(self)))
        self._tokenise([id])
        return self._rows[id]

    def _tokenise(self, ids: Iterable[int]) -> None:
        # rows are only ever added, so what is there may be read without the lock
        if all(i in self._rows for i in ids):
            return
        with self._lock:
            new = [i for i in dict.fromkeys(ids) if i not in self._rows]
            if not new:  # the other thread was faster
                return
            flat, lengths, num_truncated = _encode(self._tokenizer, [self._texts[i] for i in new], new)
            flat.setflags(write=False)
            rows = np.split(flat, np.cumsum(lengths)[:-1])
            self._rows.update(zip(new, rows, strict=True))
            self._num_truncated += num_truncated


def tokenise(
    tokenizer: Tokenizer,
    texts: Sequence[str],
    max_length: int,
    cache_dir: Path | Literal["default"] | None = "default",
) -> TokenTable:
    """All ``texts`` as a ``TokenTable``, from the cache where the same work was done before.

    The cache file's name is a hash of the tokenizer, ``max_length`` and every
    text, so it can be shared, deleted and written by several ranks at once.
    ``cache_dir``: by default ``$DDPSCHED_CACHE``, or else ``~/.cache/ddpsched``;
    None keeps nothing. DataError where a text has no tokens, or where
    ``max_length`` has no room for the special tokens.
    """
    if cache_dir is None:
        return _tokenise_all(tokenizer, texts, max_length)
    folder = default_folder() if cache_dir == "default" else cache_dir
    path = folder / f"tokens-{_digest(tokenizer, texts, max_length)}.npz"
    arrays = load_arrays(path)
    if arrays and arrays.keys() == {"flat", "offsets", "num_truncated"} and len(arrays["offsets"]) == len(texts) + 1:
        return TokenTable(arrays["flat"], arrays["offsets"], int(arrays["num_truncated"]), max_length)
    table = _tokenise_all(tokenizer, texts, max_length)
    save_arrays(path, flat=table.flat, offsets=table.offsets, num_truncated=table.num_truncated)
    return table


def _tokenise_all(tokenizer: Tokenizer, texts: Sequence[str], max_length: int) -> TokenTable:
    flat, lengths, num_truncated = _encode(_truncating(tokenizer, max_length), texts, range(len(texts)))
    offsets = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)
    return TokenTable(flat, offsets, num_truncated, max_length)


def load_tokenizer(name: str | None) -> Tokenizer:
    """A tokenizer with padding and truncation switched off, which some published ones have on.

    ``name`` is a folder with tokenizer.json or vocab.txt, one of these files, or
    a name on the hub; None is the embedded tokenizer. DataError where there is none.
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
    """The id of ``[PAD]`` or ``<pad>``; 0 where the tokenizer has neither."""
    found = (tokenizer.token_to_id(token) for token in ("[PAD]", "<pad>"))
    return next((id for id in found if id is not None), 0)


_TOKENIZER_WAYS = (
    "give a folder that holds tokenizer.json or vocab.txt as data.tokenizer, "
    "or leave data.path, data.name and data.tokenizer out for the embedded sentences and their tokenizer"
)


def _from_path(path: Path) -> Tokenizer:
    file = path
    if path.is_dir():
        file = next((path / n for n in ("tokenizer.json", "vocab.txt") if (path / n).exists()), path)
        if file == path:
            raise DataError(f"tokenizer {path}: the folder has neither tokenizer.json nor vocab.txt; {_TOKENIZER_WAYS}")
    try:
        return _wordpiece(file) if file.suffix == ".txt" else Tokenizer.from_file(str(file))
    except Exception as error:  # the library raises a bare Exception for a bad file
        raise DataError(f"tokenizer {file}: cannot be read ({error}); {_TOKENIZER_WAYS}") from error


def _wordpiece(vocab: Path) -> Tokenizer:
    """BERT's tokenizer over a vocab.txt, with what the tokenizer_config.json beside it says of letters."""
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
        except Exception as error:  # dozens of kinds: network, rights, name, file
            raise DataError(
                f"tokenizer {name}: no such folder, nor on the hub or in its cache ({error}); {_TOKENIZER_WAYS}"
            ) from error


def _checked(ids: npt.ArrayLike, size: int) -> Ids:
    array = np.asarray(ids, dtype=np.int64)
    if array.size and (array.min() < 0 or array.max() >= size):
        raise IndexError(f"sample ids from {array.min()} to {array.max()}; there are {size} samples, 0 to {size - 1}")
    return array


def _truncating(tokenizer: Tokenizer, max_length: int) -> Tokenizer:
    """A copy that cuts texts to ``max_length`` tokens, [CLS] and [SEP] kept."""
    num_special = tokenizer.num_special_tokens_to_add(is_pair=False)
    if max_length <= num_special:
        raise DataError(
            f"data.max_length = {max_length}: the tokenizer adds {num_special} special tokens to every text; "
            f"give at least {num_special + 1}"
        )
    copy = Tokenizer.from_str(tokenizer.to_str())
    copy.no_padding()
    copy.enable_truncation(max_length)
    return copy


def _encode(truncating: Tokenizer, texts: Sequence[str], ids: Sequence[int]) -> tuple[npt.NDArray[np.int32], Ids, int]:
    """``(flat ids, length of each text, number of texts cut)``; ``ids`` name the samples in an error."""
    chunks: list[npt.NDArray[np.int32]] = []
    lengths = np.zeros(len(texts), dtype=np.int64)
    num_truncated = 0
    for start in range(0, len(texts), CHUNK):
        encodings = truncating.encode_batch_fast(texts[start : start + CHUNK])
        for i, encoding in enumerate(encodings, start):
            chunks.append(np.array(encoding.ids, dtype=np.int32))
            lengths[i] = len(encoding.ids)
            num_truncated += bool(encoding.overflowing)
    if not lengths.all():
        empty = [ids[i] + 1 for i in np.flatnonzero(lengths == 0)[:5]]
        raise DataError(
            f"{np.count_nonzero(lengths == 0)} texts have no tokens under this tokenizer (rows {empty}, ...); "
            "remove them, or use a tokenizer that adds special tokens"
        )
    return np.concatenate(chunks or [np.zeros(0, np.int32)]), lengths, num_truncated


def _digest(tokenizer: Tokenizer, texts: Sequence[str], max_length: int) -> str:
    encoded = [text.encode() for text in texts]
    digest = hashlib.blake2b(digest_size=16)
    digest.update(f"{tokenizers.__version__} {max_length} {len(texts)} ".encode())
    lengths = np.array([len(text) for text in encoded], dtype=np.int64)
    digest.update(lengths.tobytes())  # so that ["ab", "c"] is not ["a", "bc"]
    digest.update(b"".join(encoded))
    digest.update(tokenizer.to_str().encode())
    return digest.hexdigest()
