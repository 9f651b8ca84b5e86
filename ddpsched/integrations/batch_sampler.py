"""The plans of one rank as a batch sampler, for a torch DataLoader or any loop of your own."""

from collections.abc import Iterator

import numpy.typing as npt

from ddpsched.config import parse
from ddpsched.plan import StepPlan
from ddpsched.planning.epoch import KnownLengths
from ddpsched.planning.messages import LocalExchange
from ddpsched.planning.planner import plan_epoch
from ddpsched.world import World


class BatchSampler:
    """Lists of sample ids: what rank ``world.rank`` runs, step by step, for one epoch.

    ``lengths``: (N,) token lengths of all samples, the same on every rank; so every
    rank plans for all and nothing is communicated. All ranks yield equally often,
    and every id once per epoch; a list may be empty at the very end of an epoch, where
    fewer samples than ranks are left. ``policy``: "static", "minmax" (``prefetch``
    samples in each rank's window) or "balanced".

    The gradient is exact when the *summed* loss of the i-th list is multiplied by
    ``sum_scale(i)`` and gradients are averaged over ranks, as DDP does. Call
    ``set_epoch(e)`` for another order. Raises ConfigError or DataError for
    arguments out of range.

    >>> ranks = [BatchSampler([3, 9, 4, 8, 5, 7], 3, World(r, 2), seed=1) for r in range(2)]
    >>> sorted(i for rank in ranks for ids in rank for i in ids)
    [0, 1, 2, 3, 4, 5]
    """

    def __init__(
        self,
        lengths: npt.ArrayLike,
        global_batch: int,
        world: World,
        policy: str = "balanced",
        prefetch: int | None = None,
        seed: int = 0,
    ) -> None:
        self._lengths = KnownLengths(lengths)
        window = prefetch or -(-2 * global_batch // world.size)
        self._config = parse(
            {
                "epochs": 1,
                "seed": seed,
                "global_batch": global_batch,
                "world_size": world.size,
                "policy": {"kind": policy, "prefetch": window},
            },
            source="BatchSampler",
        )
        self._world, self._epoch = world, 0

    def set_epoch(self, epoch: int) -> None:
        """The order of the next iteration."""
        self._epoch = epoch

    def plans(self) -> Iterator[StepPlan]:
        """The epoch's plans: all ranks' samples."""
        return plan_epoch(self._config, self._lengths, LocalExchange(self._world.size), None, self._epoch, 0)

    def __iter__(self) -> Iterator[list[int]]:
        for plan in self.plans():
            yield plan.rank_ids(self._world.rank).tolist()

    def __len__(self) -> int:
        """Steps per epoch: ceil(N / B)."""
        return -(-len(self._lengths) // self._config.global_batch)

    def sum_scale(self, index: int) -> float:
        """G / B_i for the i-th step of an epoch; B_i is the global batch, smaller in the last step."""
        if not 0 <= index < len(self):
            raise IndexError(f"step {index} of an epoch of {len(self)} steps")
        size = self._config.global_batch
        return self._world.size / min(size, len(self._lengths) - index * size)
