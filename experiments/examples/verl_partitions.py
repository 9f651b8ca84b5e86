"""verl's two functions by ``ddpsched.balance``, with the same arguments: put these in place of its imports.

    from verl_partitions import get_seqlen_balanced_partitions, rearrange_micro_batches

The first divides a batch over ranks: its largest sum is nearer to the even share than that of verl's method with equal
counts, and as near without. The second cuts a rank's batch into micro-batches of at most ``max_token_len`` tokens.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
import torch.distributed as dist

import ddpsched


def get_seqlen_balanced_partitions(seqlen_list: Any, k_partitions: int, equal_size: bool) -> list[list[int]]:
    """Return the positions of each partition, rising; every position once, no partition empty."""
    found = ddpsched.balance(seqlen_list, k_partitions, equal_counts=equal_size)
    return [rank[0].tolist() for rank in found.ranks]


def rearrange_micro_batches(
    batch: Any,
    max_token_len: int,
    dp_group: Any = None,
    num_batches_divided_by: int | None = None,
    same_micro_num_in_dp: bool = True,
    min_num_micro_batch: int | None = None,
    use_dynamic_bsz_balance: bool = True,
    force_group_size: int = 1,
) -> tuple[list[Any], list[list[int]]]:
    """Return micro-batches, as few as hold the batch, of nearly equal work, and the positions of each.

    ``batch``: a mapping of tensors, (B, S) or nested, with "attention_mask", or nested "input_ids". ``dp_group``: its
    ranks get equal numbers. Work is 24576 L + L**2, as verl counts it. Raises ValueError where a group is too long.
    """
    lengths = _lengths(batch)
    groups = np.arange(len(lengths)) // force_group_size
    tokens, work = np.bincount(groups, lengths), np.bincount(groups, 24576.0 * lengths + 1.0 * lengths**2)
    step, ranks = num_batches_divided_by or 1, dp_group if dist.is_initialized() and same_micro_num_in_dp else None
    # all ranks raise, or none does: the others would wait in the next collective
    longest, fewest = _largest(int(tokens.max()), ranks), -_largest(-len(tokens), ranks)
    if longest > max_token_len:
        raise ValueError(f"a group has {longest} tokens, but max_token_len = {max_token_len}; raise it")
    count = max(-(-int(tokens.sum()) // max_token_len), min_num_micro_batch or 1)
    count = -(-_largest(count, ranks) // step) * step
    while True:
        if count > fewest:
            raise ValueError(f"{count} micro-batches need as many groups, but a rank has {fewest}; raise max_token_len")
        parts = get_seqlen_balanced_partitions(work.astype(np.int64), count, False)
        if not _largest(int(any(tokens[part].sum() > max_token_len for part in parts)), ranks):
            break
        count += step
    if use_dynamic_bsz_balance:  # the lightest at both ends
        parts.sort(key=lambda part: -work[part].sum())
        parts = parts[::2][::-1] + parts[1::2]
    positions = [np.flatnonzero(np.isin(groups, part)).tolist() for part in parts]
    return [_selected(batch, each) for each in positions], positions


def _lengths(batch: Any) -> np.ndarray:
    ids = batch["input_ids"]
    found = ids.offsets().diff() if ids.is_nested else batch["attention_mask"].sum(dim=1)
    lengths: np.ndarray = found.cpu().numpy().astype(np.int64)
    return lengths


def _largest(number: int, group: Any) -> int:
    """Return the largest number of the group's ranks."""
    if group is None:
        return number
    found = torch.tensor([number], device="cuda" if dist.get_backend(group) == "nccl" else "cpu")
    dist.all_reduce(found, op=dist.ReduceOp.MAX, group=group)
    return int(found.item())


def _selected(batch: Any, positions: Sequence[int]) -> Any:
    def of(tensor: torch.Tensor) -> torch.Tensor:
        if not tensor.is_nested:
            return tensor[torch.tensor(positions, device=tensor.device)]
        rows = tensor.unbind()
        return torch.nested.as_nested_tensor([rows[position] for position in positions], layout=torch.jagged)

    if isinstance(batch, Mapping):
        return {name: of(tensor) for name, tensor in batch.items()}
    return batch[torch.tensor(positions)]  # a TensorDict
