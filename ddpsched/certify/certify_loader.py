"""Certification of a data loader: each sample once, equal numbers of steps, resumable.

The loaders of all ranks are built in this one process, one after another, so nothing is trained and nothing is
communicated. A loader over a data set with positions is iterated as it is, except that the data set answers with the
positions instead of the samples.
"""

import copy
import itertools
import random
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import pairwise, zip_longest
from typing import Any

import numpy as np
import torch
from torch.utils.data import DataLoader, DistributedSampler, IterableDataset, Subset

from ddpsched.arguments import function_named
from ddpsched.certify.certificate import Certificate, Check
from ddpsched.certify.stream_checks import exactly_once, resumption, same_counts
from ddpsched.errors import ConfigError, DataError
from ddpsched.integrations.batch_sampler import BatchSampler, RankLists
from ddpsched.integrations.scaled import Scaled, scaled
from ddpsched.integrations.step_loader import StepLoader

Build = Callable[[int, int], Any]
Stream = list[list[int]]  # of one rank and epoch: the ids of each step

EPOCHS = 2
MOST_STEPS = 1_000_000  # a longer epoch is taken for one that never ends
NEW_ORDER = "new order every epoch"
SCALED = "ddpsched.scaled(loader)"
NO_STATE = "neither the loader nor its samplers can save a position; torchdata's StatefulDataLoader can"
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
        if self.sampler is None:
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


def certify_loader(target: str | Build, world_size: int) -> Certificate:
    """Ask the loaders of all ranks for two epochs, and again from the middle of each.

    ``target``: ``"module:function"``, or the function itself; ``function(rank, world_size)`` returns the rank's
    DataLoader, batch sampler, or (loader, ids); see ``HOW``. The caller's random generators are left as they were.
    Raises ConfigError where it cannot be imported or ``world_size`` is smaller than 1, and DataError where it fails or
    the samples of its batches are unknown.
    """
    if world_size < 1:
        raise ConfigError(f"world_size = {world_size}: at least 1 rank is needed")
    build, name = function_named(target, "loader") if isinstance(target, str) else (target, target.__name__)
    states = random.getstate(), np.random.get_state()  # noqa: NPY002
    try:
        with torch.random.fork_rng(devices=[]):
            return _certificate(build, name, world_size)
    finally:
        random.setstate(states[0])
        np.random.set_state(states[1])  # noqa: NPY002


def _certificate(build: Build, name: str, world_size: int) -> Certificate:
    epochs: list[list[Stream]] = [[] for _ in range(EPOCHS)]
    sizes, stand_ins = set(), 0
    for r in range(world_size):
        rank = LoaderRank(build, name, r, world_size)
        sizes.add(rank.samples)
        try:
            for epoch, streams in enumerate(epochs):
                able = rank.set_epoch(epoch)
                streams.append(rank.steps(iter(rank.loader)))
        except ConfigError as error:  # one of ddpsched's samplers refuses its loader
            refused = Check.not_made("every sample once", f"iterating {rank.target} raised ConfigError", str(error))
            return Certificate(f"loader {name}", (refused,))
        stand_ins += rank.stand_ins
    if len(sizes) > 1:
        raise DataError(
            f"{name}: the ranks' data sets have lengths {sorted(map(str, sizes))}, so that a position means another "
            "sample in each; share one data set and divide it by Subset or a sampler, or return (loader, ids) where "
            "ids(batch) lists ids that mean the same on all ranks"
        )
    first = epochs[0]
    ours = rank.loader if isinstance(rank.loader, StepLoader) else rank.sampler
    order = None if ours is None else ours.order
    size = rank.samples if rank.samples is not None else 1 + max(_flat(first), default=-1)
    facts = [
        f"{world_size} ranks, {size:,} samples, {EPOCHS} epochs, every rank seeded alike", _gradient(first),
        "one plan: not applicable, these ranks share none; what they must share is the number of steps",
    ]  # fmt: skip
    if rank.samples is None:
        facts.append(f"the samples are taken to be 0 to {size - 1:,}, the largest id seen")
    if stand_ins:
        facts.append(
            f"{stand_ins} list(s) are stand-ins, for ranks without samples in an epoch's last step: they weigh 0 by "
            "ddpsched.scaled(loader) or sum_scale(step), and are not counted"
        )
    if able and order is None:
        facts.append(f"set_epoch(e) was called before each epoch ({', '.join(able)}); a training loop must do so too")
    at, once = _first_failing([exactly_once(streams, size) for streams in epochs])
    if once.holds:
        once = replace(once, says=f"{once.says}, in each of {EPOCHS} epochs")
    else:
        once = replace(once, cause=_why_not_once(epochs[at], size, rank) or once.cause)
    checks = [once, _first_failing([same_counts(each) for each in epochs])[1], _resumed(build, name, epochs)]
    if first != epochs[1]:
        checks.append(Check(NEW_ORDER, True, "epoch 1 takes the samples in another order than epoch 0"))
    elif order in ("sequential", "curriculum"):
        facts.append(f"every epoch takes the samples in the same order, as order = {order!r} asks for")
    elif _rises(first):
        facts.append("every epoch takes the samples in the same rising order")
    else:
        why = f"set_epoch(e) of {', '.join(able)} changes nothing" if able else "it has no set_epoch(e)"
        checks.append(Check(NEW_ORDER, False, "epoch 1 takes the samples in the order of epoch 0", why))
    return Certificate(f"loader {name}", tuple(checks), tuple(facts))


def _rises(streams: list[Stream]) -> bool:
    """Return whether each rank takes its samples by rising id, or each step those after the step before."""
    steps = [ids for parts in zip_longest(*streams, fillvalue=[]) if (ids := _flat([list(parts)]))]
    by_step = all(max(one) < min(other) for one, other in pairwise(steps))
    return by_step or all(ids == sorted(ids) for ids in (_flat([stream]) for stream in streams))


def _first_failing(checks: list[Check]) -> tuple[int, Check]:
    """Return the first epoch in which a check fails, and that check; the first epoch's where all hold."""
    for epoch, check in enumerate(checks):
        if not check.holds:
            return epoch, replace(check, says=f"epoch {epoch}: {check.says}")
    return 0, checks[0]


def _why_not_once(streams: list[Stream], size: int, rank: LoaderRank) -> str | None:
    """Return the cause where it is a known behaviour of torch's classes; None where another must be found."""
    world_size, uneven = len(streams), "a batch sampler whose last step may be uneven (ddpsched.BatchSampler) does not"
    if world_size > 1 and all(sorted(_flat([stream])) == list(range(size)) for stream in streams):
        return (
            "every rank runs every sample: no DistributedSampler divides them over ranks; give the DataLoader "
            "DistributedSampler(dataset, num_replicas=world_size, rank=rank); or each rank's data set is its own "
            "share, whose positions mean other samples: then return (loader, ids)"
        )
    if rank.sampler is not None and rank.sampler.last == "drop":
        return "last = 'drop' leaves out an epoch's last samples; 'smaller' and 'join' run them"
    ids, workers = _flat(streams), rank.num_workers
    if workers > 1 and rank.samples is None and len(ids) == workers * len(set(ids)):
        return f"each of {workers} workers yields all of its rank's samples: divide them by get_worker_info()"
    part = next((part for part in rank.parts.values() if isinstance(part, DistributedSampler)), None)
    if part is not None and size % world_size:
        does, count = ("leaves out", size % world_size) if part.drop_last else ("repeats", -size % world_size)
        return (
            f"DistributedSampler(drop_last={part.drop_last}) {does} {count} sample(s), as {world_size} ranks do not "
            f"divide {size:,}; {uneven}"
        )
    if getattr(rank.loader, "drop_last", False) and len(set(ids)) < size:
        return f"DataLoader(drop_last=True) leaves out the last, incomplete batch; {uneven}"
    return None


def _resumed(build: Build, name: str, epochs: list[list[Stream]]) -> Check:
    """Break each epoch off in the middle, and continue it with loaders that are built anew."""
    check, reports = "resumption", []
    for epoch, streams in enumerate(epochs):
        done = min(map(len, streams)) // 2
        if not done:
            return Check.not_made(check, "an epoch of fewer than two steps has no middle")
        resumed = []
        for r in range(len(streams)):
            rank = LoaderRank(build, name, r, len(streams), workers=True)
            try:
                broken_off = _broken_off(rank, epoch, done)
            except (AttributeError, ConfigError) as error:  # a state that the loader cannot have after all
                return Check.not_made(check, f"state_dict raised {type(error).__name__}: {error}", NO_STATE)
            if broken_off is None:
                return Check.not_made(check, "no state_dict and load_state_dict", NO_STATE)
            where, state = broken_off
            again = LoaderRank(build, name, r, len(streams), workers=True)
            again.set_epoch(epoch)
            try:
                _, holder, iterator = next(_holders(again))
                holder.load_state_dict(state)
                resumed.append(again.steps(iter(again.loader) if iterator is None else iterator))
            except DataError:
                raise
            except Exception as error:
                says = f"load_state_dict of {where} on rank {r} raised {type(error).__name__}: {error}"
                return Check(check, False, says, "it does not accept what its state_dict gave")
        result = resumption(_by_step(streams), _by_step(resumed), done - 1)
        if not result.holds:
            cause = str(result.cause)
            if where != "the loader" and rank.num_workers:
                cause += f"; a DataLoader with workers asks {where} for batches ahead of those it hands out"
            return replace(result, says=f"epoch {epoch}, by the state of {where}: {result.says}", cause=cause)
        reports.append(f"epoch {epoch}: {result.says}")
    return Check(check, True, f"by the state of {where}; " + "; ".join(reports))


def _broken_off(rank: LoaderRank, epoch: int, done: int) -> tuple[str, Any] | None:
    """Run to the middle of ``epoch``; return what holds the position, by name, and its state."""
    for earlier in range(epoch):
        rank.set_epoch(earlier)
        rank.steps(iter(rank.loader))
    rank.set_epoch(epoch)
    for where, holder, iterator in _holders(rank):
        running = iter(rank.loader) if iterator is None else iterator  # held, as a loader may ask it for the position
        rank.steps(running, done, holder if where == SCALED else None)
        return where, copy.deepcopy(holder.state_dict())
    return None


def _holders(rank: LoaderRank) -> Iterator[tuple[str, Any, Any]]:
    """Yield what may hold the position, the best first, by name; and the iterator to run, None: the loader's."""
    if rank.sampler is not None and not type(rank.loader).__module__.startswith("torchdata."):
        yield SCALED, scaled(rank.loader), None  # torchdata's loader saves its sampler's state itself
    for name, part in rank.parts.items():
        if name != "dataset" and _stateful(part):
            yield name, part, None
    for name in ("batch_sampler", "the loader"):
        if name in rank.parts and _stateful(iterator := iter(rank.parts[name])):
            yield f"the iterator of {name}", iterator, iterator


def _stateful(thing: Any) -> bool:
    return all(callable(getattr(thing, name, None)) for name in ("state_dict", "load_state_dict"))


def _gradient(streams: list[Stream]) -> str:
    """Return what the ranks' counts require of a training loop."""
    for step, parts in enumerate(zip(*streams, strict=False)):
        counts = [len(part) for part in parts]
        if len(set(counts)) > 1:
            return (
                f"gradient: not applicable, a loader has no loss; but ranks run unequal counts ({counts} in step "
                f"{step}), so DDP's average of the ranks' mean losses is not the mean over samples: multiply rank r's "
                "mean loss by G*b_r/B, or its summed loss by G/B (G ranks, b_r samples of rank r, B of all)"
            )
    return "gradient: not applicable, a loader has no loss; ranks run equal counts, so DDP may average their means"


def _by_step(streams: list[Stream]) -> list[str]:
    """Return what all ranks ran in each step, as values to compare."""
    return [repr(parts) for parts in zip_longest(*streams)]


def _flat(streams: Iterable[Stream]) -> list[int]:
    return [id for stream in streams for ids in stream for id in ids]
