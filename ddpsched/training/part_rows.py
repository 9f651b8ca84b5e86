"""Rows of a part of a sample: its own tokens, and the keys and values of the whole sample gathered for them.

Each token runs on one rank. All of a transformer but its attention treats tokens for themselves, so a part's row holds
its tokens alone, at their positions in the sample. In each attention the keys and values of all parts are put together
in the order of the sample, and the row's queries attend to them as they do in a whole sample. In backward every rank
has a gradient for all keys and values; these are added up over ranks, and each takes those of its own tokens.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from transformers.integrations.sdpa_attention import sdpa_attention_forward

from ddpsched.parts import Part, Range

BLOCK = 512  # queries that attend at a time
Gather = Callable[[torch.Tensor], torch.Tensor]  # (tokens of the row, ...) -> (tokens of the sample, ...)


def positions_of(parts: Sequence[Part]) -> np.ndarray:
    """Return the positions in the sample of the tokens of these parts, one part after another, (tokens,)."""
    return np.concatenate([np.arange(start, end) for part in parts for start, end in part.ranges])


@dataclass(frozen=True)
class PartRow:
    """The place of a row's tokens in their sample, for attention, as ``Packing`` is of a packed row.

    ``ranges``: of the row's tokens in the sample, in the order of the row. ``gather``: puts the rows of all parts
    together. ``offsets``: (2,), where the row begins and ends.
    """

    ranges: tuple[Range, ...]
    gather: Gather
    offsets: torch.Tensor

    @property
    def lengths(self) -> tuple[int]:
        """The tokens of the row, as of one sample."""
        return (sum(end - start for start, end in self.ranges),)

    def to(self, device: torch.device | str, non_blocking: bool = False) -> "PartRow":
        """Return the same on another device, as loops that move batches ask for."""
        return PartRow(self.ranges, self.gather, self.offsets.to(device, non_blocking=non_blocking))

    def attend(
        self, module: Any, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, causal: bool,
        window: int | None, options: dict[str, Any],
    ) -> torch.Tensor:  # fmt: skip
        """Return the attention of the row's queries to the whole sample.

        ``query``, ``key``, ``value``: (1, heads, tokens, head_dim). Returns (1, tokens, heads, head_dim).
        """
        width = key.shape[-1]
        both = self.gather(torch.cat((key, value), -1).squeeze(0).transpose(0, 1))  # one collective for the two
        both = both.transpose(0, 1).unsqueeze(0)
        options = {**options, "is_causal": False}  # the mask says it
        attended, done = [], 0
        for start, end in _blocks(self.ranges) if causal else self.ranges:
            own, last = query[:, :, done : done + end - start], end if causal else both.shape[2]
            keys, values = both[:, :, :last, :width], both[:, :, :last, width:]
            mask = _mask(start, end, last, causal, window, query)
            attended.append(sdpa_attention_forward(module, own, keys, values, mask, **options)[0])
            done += end - start
        return torch.cat(attended, 1)


def _blocks(ranges: Sequence[Range]) -> Iterator[Range]:
    """Yield the ranges in pieces, each of which attends to no key beyond its own end: less is computed and masked."""
    for start, end in ranges:
        yield from ((begin, min(begin + BLOCK, end)) for begin in range(start, end, BLOCK))


def _mask(start: int, end: int, last: int, causal: bool, window: int | None, like: torch.Tensor) -> Any:
    """Return (1, 1, end - start, last), -inf where a query may not attend to a key, else 0; None where each may."""
    if window is None and not causal:
        return None
    if window is None:  # all before the block may be attended to
        mask = like.new_zeros((end - start, last))
        mask[:, start:] = like.new_full((end - start, end - start), -torch.inf).triu(1)
        return mask[None, None]
    never = like.new_full((end - start, last), -torch.inf)
    return (never.triu(start + (1 if causal else window)) + never.tril(start - window))[None, None]


class JoinedParts:
    """The gather of a row that holds all parts, one after another: it puts them in the sample's order."""

    def __init__(self, parts: Sequence[Part], device: torch.device) -> None:
        self._order = torch.as_tensor(np.argsort(positions_of(parts)), device=device)

    def __call__(self, own: torch.Tensor) -> torch.Tensor:
        return own.index_select(0, self._order)
