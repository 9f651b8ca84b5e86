"""The loader of one rank, which tells the samples of its steps."""

import itertools
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch.utils.data import DataLoader, IterableDataset, Subset

from ddpsched.errors import DataError
from ddpsched.integrations.balanced_loader import BalancedLoader
from ddpsched.integrations.batch_sampler import BatchSampler
from ddpsched.integrations.rank_lists import RankLists
from ddpsched.integrations.scaled import Scaled, scaled
from ddpsched.integrations.step_loader import StepLoader
from ddpsched.world import World

Build = Callable[[int, int], Any]
Stream = list[list[int]]  # of one rank and epoch: the ids of each step

MOST_STEPS = 1_000_000  # a longer epoch is taken for one that never ends
HOW = (
    "give a torch DataLoader over a data set with len() and positions, a batch sampler (it yields lists of ids), a "
    "loader whose batches have the key 'id', or a pair (loader, ids) where ids(batch) lists the ids of a batch"
)


class LoaderRank:
    """The loader of one rank, built after the generators are seeded, as in a process of its own.

    ``samples``: length of the data set, None where it has no positions. ``stand_ins``: lists of weight 0 so far.
    ``parts``: the loader and what it draws from, by name. ``sampler``: its ddpsched.BatchSampler, where its batches are
    that sampler's lists.
    """

    def __init__(self, build: Build, target: str, rank: int, world_size: int, workers: bool = False) -> None:
        random.seed(0)
        np.random.seed(0)  # noqa: NPY002 (loaders of others draw from it)
        torch.manual_seed(0)
        self.target = f"{target}(rank={rank}, world_size={world_size})"
        try:
            made = build(rank, world_size)
        except Exception as error:
            hint = "; pass num_replicas=world_size and rank=rank to the sampler" * ("process group" in str(error))
            raise DataError(f"{self.target} raised {type(error).__name__}: {error}{hint}") from error
        self._ids: Callable[[Any], Any] | None
        self.loader, self._ids = made if isinstance(made, tuple) and len(made) == 2 else (made, None)
        world = World(rank, world_size)
        if isinstance(self.loader, Scaled) and self.loader.balanced is not None:
            self.loader = self.loader.balanced
        if isinstance(self.loader, BalancedLoader):
            self.loader = self.loader.of_world(world)
        if isinstance(self.loader, Scaled):
            self.loader = self.loader.loader
        if not hasattr(self.loader, "__iter__"):
            raise DataError(f"{self.target} returned {type(self.loader).__name__}, which cannot be iterated; {HOW}")
        self.samples: int | None = None
        loader = getattr(self.loader, "base_dataloader", self.loader)  # accelerate's loaders hold torch's
        if isinstance(loader, DataLoader) and not isinstance(loader.dataset, IterableDataset) and self._ids is None:
            loader.pin_memory = False
            if not workers:  # they would only fetch; of an iterable dataset they are part of the stream
                loader.num_workers, loader.prefetch_factor = 0, None
            positions, self.samples = _positions(loader.dataset)
            loader.__dict__["dataset"] = positions  # DataLoader forbids setting it
            loader.collate_fn = list
        self.num_workers: int = getattr(self.loader, "num_workers", 0)
        self.stand_ins = 0
        parts = {name: getattr(self.loader, name, None) for name in ("batch_sampler", "sampler", "dataset")}
        inner = getattr(parts["batch_sampler"], "sampler", None)
        parts = {"the loader": self.loader, **parts, "batch_sampler.sampler": inner}
        self.parts = {name: part for name, part in parts.items() if part is not None}
        self.sampler = next((part for part in self.parts.values() if isinstance(part, BatchSampler)), None)
        planner = self.loader if isinstance(self.loader, StepLoader) else self.sampler
        if planner is not None:
            planner.plan_source.stand_for(world)

    def set_epoch(self, epoch: int) -> list[str]:
        """Call every part's ``set_epoch``, and return the names of the parts that have one."""
        able: dict[str, Any] = {}
        for name, part in self.parts.items():
            if hasattr(part, "set_epoch") and all(part is not other for other in able.values()):
                able[name] = part
                part.set_epoch(epoch)
        return list(able)

    def steps(self, iterator: Iterator[Any], most: int = MOST_STEPS, by: Scaled | None = None) -> Stream:
        """Return the ids that an iterator's first ``most`` steps train; those of a stand-in are none.

        Raises DataError where it goes on beyond ``MOST_STEPS``.
        """
        if isinstance(self.loader, StepLoader):  # batches are lists, whose samples its plans know
            source = self.loader.plan_source
            plans = (self.loader.plan for _ in itertools.islice(iterator, most))
            stream = [plan.rank_ids(source.world.rank).tolist() for plan in plans if plan is not None]
        elif self.sampler is None:
            stream = [self._ids_of(batch) for batch in itertools.islice(iterator, most)]
        else:
            of_lists = isinstance(iterator, RankLists)  # the sampler's iterator, though the loader be another
            steps = by or scaled(self.sampler if of_lists else self.loader)
            weighed = [(self._ids_of(batch), scale) for batch, scale in itertools.islice(steps.pairs(iterator), most)]
            stream = [ids if scale else [] for ids, scale in weighed]
            self.stand_ins += sum(not scale for _, scale in weighed)
        if len(stream) == MOST_STEPS:
            raise DataError(f"{self.target} has not ended after {MOST_STEPS:,} steps; give one epoch")
        return stream

    def _ids_of(self, batch: Any) -> list[int]:
        if self._ids is not None:
            return [int(each) for each in self._ids(batch)]
        if isinstance(batch, Mapping) and "id" in batch:
            batch = batch["id"]
        elif isinstance(batch, Sequence) and all(isinstance(each, Mapping) and "id" in each for each in batch):
            batch = [each["id"] for each in batch]
        ids = np.asarray(batch) if isinstance(batch, list | tuple | np.ndarray | torch.Tensor) else None
        if ids is None or ids.ndim != 1 or (ids.size and not np.issubdtype(ids.dtype, np.integer)):
            what = sorted(batch) if isinstance(batch, Mapping) else type(batch).__name__
            raise DataError(f"{self.target}: which samples a batch holds cannot be read from it ({what}); {HOW}")
        return [int(id) for id in ids]


def _positions(dataset: Any) -> tuple[Sequence[int], int]:
    """Return each item's position in the data set beneath all ``Subset``s, and the length of that data set."""
    if isinstance(dataset, Subset):
        positions, size = _positions(dataset.dataset)
        return [positions[i] for i in dataset.indices], size
    return _Positions(len(dataset)), len(dataset)


class _Positions(Sequence[Any]):
    """A data set that answers a position with itself, and a list of them with the list."""

    def __init__(self, size: int) -> None:
        self._size = size

    def __len__(self) -> int:
        return self._size

    def __getitem__(self, position: Any) -> Any:
        return position
