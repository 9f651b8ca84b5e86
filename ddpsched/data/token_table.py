"""Token ids of a data set: computed once and cached, online and on demand, or joined and cut into slices.

``TokenTable`` holds the ids of all samples in one flat array. ``OnlineTokens`` has the same methods and tokenises a
sample when it is first asked for. ``SliceTable`` is for language modelling without padding: documents are joined end to
end and cut at a context length.

A slice may hold the end of one document, several whole ones and the beginning of the next. When tokens attend over all
of it, they see unrelated documents; ``within_documents`` cuts the slice into pieces instead, each of which runs as a
sample of its own. A document that is cut continues in the next slice without its context. Either way nothing precedes a
slice's first token to predict it from.
"""

import hashlib
import os
import threading
import warnings
from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
import numpy.typing as npt
import tokenizers
from tokenizers import Tokenizer

from ddpsched.data.array_cache import load_arrays, refusal, save_arrays
from ddpsched.data.tokenizer import Encoder, Ids, Row
from ddpsched.errors import DataError

NOT_LEARNT = -100  # a label that no loss counts
UNCUT = 2**31 - 1  # max_length of texts that the tokenizer must not cut
CACHED = {"flat", "offsets", "num_truncated", "prompts"}  # fields of a table


class Tokens(ABC):
    """Samples' token ids, and which of them are targets of a language model's loss.

    All are but the prompt's and a row's first, as nothing precedes it to predict it from. A classifier learns none.
    """

    max_length: int
    rows: Ids | None = None

    @abstractmethod
    def row(self, id: int) -> Row:
        """Return the token ids of one sample, int32 ``(length,)``, read-only."""

    @abstractmethod
    def parts(self, ids: npt.ArrayLike) -> Ids:
        """Return the number of tokens of prompt and text of samples ``ids``, int64 (n, 2).

        Each row sums to its sample's length. Special tokens around the prompt count as its own; a sample without a
        prompt has 0 and its length.
        """

    def labels(self, id: int) -> Row:
        """Return the token ids of one sample with -100 where they are not learnt, int32 ``(length,)``."""
        labels = self.row(id).copy()
        labels[: self.parts([id])[0, 0]] = NOT_LEARNT
        return labels

    def num_targets(self, ids: npt.ArrayLike) -> Ids:
        """Return the number of targets, ``labels(id)[1:] != -100``, of samples ``ids``: int64, of their shape."""
        ids = np.asarray(ids, dtype=np.int64)
        parts = self.parts(ids.ravel())  # (n, 2)
        return (parts.sum(axis=1) - np.maximum(parts[:, 0], 1)).reshape(ids.shape)


@dataclass(frozen=True, eq=False)
class TokenTable(Tokens):
    """The token ids of N samples, one after another in one array; read-only.

    ``flat``: int32 ``(total,)``; ``offsets``: int64 ``(N + 1,)``, sample i is ``flat[offsets[i]:offsets[i + 1]]``.
    ``num_truncated``: the number of samples that were longer than ``max_length`` and were cut to it. ``prompts``: int64
    ``(N,)``, the leading tokens of each that are not learnt, by default 0. ``rows``: int64 ``(N,)``, rising, the row of
    each in the source, from 0; None where it is the id.
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
        """Return the token counts of samples ``ids``, int64, of the shape of ``ids``."""
        ids = checked_ids(ids, len(self))
        return self.offsets[ids + 1] - self.offsets[ids]

    def row(self, id: int) -> Row:
        """Return the token ids of one sample, int32 ``(length,)``, a view."""
        checked_ids(id, len(self))
        return self.flat[self.offsets[id] : self.offsets[id + 1]]

    def parts(self, ids: npt.ArrayLike) -> Ids:
        ids = np.atleast_1d(checked_ids(ids, len(self)))
        return np.stack([self.prompts[ids], self.lengths(ids) - self.prompts[ids]], axis=1)


class OnlineTokens(Tokens):
    """Texts that are tokenised on first use and then kept, with the methods of ``TokenTable``.

    Planning may ask for lengths in one thread while training reads rows in another. ``prompts``, ``rows`` and
    ``least``: as in ``tokenise``.
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
        self.rows = np.array(self._numbers, dtype=np.int64) - 1
        self._rows: dict[int, tuple[Row, int]] = {}  # ids, and how many of them are the prompt's
        self.num_truncated = 0  # samples tokenised so far that were longer than max_length
        self._lock = threading.Lock()

    def __len__(self) -> int:
        return len(self._texts)

    @property
    def num_tokenised(self) -> int:
        """The number of samples tokenised so far."""
        return len(self._rows)

    def lengths(self, ids: npt.ArrayLike) -> Ids:
        """Return the token counts of samples ``ids``, int64, of the shape of ``ids``; tokenise those that are new."""
        ids = checked_ids(ids, len(self))
        return self.parts(ids).sum(axis=1).reshape(ids.shape)

    def row(self, id: int) -> Row:
        return self._tokenised(id)[0][0]

    def parts(self, ids: npt.ArrayLike) -> Ids:
        counts = [(prompt, len(row) - prompt) for row, prompt in self._tokenised(ids)]
        return np.array(counts, dtype=np.int64).reshape(-1, 2)

    def _tokenised(self, ids: npt.ArrayLike) -> list[tuple[Row, int]]:
        wanted = checked_ids(ids, len(self)).ravel().tolist()
        if all(i in self._rows for i in wanted):  # they are only ever added, so they may be read without the lock
            return [self._rows[i] for i in wanted]
        with self._lock:
            new = [i for i in dict.fromkeys(wanted) if i not in self._rows]  # another thread may have added some
            prompts = None if self._prompts is None else [self._prompts[i] for i in new]
            encoded = self._encoder.encode([self._texts[i] for i in new], prompts, [self._numbers[i] for i in new])
            encoded.flat.setflags(write=False)
            rows = np.split(encoded.flat, np.cumsum(encoded.lengths)[:-1])
            self._rows.update(zip(new, zip(rows, encoded.prompts.tolist(), strict=False), strict=False))
            self.num_truncated += encoded.num_truncated
        return [self._rows[i] for i in wanted]


class Pieces(NamedTuple):
    """The pieces of documents in some slices, in order."""

    rows: list[Row]  # token ids
    labels: list[Row]
    slices: Ids  # int64 (pieces,): the place of each one's slice among those asked for, from 0


class SliceTable(Tokens):
    """The slices of joined documents, in order, with the methods of ``TokenTable``.

    Every slice has ``length`` tokens, the last one the rest, at least 2: a rest of one token would leave nothing to
    predict and is counted in ``num_dropped`` instead. Raises DataError where there is not even one slice.
    """

    num_truncated = 0  # tokens that do not fit into a slice begin the next

    def __init__(self, documents: TokenTable, length: int, within_documents: bool = False) -> None:
        self.max_length, self.within_documents = length, within_documents
        self._documents = documents
        total = len(documents.flat)
        self.num_dropped = int(total % length == 1)
        self._num_tokens = total - self.num_dropped
        self._size = -(-self._num_tokens // length)
        if self._size == 0:
            raise DataError(f"{len(documents)} documents with {total} tokens in all make no slice of two tokens")
        # (N + 1,): before each document, the tokens of prompts, and the documents that begin with a token to learn
        self._prompts = _before(documents.prompts)
        self._plain = _before(documents.prompts == 0)

    def __len__(self) -> int:
        return self._size

    def lengths(self, ids: npt.ArrayLike) -> Ids:
        """Return the token counts of slices ``ids``, int64, of the shape of ``ids``."""
        begin, end = self._ends(ids)
        return end - begin

    def row(self, id: int) -> Row:
        """Return the token ids of one slice, int32 ``(length,)``, a view."""
        begin, end = self._ends(id)
        return self._documents.flat[begin:end]

    def labels(self, id: int) -> Row:
        """Return the token ids of one slice with -100 where they are not learnt.

        Those are its documents' prompts and, within documents, the first token of each piece.
        """
        begin, end = self._ends(id)
        labels = self.row(id).copy()
        first, last = self._document(begin), self._document(end - 1)
        starts = self._documents.offsets[first : last + 1] - begin
        # (documents, 2): the range of each one's prompt in the slice, which the first document's may not reach
        prompts = np.stack([starts, starts + self._documents.prompts[first : last + 1]], axis=1).clip(min=0)
        for start, stop in prompts[prompts[:, 0] < prompts[:, 1]].tolist():
            labels[start:stop] = NOT_LEARNT
        if self.within_documents:
            labels[starts.clip(min=0)] = NOT_LEARNT
        return labels

    def num_targets(self, ids: npt.ArrayLike) -> Ids:
        """Return the number of targets, ``labels(id)[1:] != -100``, of slices ``ids``: int64, of their shape."""
        begin, end = self._ends(ids)
        learnt = end - begin - 1 - (self._prompts_before(end) - self._prompts_before(begin + 1))
        if self.within_documents:  # documents that begin after the slice's first token
            first, last = (np.searchsorted(self._documents.offsets[:-1], at) for at in (begin + 1, end))
            learnt -= self._plain[last] - self._plain[first]
        return learnt

    def parts(self, ids: npt.ArrayLike) -> Ids:
        """Return the number of tokens of prompts and of texts, int64 (n, 2); each row sums to its slice's length."""
        begin, end = (np.atleast_1d(at) for at in self._ends(ids))
        prompts = self._prompts_before(end) - self._prompts_before(begin)
        return np.stack([prompts, end - begin - prompts], axis=1)

    def segments(self, id: int) -> Ids:
        """Return the number of tokens of each document's piece in one slice, int64 (pieces,), in order."""
        begin, end = self._ends(id)
        offsets = self._documents.offsets[:-1]
        inner = offsets[np.searchsorted(offsets, begin + 1) : np.searchsorted(offsets, end)]
        return np.diff(np.concatenate([[begin], inner, [end]]))

    def pieces(self, ids: Iterable[int]) -> Pieces:
        """Return each document's piece in slices ``ids``, which are packed where tokens attend within documents."""
        rows: list[Row] = []
        labels: list[Row] = []
        counts: list[int] = []
        for id in map(int, ids):
            segments = self.segments(id)
            cuts = np.cumsum(segments)[:-1]
            rows += np.split(self.row(id), cuts)
            labels += np.split(self.labels(id), cuts)
            counts.append(len(segments))
        return Pieces(rows, labels, np.repeat(np.arange(len(counts)), counts))

    def _ends(self, ids: npt.ArrayLike) -> tuple[Ids, Ids]:
        """Return the beginnings and ends of slices ``ids`` among all tokens."""
        at = checked_ids(ids, self._size, "slice")
        return at * self.max_length, np.minimum((at + 1) * self.max_length, self._num_tokens)

    def _document(self, at: npt.ArrayLike) -> Ids:
        """Return the documents that tokens belong to."""
        return np.searchsorted(self._documents.offsets, at, side="right") - 1

    def _prompts_before(self, at: Ids) -> Ids:
        """Return the number of prompt tokens before token ``at``, of the shape of ``at``."""
        document = np.minimum(self._document(at), len(self._documents) - 1)
        into = at - self._documents.offsets[document]
        return self._prompts[document] + np.minimum(into, self._documents.prompts[document])


def tokenise(
    tokenizer: Tokenizer,
    texts: Sequence[str],
    max_length: int,
    cache_dir: Path | Literal["default"] | None = "default",
    prompts: Sequence[str] | None = None,
    rows: Sequence[int] | None = None,
    least: int = 1,
) -> TokenTable:
    """Return ``texts``, each after its prompt if there are prompts, as a ``TokenTable``, from the cache where possible.

    The cache file's name is a hash of the tokenizer, ``max_length`` and every text and prompt, so it can be shared,
    deleted and written by several ranks at once.

    ``cache_dir``: by default ``$DDPSCHED_CACHE``, or else ``~/.cache/ddpsched``; None keeps nothing. ``rows``: the
    number of each text in its source, from 1; by default all of them. ``least``: tokens that a sample needs. Raises
    DataError where a text has too few, or none left after its prompt, or where ``max_length`` has no room for the
    special tokens.
    """
    encoder = Encoder(tokenizer, max_length, prompts is not None, least)
    path, places = None, None if rows is None else np.array(rows, dtype=np.int64) - 1
    if cache_dir is not None:
        default = os.environ.get("DDPSCHED_CACHE") or "~/.cache/ddpsched"
        folder = Path(default).expanduser() if cache_dir == "default" else cache_dir
        path = folder / f"tokens-{_digest(tokenizer, texts, prompts, max_length, least)}.npz"
        if (reason := refusal(folder)) is not None:
            warnings.warn(f"cache {folder}: {reason}; set DDPSCHED_CACHE to a folder of your own", stacklevel=2)
            path = None
        arrays: dict[str, Any] | None = None if path is None else load_arrays(path)
        if arrays and arrays.keys() == CACHED and len(arrays["offsets"]) == len(texts) + 1:
            arrays["num_truncated"] = int(arrays["num_truncated"])
            return TokenTable(**arrays, max_length=max_length, rows=places)
    encoded = encoder.encode(texts, prompts, range(1, len(texts) + 1) if rows is None else rows)
    offsets = np.concatenate([[0], np.cumsum(encoded.lengths)]).astype(np.int64)
    table = TokenTable(encoded.flat, offsets, encoded.num_truncated, max_length, encoded.prompts, places)
    if path is not None:
        save_arrays(path, **{name: getattr(table, name) for name in CACHED})
    return table


def checked_ids(ids: npt.ArrayLike, size: int, what: str = "sample") -> Ids:
    """Return ``ids`` as int64. Raises IndexError where one is not from 0 to ``size - 1``."""
    array = np.asarray(ids, dtype=np.int64)
    if array.size and (array.min() < 0 or array.max() >= size):
        raise IndexError(f"{what} ids from {array.min()} to {array.max()}; there are {size} {what}s, 0 to {size - 1}")
    return array


def _digest(
    tokenizer: Tokenizer, texts: Sequence[str], prompts: Sequence[str] | None, max_length: int, least: int
) -> str:
    digest = hashlib.blake2b(digest_size=16)
    # `least` decides what is refused: a table that another task accepted must not come from the cache
    kind = "" if prompts is None and least == 1 else f"{'texts' if prompts is None else 'pairs'} {least} "
    digest.update(f"{tokenizers.__version__} {max_length} {len(texts)} {kind}".encode())
    for column in (texts,) if prompts is None else (texts, prompts):
        encoded = [text.encode() for text in column]
        lengths = np.array([len(text) for text in encoded], dtype=np.int64)
        digest.update(lengths.tobytes())  # so that ["ab", "c"] is not ["a", "bc"]
        digest.update(b"".join(encoded))
    digest.update(tokenizer.to_str().encode())
    return digest.hexdigest()


def _before(counts: npt.NDArray[np.generic]) -> Ids:
    """Return the sum of the counts before each, (N,) -> (N + 1,)."""
    return np.concatenate([[0], np.cumsum(counts, dtype=np.int64)])
