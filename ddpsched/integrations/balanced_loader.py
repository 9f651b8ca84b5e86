"""balanced: a DataLoader's batches, with its samples divided over ranks by a plan instead of its sampler."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy.typing as npt
from torch.utils.data import DataLoader, DistributedSampler, IterableDataset, RandomSampler, SequentialSampler

from ddpsched.data.dataset_lengths import lengths as lengths_of
from ddpsched.data.lengths import as_array, refuse_other_number
from ddpsched.errors import ConfigError, DataError
from ddpsched.integrations.batch_sampler import BatchSampler
from ddpsched.integrations.iterated_by import warn_of_accelerator
from ddpsched.integrations.pool_stream import PoolStream
from ddpsched.integrations.scaled import Scaled, scaled
from ddpsched.integrations.step_loader import StepLoader
from ddpsched.integrations.step_share import StepShare
from ddpsched.integrations.stream_scheduler import StreamScheduler
from ddpsched.planning.policies import POLICIES
from ddpsched.world import World

KEPT = (
    "collate_fn", "num_workers", "pin_memory", "timeout", "worker_init_fn", "multiprocessing_context", "generator",
    "prefetch_factor", "persistent_workers",
)  # fmt: skip


def balanced(
    loader: DataLoader[Any],
    lengths: npt.ArrayLike | None = None,
    *,
    count: Callable[[Any], Any] | None = None,
    **plans: Any,
) -> BalancedLoader:
    """Return a loader of the same samples and batches' make, of which each rank gets what a policy assigns to it.

        loader = ddpsched.balanced(loader)                         # a DataLoader with batch_size and a sampler
        for batch in loader:
            loss = loader.scale * F.cross_entropy(model(batch["x"]), batch["y"], reduction="sum")
            loss.backward()                                        # with ``model`` in torch's DDP

    gives the gradient of the mean over the global batch, batch_size x ranks samples. ``loader.state_dict()`` is the
    position after the batch yielded last; a loop goes on from it, within an epoch too, by

        loader.load_state_dict(state)
        for epoch in range(loader.epoch, epochs):
            loader.set_epoch(epoch)                                # or sampler.set_epoch(epoch)

    ``loader``: over a data set with samples by id, in sequence, shuffled, or with a DistributedSampler, whose seed,
    ``drop_last`` and epochs hold on. Shuffled without one, the order follows the loader's ``generator`` or ``seed=``,
    and not torch's own generator, which ranks may not share. ``drop_last=True`` leaves out a last step that is not
    full. Workers, ``collate_fn`` and pinned memory are the loader's. ``lengths``: tokens of each sample; without it
    ``ddpsched.lengths`` of its data set. ``count``: label tokens of a batch, as of ``ddpsched.scaled``, for the mean
    over these. ``plans``: ``policy``, ``order``, ``cost``, ``memory``, ``speeds`` and ``global_batch``, as of
    BatchSampler.

    Raises ConfigError for a loader that chooses its batches in another way, and where a DistributedSampler has another
    number of ranks than the process group; DataError for lengths that are not one for each sample.
    """
    return BalancedLoader(loader, lengths, count, plans)


class BalancedLoader:
    """An iterable of batches, as :func:`balanced` returns it."""

    _place: Callable[[Any], Any] | None = None

    def __init__(
        self,
        loader: DataLoader[Any],
        lengths: npt.ArrayLike | None,
        count: Callable[[Any], Any] | None,
        plans: Mapping[str, Any],
    ) -> None:
        _check(loader)
        self.dataset, self._loader, self._plans, self._count = loader.dataset, loader, plans, count
        self._lengths = self._found() if lengths is None else as_array(lengths)
        refuse_other_number(loader.dataset, len(self._lengths))
        self._named = 0  # the epoch that the loader's own sampler has
        self._steps: Scaled | None = None
        self._scale, self._scale_is_used = 1.0, False

    def _found(self) -> npt.NDArray[Any]:
        try:
            return lengths_of(self.dataset)
        except DataError as error:
            raise DataError(
                f"{error}; then give balanced(loader, ddpsched.lengths(data, column)), or with tokenizer=, length_fn="
            ) from None

    @property
    def steps(self) -> Scaled:
        """The batches with their scales; made at first use, when the number of ranks is known."""
        if self._steps is None:
            self._steps = self._made()
        return self._steps

    def _made(self) -> Scaled:
        loader, given, world = self._loader, self._loader.sampler, self._plans.get("world") or World.detect()
        order, seed, last = "shuffled", 0, "smaller"
        if isinstance(given, DistributedSampler):
            if (given.num_replicas, given.rank) != (world.size, world.rank):
                raise ConfigError(
                    f"balanced: the DistributedSampler is of rank {given.rank} of num_replicas = {given.num_replicas}, "
                    f"but this process is rank {world.rank} of {world.size}; leave its num_replicas and rank out"
                )
            order, seed = "shuffled" if given.shuffle else "sequential", given.seed
            last = "drop" if given.drop_last else last
        elif isinstance(given, SequentialSampler):
            order = "sequential"
        elif isinstance(given, RandomSampler) and given.generator is not None:
            seed = given.generator.initial_seed() % 2**32
        assert loader.batch_size is not None, "checked"
        options: dict[str, Any] = {
            "global_batch": loader.batch_size * world.size, "order": order, "seed": seed,
            "last": "full" if loader.drop_last else last, **self._plans,
        }  # fmt: skip
        policy = options.get("policy", "balanced")
        kind = POLICIES.get(policy if isinstance(policy, str) else policy.get("kind", ""))
        if kind is not None and kind.varies and "global_batch" not in self._plans:
            del options["global_batch"], options["last"]  # micro-batches are as large as the policy fills them
        sampler = BatchSampler(self._lengths, **options)
        kept: dict[str, Any] = {name: getattr(loader, name) for name in KEPT}
        made = scaled(DataLoader(loader.dataset, batch_sampler=sampler, **kept), self._count)
        made.balanced = self
        return made

    @property
    def _epoch_of_sampler(self) -> int:
        """The epoch that was named to the loader's own sampler."""
        return int(getattr(self._loader.sampler, "epoch", 0))

    def of_world(self, world: World) -> Scaled:
        """Return the steps of one of several ranks that this process stands for."""
        self._plans, self._steps = {**self._plans, "world": world}, None
        return self.steps

    def move(self, place: Callable[[Any], Any]) -> None:
        """Let ``place`` move each batch to its device, as frameworks do."""
        self._place = place

    @property
    def scale(self) -> float:
        """The factor of the summed loss of the batch yielded last; 0 for a stand-in."""
        self._scale_is_used = True
        return self._scale

    @property
    def step(self) -> StepShare | None:
        """The :class:`StepShare` of the batch yielded last."""
        return self.steps.step

    @property
    def policy(self) -> dict[str, Any]:
        """The policy that plans, as :attr:`BatchSampler.policy`."""
        return self.steps.plan_source.taken

    @property
    def epoch(self) -> int:
        """The epoch in which the next iteration begins or continues, as a loop's ``range(loader.epoch, epochs)``."""
        return self.steps.epoch

    def __len__(self) -> int:
        return len(self.steps)

    def __iter__(self) -> Iterator[Any]:
        if self._place is None:
            warn_of_accelerator()
        if self._epoch_of_sampler != self._named:
            self._named = self._epoch_of_sampler
            self.set_epoch(self._named)
        for batch, scale in self.steps:
            self._scale = scale
            yield batch if self._place is None else self._place(batch)
        if not self._scale_is_used:
            warnings.warn(
                "balanced: an epoch has ended, and loader.scale was not read, so ranks may weigh samples unequally; "
                "multiply the summed loss of each batch by loader.scale, or ignore this where nothing was trained",
                stacklevel=2,
            )

    def set_epoch(self, epoch: int) -> None:
        """Name the epoch of the next iteration."""
        self.steps.set_epoch(epoch)

    def state_dict(self) -> dict[str, Any]:
        """Return the state after the batch yielded last."""
        return self.steps.state_dict()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue after the batch of ``state``. Raises ConfigError where it is of another loader."""
        if self._place is None:
            self.steps.load_state_dict(state)
        else:
            self.steps.go_on(state)
        if hasattr(self._loader.sampler, "set_epoch"):  # so that naming another epoch is seen
            self._loader.sampler.set_epoch(self.epoch)
            self._named = self.epoch


KNOWN: tuple[Any, ...] = (SequentialSampler, RandomSampler, DistributedSampler)


def _is_like(kind: type, known: type) -> bool:
    return all(getattr(kind, name, None) is getattr(known, name, None) for name in ("__iter__", "set_epoch"))


def _check(loader: Any) -> None:
    if isinstance(loader, StepLoader | PoolStream | StreamScheduler | BalancedLoader):
        raise ConfigError(
            f"balanced: a {type(loader).__name__} is planned already; iterate ddpsched.scaled(loader), or give it "
            "to ddpsched.integrations.accelerate.prepare or ddpsched.integrations.lightning.BalancedData"
        )
    if not isinstance(loader, DataLoader) or type(loader).__iter__ is not DataLoader.__iter__:
        raise ConfigError(
            f"balanced: {type(loader).__name__} is no torch DataLoader; make a DataLoader of its data set, or use "
            "ddpsched.StepLoader"
        )
    if isinstance(loader.dataset, IterableDataset):
        raise ConfigError(
            f"balanced: {type(loader.dataset).__name__} has no samples by id; use ddpsched.StreamScheduler for an "
            "iterable data set"
        )
    if loader.batch_size is None and loader.batch_sampler is None:
        raise ConfigError(
            "balanced: batch_size=None yields samples one by one; give batch_size, the samples of a step on each rank"
        )
    sampler = loader.sampler
    known = any(_is_like(type(sampler), kind) for kind in KNOWN)  # and no subclass with an order of its own
    if loader.batch_size is None or not known or getattr(sampler, "replacement", False):
        chooser = sampler if loader.batch_size is not None else loader.batch_sampler
        raise ConfigError(
            f"balanced: {type(chooser).__name__} chooses samples in a way of its own; give a DataLoader with "
            "batch_size and a DistributedSampler, shuffle=True or shuffle=False, or plan with ddpsched.BatchSampler"
        )
    of: Any = sampler.dataset if isinstance(sampler, DistributedSampler) else sampler
    data: Any = loader.dataset
    if len(of) != len(data):
        raise ConfigError(
            f"balanced: {type(sampler).__name__} takes {len(of)} samples, but the data set has {len(data)}; give the "
            "DataLoader a torch.utils.data.Subset of those samples, and shuffle=True or a DistributedSampler of it"
        )
