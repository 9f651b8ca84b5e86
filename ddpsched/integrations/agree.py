"""The number of samples of a step on all ranks, where each rank fills the step for itself."""

import torch
import torch.distributed as dist


def sum_over_ranks(number: int, group: dist.ProcessGroup | None = None) -> int:
    """The sum of ``number`` over the ranks of ``group``, one all-reduce; ``number`` itself where there is no group.

    Every rank of it must call this equally often. With NCCL the number travels through the GPU; a group of gloo,
    ``functools.partial(sum_over_ranks, group=dist.new_group(backend="gloo"))``, spares its queue.
    """
    if not (dist.is_available() and dist.is_initialized()):
        return number
    device = torch.device("cuda") if dist.get_backend(group) == "nccl" else torch.device("cpu")
    total = torch.tensor([number], dtype=torch.int64, device=device)
    dist.all_reduce(total, group=group)
    return int(total.item())
