"""From texts to token ids: once per data set, kept in a cache, or online and on demand.

``TokenTable`` holds all samples' ids in one flat array; ``OnlineTokens`` has
the same methods and tokenises a sample when it is first asked for.
"""

import hashlib
import threading
from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

import numpy as np
import numpy.typing as npt
import tokenizers
from tokenizers import Tokenizer

from ddpsched.data.array_cache import default_folder, load_arrays, save_arrays
from ddpsched.data.encode import Encoder, Ids, Row

NOT_LEARNT = -100  # a label that no loss counts
KEPT = {"flat", "offsets", "num_truncated", "prompts"}  # of a table, in the cache


class Tokens(ABC):
    """What follows from ``row`` and ``parts``: which tokens are learnt.

    All but the prompt's are, and never a row's first, as nothing stands before it to predict it from. A classifier,
    which learns none, does not ask.
    """

    max_length: int
    rows: Ids | None = None

    @abstractmethod
    def row(self, id: int) -> Row:
        """The token ids of one sample, int32 ``(length,)``, read-only."""

    @abstractmethod
    def parts(self, ids: npt.ArrayLike) -> Ids:
        """Tokens of the prompt, special ones around it included, and of the text: int64 (n, 2), each row summing to the
        length of one of the ``ids``; 0 and the length where there is no prompt.
        """

    def labels(self, id: int) -> Row:
        """The token ids of one sample with -100 where they are not learnt, int32 ``(length,)``."""
        labels = self.row(id).copy()
        labels[: self.parts([id])[0, 0]] = NOT_LEARNT
        return labels

    def num_targets(self, ids: npt.ArrayLike) -> Ids:
        """How many labels of each of the samples ``ids`` count, ``labels(id)[1:] != -100``: int64, of their shape."""
        ids = np.asarray(ids, dtype=np.int64)
        # (n, 2)
        parts = self.parts(ids.ravel())
        return (parts.sum(axis=1) - np.maximum(parts[:, 0], 1)).reshape(ids.shape)


@dataclass(frozen=True, eq=False)
class TokenTable(Tokens):
    """The token ids of N samples, one after another in one array; read-only.

    ``flat``: int32 ``(total,)``; ``offsets``: int64 ``(N + 1,)``, sample i is
    ``flat[offsets[i]:offsets[i + 1]]``; ``num_truncated``: how many samples were
    longer than ``max_length`` and were cut to it; ``prompts``: int64 ``(N,)``, each
    one's leading tokens that are not learnt, by default 0; ``rows``: int64 ``(N,)``, rising,
    each one's row in the source, from 0; None where it is its id.
    """

    flat: Row
    offsets: Ids
    num_truncated: int
    max_length: int
    prompts: Ids = field(default_factory=lambda: np.zeros(0, dtype=np.int64))
    rows: Ids | None = None

    def __post_init__(self) -> None:
        if not len(self.prompts):
            object.__setattr__(self, "prompts", np.zeros(len(self), dtype=np.int64))
        for array in (self.flat, self.offsets, self.prompts):
            array.setflags(write=False)

    def __len__(self) -> int:
        return len(self.offsets) - 1

    def lengths(self, ids: npt.ArrayLike) -> Ids:
        """Token counts of samples ``ids``, int64 and of the shape of ``ids``."""
        ids = _checked(ids, len(self))
        return self.offsets[ids + 1] - self.offsets[ids]

    def row(self, id: int) -> Row:
        """The token ids of one sample, int32 ``(length,)``, a view."""
        _checked(id, len(self))
        return self.flat[self.offsets[id] : self.offsets[id + 1]]

    def parts(self, ids: npt.ArrayLike) -> Ids:
        ids = np.atleast_1d(_checked(ids, len(self)))
        return np.stack([self.prompts[ids], self.lengths(ids) - self.prompts[ids]], axis=1)


class OnlineTokens(Tokens):
    """``TokenTable``'s methods over texts that are tokenised on first use and then remembered.

    Planning may ask for lengths in one thread while training reads rows in another.
    ``prompts``, ``rows`` and ``least`` as in ``tokenise``.
    """

    def __init__(
        self,
        tokenizer: Tokenizer,
        texts: Sequence[str],
        max_length: int,
        prompts: Sequence[str] | None = None,
        rows: Sequence[int] | None = None,
        least: int = 1,
    ) -> None:
        self.max_length = max_length
        self._encoder = Encoder(tokenizer, max_length, prompts is not None, least)
        self._texts, self._prompts = texts, prompts
        self._numbers = range(1, len(texts) + 1) if rows is None else rows
        self._rows: dict[int, tuple[Row, int]] = {}  # ids, and how many of them are the prompt's
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
        wanted = self._tokenised(ids)
        return np.array([len(self._rows[i][0]) for i in wanted], dtype=np.int64).reshape(ids.shape)

    def row(self, id: int) -> Row:
        (id,) = self._tokenised(_checked(id, len(self)))
        return self._rows[id][0]

    def parts(self, ids: npt.ArrayLike) -> Ids:
        wanted = self._tokenised(_checked(ids, len(self)))
        found = [(prompt, len(row) - prompt) for row, prompt in (self._rows[i] for i in wanted)]
        return np.array(found, dtype=np.int64).reshape(-1, 2)

    def _tokenised(self, ids: Ids) -> list[int]:
        wanted: list[int] = ids.ravel().tolist()
        self._tokenise(wanted)
        return wanted

    def _tokenise(self, ids: Iterable[int]) -> None:
        # rows are only ever added, so what is there may be read without the lock
        if all(i in self._rows for i in ids):
            return
        with self._lock:
            new = [i for i in dict.fromkeys(ids) if i not in self._rows]
            if not new:  # the other thread was faster
                return
            prompts = None if self._prompts is None else [self._prompts[i] for i in new]
            found = self._encoder.encode([self._texts[i] for i in new], prompts, [self._numbers[i] for i in new])
            found.flat.setflags(write=False)
            rows = np.split(found.flat, np.cumsum(found.lengths)[:-1])
            self._rows.update(zip(new, zip(rows, found.prompts.tolist(), strict=True), strict=True))
            self._num_truncated += found.num_truncated


def tokenise(
    tokenizer: Tokenizer,
    texts: Sequence[str],
    max_length: int,
    cache_dir: Path | Literal["default"] | None = "default",
    prompts: Sequence[str] | None = None,
    rows: Sequence[int] | None = None,
    least: int = 1,
) -> TokenTable:
    """All ``texts``, each behind its prompt where there are any, as a ``TokenTable``; from the cache where the same
    work was done before.

    The cache file's name is a hash of the tokenizer, ``max_length`` and every
    text and prompt, so it can be shared, deleted and written by several ranks at once.
    ``cache_dir``: by default ``$DDPSCHED_CACHE``, or else ``~/.cache/ddpsched``;
    None keeps nothing. ``rows``: the number of each text in its source, for errors;
    by default from 1 on. ``least``: tokens that a sample needs. DataError where a text
    has too few, or none left behind its prompt, or where ``max_length`` has no room
    for the special tokens.
    """
    encoder = Encoder(tokenizer, max_length, prompts is not None, least)
    numbers = range(1, len(texts) + 1) if rows is None else rows
    if cache_dir is None:
        return _tokenise_all(encoder, texts, prompts, numbers, max_length)
    folder = default_folder() if cache_dir == "default" else cache_dir
    path = folder / f"tokens-{_digest(tokenizer, texts, prompts, max_length, least)}.npz"
    arrays = load_arrays(path)
    if arrays and arrays.keys() == KEPT and len(arrays["offsets"]) == len(texts) + 1:
        num_truncated = int(arrays["num_truncated"])
        return TokenTable(arrays["flat"], arrays["offsets"], num_truncated, max_length, arrays["prompts"])
    table = _tokenise_all(encoder, texts, prompts, numbers, max_length)
    save_arrays(path, **{name: getattr(table, name) for name in KEPT})
    return table


def _tokenise_all(
    encoder: Encoder, texts: Sequence[str], prompts: Sequence[str] | None, rows: Sequence[int], max_length: int
) -> TokenTable:
    found = encoder.encode(texts, prompts, rows)
    offsets = np.concatenate([[0], np.cumsum(found.lengths)]).astype(np.int64)
    return TokenTable(found.flat, offsets, found.num_truncated, max_length, found.prompts)


def _checked(ids: npt.ArrayLike, size: int) -> Ids:
    array = np.asarray(ids, dtype=np.int64)
    if array.size and (array.min() < 0 or array.max() >= size):
        raise IndexError(f"sample ids from {array.min()} to {array.max()}; there are {size} samples, 0 to {size - 1}")
    return array


def _digest(
    tokenizer: Tokenizer, texts: Sequence[str], prompts: Sequence[str] | None, max_length: int, least: int
) -> str:
    digest = hashlib.blake2b(digest_size=16)
    # `least` decides what is refused: what another task let pass must not come from the cache
    beside = "" if prompts is None and least == 1 else f"{'pairs' if prompts is not None else 'texts'} {least} "
    digest.update(f"{tokenizers.__version__} {max_length} {len(texts)} {beside}".encode())
    for column in (texts,) if prompts is None else (texts, prompts):
        encoded = [text.encode() for text in column]
        lengths = np.array([len(text) for text in encoded], dtype=np.int64)
        digest.update(lengths.tobytes())  # so that ["ab", "c"] is not ["a", "bc"]
        digest.update(b"".join(encoded))
    digest.update(tokenizer.to_str().encode())
    return digest.hexdigest()
