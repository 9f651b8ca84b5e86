"""A sum over ranks in each step, for PoolStream, where each rank fills its steps alone."""

import torch
import torch.distributed as dist


def sum_over_ranks(number: int, group: dist.ProcessGroup | None = None) -> int:
    """Return the sum of ``number`` over the ranks of ``group``, by one all-reduce; ``number`` without a process group.

    Every rank of the group must call this equally often. With NCCL the number travels through the GPU; a group of gloo,
    ``functools.partial(sum_over_ranks, group=dist.new_group(backend="gloo"))``, keeps it out of the GPU's queue.

    >>> sum_over_ranks(7)
    7
    """
    if not (dist.is_available() and dist.is_initialized()):
        return number
    device = torch.device("cuda") if dist.get_backend(group) == "nccl" else torch.device("cpu")
    total = torch.tensor([number], dtype=torch.int64, device=device)
    dist.all_reduce(total, group=group)
    return int(total.item())
