"""Process groups for samples that are split, made when a step first needs them and kept, and what they gather."""

from collections import OrderedDict
from collections.abc import Sequence
from datetime import timedelta
from typing import Any

import numpy as np
import torch
import torch.distributed as dist

from ddpsched.errors import ConfigError
from ddpsched.parts import Part
from ddpsched.step_plan import StepPlan
from ddpsched.training.part_rows import Gather, positions_of
from ddpsched.training.sync.synchroniser import CollectiveLog

Members = tuple[int, ...]
SPLIT_GROUP = "ranks of a split sample"  # description of these process groups


class PartGroups:
    """The groups of ranks that split samples run on, at most ``most`` at a time; the least recently used give way.

    Each is a group of its own even where it has all ranks: collectives of a group must come in one order on all of
    them, and those of gradients come with each rank's last micro-batch.
    """

    def __init__(self, rank: int, most: int, timeout_s: float) -> None:
        self._rank, self._most, self._timeout = rank, most, timedelta(seconds=timeout_s)
        self._groups: OrderedDict[Members, dist.ProcessGroup] = OrderedDict()

    def shares(
        self, plan: StepPlan, device: torch.device, log: CollectiveLog
    ) -> dict[int, tuple[Sequence[Part], Gather]]:
        """Return this rank's part of each split sample, by id, with its gather; all ranks call it together.

        Raises ConfigError, on all ranks alike, where a step needs more groups than may be kept.
        """
        members = {id: tuple(sorted(rank for rank, _ in parts)) for id, parts in plan.parts.items()}
        needed = list(dict.fromkeys(members.values()))
        if len(needed) > self._most:
            raise ConfigError(
                f"step {plan.step} splits samples over {len(needed)} groups of ranks, and executor.max_groups = "
                f"{self._most}; raise it, or policy.max_tokens"
            )
        for each in needed:
            if each in self._groups:
                self._groups.move_to_end(each)
        for each in needed:
            if each not in self._groups:
                self._make(each)
        found: dict[int, tuple[Sequence[Part], Gather]] = {}
        for id, placed in plan.parts.items():
            if self._rank in members[id]:
                by_rank = sorted(placed, key=lambda each: each[0])
                index = members[id].index(self._rank)
                parts = [part for _, part in by_rank]
                gather = GroupParts(parts, index, self._groups[members[id]], device, log)
                found[id] = parts[index : index + 1], gather
        return found

    def _make(self, members: Members) -> None:
        while len(self._groups) >= self._most:
            _, oldest = self._groups.popitem(last=False)
            if oldest is not dist.GroupMember.NON_GROUP_MEMBER:
                dist.destroy_process_group(oldest)
        self._groups[members] = dist.new_group(list(members), timeout=self._timeout, group_desc=SPLIT_GROUP)

    def close(self) -> None:
        """Give all groups back; all ranks call it together."""
        for group in self._groups.values():
            if group is not dist.GroupMember.NON_GROUP_MEMBER:
                dist.destroy_process_group(group)
        self._groups.clear()

    def __len__(self) -> int:
        return len(self._groups)


class GroupParts:
    """The gather over a group of ranks, each with one of the ``parts``, in the order of the group.

    ``index``: this rank's. ``log``: where its collectives are recorded.
    """

    def __init__(
        self, parts: Sequence[Part], index: int, group: dist.ProcessGroup, device: torch.device, log: CollectiveLog
    ) -> None:
        positions = positions_of(parts)
        self.tokens, self.index, self.group, self._log = [part.tokens for part in parts], index, group, log
        self.order = torch.as_tensor(np.argsort(positions), device=device)  # from the parts' order to the sample's
        self.positions = torch.as_tensor(positions, device=device)

    def __call__(self, own: torch.Tensor) -> torch.Tensor:
        whole: torch.Tensor = _Gathered.apply(own, self)
        return whole

    def all_gather(self, own: torch.Tensor) -> torch.Tensor:
        """Return the rows of all parts, one part after another."""
        most = max(self.tokens)
        sent = own.new_zeros((most, *own.shape[1:]))  # of one size, as gloo and NCCL need it
        sent[: len(own)] = own
        received = [torch.empty_like(sent) for _ in self.tokens]
        self._wait("gather of keys and values", sent, dist.all_gather(received, sent, self.group, async_op=True))
        return torch.cat([rows[:count] for rows, count in zip(received, self.tokens, strict=True)])

    def sum_of_own(self, gradient: torch.Tensor) -> torch.Tensor:
        """Return the sum over ranks of the gradient at this rank's tokens; ``gradient``: of all, part after part."""
        gradient = gradient.contiguous()
        self._wait("sum of their gradients", gradient, dist.all_reduce(gradient, group=self.group, async_op=True))
        first = sum(self.tokens[: self.index])
        return gradient[first : first + self.tokens[self.index]]

    def _wait(self, label: str, sent: torch.Tensor, work: Any) -> None:
        self._log.gathering(label, sent, work)
        work.wait()


class _Gathered(torch.autograd.Function):
    """All parts' rows in the sample's order; backward adds up what all ranks have for this rank's."""

    @staticmethod
    def forward(ctx: Any, own: torch.Tensor, parts: GroupParts) -> torch.Tensor:
        ctx.parts = parts
        return parts.all_gather(own).index_select(0, parts.order.to(own.device))

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor, None]:
        return ctx.parts.sum_of_own(gradients[0].index_select(0, ctx.parts.positions.to(gradients[0].device))), None
