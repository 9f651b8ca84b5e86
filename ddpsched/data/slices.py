"""Documents joined end to end and cut at a context length: language modelling without padding.

A slice may hold the end of one document, several whole ones and the beginning of the next. When tokens attend over all
of it, they see unrelated documents; ``within_documents`` cuts the slice into pieces instead, each of which runs as a
sample of its own. A document that is cut continues in the next slice without its context. Either way nothing precedes a
slice's first token to predict it from.
"""

from collections.abc import Iterable
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from ddpsched.data.encode import Ids, Row
from ddpsched.data.token_table import NOT_LEARNT, Tokens, TokenTable, checked_ids
from ddpsched.errors import DataError

UNCUT = 2**31 - 1  # max_length of documents to be joined, which the tokenizer must not cut


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


def _before(counts: npt.NDArray[np.generic]) -> Ids:
    """Return the sum of the counts before each, (N,) -> (N + 1,)."""
    return np.concatenate([[0], np.cumsum(counts, dtype=np.int64)])
