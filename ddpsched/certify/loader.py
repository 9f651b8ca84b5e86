"""Somebody's data loader, asked what every rank would run: each sample once, in step, resumable?

All ranks are built in this one process, one after another, so nothing is trained and nothing is communicated. A
loader over a data set with positions is iterated as it is, only that the data set answers with the positions instead
of the samples.
"""

import contextlib
import copy
import itertools
import random
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch.utils.data import DataLoader, DistributedSampler, IterableDataset, Subset

from ddpsched.certify.streams import exactly_once, resumption, same_counts
from ddpsched.certify.verdict import Certificate, Check
from ddpsched.errors import ConfigError, DataError
from ddpsched.functions import function_named
from ddpsched.integrations.batch_sampler import BatchSampler
from ddpsched.integrations.rank_lists import RankLists
from ddpsched.integrations.scaled import Scaled, scaled
from ddpsched.integrations.step_loader import StepLoader

Build = Callable[[int, int], Any]
Stream = list[list[int]]  # of one rank and epoch: the ids of each step

EPOCHS = 2
NEW_ORDER = "new order every epoch"
SCALED = "ddpsched.scaled(loader)"
NO_STATE = "neither the loader nor its samplers can tell a position; torchdata's StatefulDataLoader can"
MOST_STEPS = 1_000_000  # an epoch that is longer is taken for one that never ends
HOW = (
    "give a torch DataLoader over a data set with len() and positions, a batch sampler (it yields lists of ids), a "
    "loader whose batches have the key 'id', or a pair (loader, ids) where ids(batch) lists the ids of a batch"
)


@contextlib.contextmanager
def _own_generators() -> Iterator[None]:
    """The caller's global generators are afterwards as they were."""
    states = random.getstate(), np.random.get_state()  # noqa: NPY002
    try:
        with torch.random.fork_rng(devices=[]):
            yield
    finally:
        random.setstate(states[0])
        np.random.set_state(states[1])  # noqa: NPY002


class _Rank:
    """The loader of one rank, as a process of its own would have it: the generators are seeded, then it is built."""

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
        self.loader: Any
        self._ids: Callable[[Any], Any] | None
        self.loader, self._ids = made if isinstance(made, tuple) and len(made) == 2 else (made, None)
        if not hasattr(self.loader, "__iter__"):
            raise DataError(f"{self.target} returned {type(self.loader).__name__}, which cannot be iterated; {HOW}")
        self.samples: int | None = None
        torch_loader = getattr(self.loader, "base_dataloader", self.loader)  # accelerate's loaders hold torch's
        if isinstance(torch_loader, DataLoader):
            self._ask_for_positions(torch_loader, workers)
        self.num_workers: int = getattr(self.loader, "num_workers", 0)
        self.stand_ins = 0  # lists of weight 0

    @property
    def sampler(self) -> BatchSampler | None:
        """Our own, where the loader's batches are its lists."""
        return next((part for part in self.parts.values() if isinstance(part, BatchSampler)), None)

    def _ask_for_positions(self, loader: DataLoader[Any], workers: bool) -> None:
        if not isinstance(loader.dataset, IterableDataset) and self._ids is None:
            loader.pin_memory = False
            if not workers:  # they would only fetch; of an iterable data set they are part of the stream
                loader.num_workers, loader.prefetch_factor = 0, None
            positions, self.samples = _positions(loader.dataset)
            loader.__dict__["dataset"] = positions  # DataLoader forbids setting it
            loader.collate_fn = list

    @property
    def parts(self) -> dict[str, Any]:
        """The loader and what it draws from, by name."""
        found = {"the loader": self.loader}
        for name in ("batch_sampler", "sampler", "dataset"):
            found[name] = getattr(self.loader, name, None)
        found["batch_sampler.sampler"] = getattr(found["batch_sampler"], "sampler", None)
        return {name: part for name, part in found.items() if part is not None}

    def set_epoch(self, epoch: int) -> list[str]:
        """Whom it told."""
        able: dict[int, str] = {}
        for name, part in self.parts.items():
            if hasattr(part, "set_epoch") and id(part) not in able:
                able[id(part)] = name
                part.set_epoch(epoch)
        return list(able.values())

    def steps(self, iterator: Iterator[Any], most: int = MOST_STEPS, by: Scaled | None = None) -> Stream:
        """The ids that an iterator's first ``most`` steps train; those of a stand-in are none."""
        if self.sampler is None:
            found = [self._ids_of(batch) for batch in itertools.islice(iterator, most)]
        else:
            of_lists = isinstance(iterator, RankLists)  # the sampler's iterator, though the loader be another
            steps = by or scaled(self.sampler if of_lists else self.loader)
            weighed = [(self._ids_of(batch), scale) for batch, scale in itertools.islice(steps.pairs(iterator), most)]
            found = [ids if scale else [] for ids, scale in weighed]
            self.stand_ins += sum(not scale for _, scale in weighed)
        if len(found) == MOST_STEPS:
            raise DataError(f"{self.target} has not ended after {MOST_STEPS:,} steps; give one epoch")
        return found

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
        return ids.tolist()


def _positions(dataset: Any) -> tuple[Sequence[int], int]:
    """What each item's position is in the data set beneath all ``Subset``s, and the length of that one."""
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
    DataLoader, batch sampler, or (loader, ids); see ``HOW``. Raises ConfigError where it cannot be found or
    ``world_size`` is smaller than 1, and DataError where it fails or its batches do not tell their samples.
    """
    if world_size < 1:
        raise ConfigError(f"world_size = {world_size}: at least 1 rank is needed")
    build, name = function_named(target, "loader") if isinstance(target, str) else (target, target.__name__)
    with _own_generators():
        return _certificate(build, name, world_size)


def _certificate(build: Build, name: str, world_size: int) -> Certificate:
    epochs: list[list[Stream]] = [[] for _ in range(EPOCHS)]
    sizes, stand_ins = set(), 0
    for r in range(world_size):
        rank = _Rank(build, name, r, world_size)
        sizes.add(rank.samples)
        try:
            for epoch, streams in enumerate(epochs):
                told = rank.set_epoch(epoch)
                streams.append(rank.steps(iter(rank.loader)))
        except ConfigError as error:  # one of our samplers refuses its loader
            refused = Check.not_made("every sample once", f"iterating {rank.target} raised ConfigError", str(error))
            return Certificate(f"loader {name}", (refused,))
        stand_ins += rank.stand_ins
    if len(sizes) > 1:
        raise DataError(
            f"{name}: the ranks' data sets have lengths {sorted(map(str, sizes))}, so that a position means another "
            "sample in each; share one data set and divide it by Subset or a sampler, or return (loader, ids) where "
            "ids(batch) lists ids that mean the same on all ranks"
        )
    ours = rank.loader if isinstance(rank.loader, StepLoader) else rank.sampler
    kind = None if ours is None else ours.order
    size = rank.samples if rank.samples is not None else 1 + max(_flat(epochs[0]), default=-1)
    facts = [f"{world_size} ranks, {size:,} samples, {EPOCHS} epochs, every rank seeded alike", _gradient(epochs[0])]
    facts.append("one plan: not applicable, these ranks share none; what they must share is the number of steps")
    if rank.samples is None:
        facts.append(f"the samples are taken to be 0 to {size - 1:,}, the largest id seen")
    if stand_ins:
        facts.append(
            f"{stand_ins} list(s) are stand-ins, for ranks without samples in an epoch's last step: they weigh 0 by "
            "ddpsched.scaled(loader) or sum_scale(step), and are not counted"
        )
    if told and kind is None:
        facts.append(f"set_epoch(e) was called before each epoch ({', '.join(told)}); a training loop must do so too")
    checks = [_once(epochs, size, rank), _first_failing([same_counts(each) for each in epochs])[1]]
    checks.append(_resumed(build, name, epochs))
    if epochs[0] != epochs[1]:
        checks.append(Check(NEW_ORDER, True, "epoch 1 takes the samples in another order than epoch 0"))
    elif kind in ("sequential", "curriculum"):
        facts.append(f"every epoch takes the samples in the same order, as order = {kind!r} asks for")
    elif _rises(epochs[0]):
        facts.append("every epoch takes the samples in the same rising order")
    else:
        why = f"set_epoch(e) of {', '.join(told)} changes nothing" if told else "it has no set_epoch(e)"
        checks.append(Check(NEW_ORDER, False, "epoch 1 takes the samples in the order of epoch 0", why))
    return Certificate(f"loader {name}", tuple(checks), tuple(facts))


def _rises(streams: list[Stream]) -> bool:
    """Whether each rank takes its samples by rising id, or each step those after the step before."""
    steps = [[id for ids in step for id in ids] for step in itertools.zip_longest(*streams, fillvalue=[])]
    by_step = all(max(one) < min(other) for one, other in itertools.pairwise(steps) if one and other)
    return by_step or all(ids == sorted(ids) for ids in (_flat([own]) for own in streams))


def _once(epochs: list[list[Stream]], size: int, rank: _Rank) -> Check:
    """Every sample of every epoch; the cause in the words of torch's own classes, where one of them is it."""
    epoch, check = _first_failing([exactly_once(streams, size) for streams in epochs])
    if check.holds:
        return Check(check.name, True, f"{check.says}, in each of {len(epochs)} epochs")
    return Check(check.name, False, check.says, _why_not_once(epochs[epoch], size, rank) or check.cause)


def _first_failing(checks: list[Check]) -> tuple[int, Check]:
    """The first epoch in which a check fails, and that; the first epoch where all hold."""
    for epoch, check in enumerate(checks):
        if not check.holds:
            return epoch, Check(check.name, False, f"epoch {epoch}: {check.says}", check.cause)
    return 0, checks[0]


def _why_not_once(streams: list[Stream], size: int, rank: _Rank) -> str | None:
    """What torch's own classes are known for; None where another reading must be found."""
    world_size, uneven = len(streams), "a batch sampler whose last step may be uneven (ddpsched.BatchSampler) does not"
    if world_size > 1 and all(sorted(_flat([own])) == list(range(size)) for own in streams):
        return (
            "every rank runs every sample: no DistributedSampler divides them over ranks; "
            "give the DataLoader DistributedSampler(dataset, num_replicas=world_size, rank=rank); or each rank's data "
            "set is a share of its own, whose positions mean other samples: then return (loader, ids)"
        )
    if rank.sampler is not None and rank.sampler.last == "drop":
        return "last = 'drop' leaves out an epoch's last samples; 'smaller' and 'join' run them"
    ids, workers = _flat(streams), rank.num_workers
    if workers > 1 and rank.samples is None and len(ids) == workers * len(set(ids)):
        return f"each of {workers} workers yields all of its rank's samples: divide them by get_worker_info()"
    for part in rank.parts.values():
        if isinstance(part, DistributedSampler) and size % world_size:
            does, count = ("leaves out", size % world_size) if part.drop_last else ("repeats", -size % world_size)
            return (
                f"DistributedSampler(drop_last={part.drop_last}) {does} {count} sample(s), as {world_size} ranks do "
                f"not divide {size:,}; {uneven}"
            )
    if getattr(rank.loader, "drop_last", False) and len(set(ids)) < size:
        return f"DataLoader(drop_last=True) leaves out the last, incomplete batch; {uneven}"
    return None


def _resumed(build: Build, name: str, epochs: list[list[Stream]]) -> Check:
    """Each epoch broken off in the middle, and taken up by loaders that were built anew."""
    world_size, says = len(epochs[0]), []
    for epoch, streams in enumerate(epochs):
        done = min(map(len, streams)) // 2
        if not done:
            return Check.not_made("resumption", "an epoch of fewer than two steps has no middle")
        resumed = []
        for r in range(world_size):
            rank = _Rank(build, name, r, world_size, workers=True)
            try:
                saved = _broken_off(rank, epoch, done)
            except (AttributeError, ConfigError) as error:  # a state that the loader cannot have after all
                says_so = f"state_dict raised {type(error).__name__}: {error}"
                return Check.not_made("resumption", says_so, NO_STATE)
            if saved is None:
                return Check.not_made("resumption", "no state_dict and load_state_dict", NO_STATE)
            where, state = saved
            try:
                resumed.append(_taken_up(_Rank(build, name, r, world_size, workers=True), epoch, where, state))
            except DataError:
                raise
            except Exception as error:
                says_so = f"load_state_dict of {where} on rank {r} raised {type(error).__name__}: {error}"
                return Check("resumption", False, says_so, "it does not take what its state_dict gave")
        check = resumption(_by_step(streams), _by_step(resumed), done - 1)
        if not check.holds:
            cause = str(check.cause)
            if where != "the loader" and rank.num_workers:
                cause += f"; a DataLoader with workers asks {where} for batches ahead of those it hands out"
            return Check(check.name, False, f"epoch {epoch}, by the state of {where}: {check.says}", cause)
        says.append(f"epoch {epoch}: {check.says}")
    return Check("resumption", True, f"by the state of {where}; " + "; ".join(says))


def _keeps_state(loader: Any) -> bool:
    """Whether this is torchdata's loader, whose state holds the sampler's."""
    return type(loader).__module__.startswith("torchdata.")


def _stateful(thing: Any) -> bool:
    return all(callable(getattr(thing, name, None)) for name in ("state_dict", "load_state_dict"))


def _broken_off(rank: _Rank, epoch: int, done: int) -> tuple[str, Any] | None:
    """Run to the middle of ``epoch``: who holds the position there, and its state; None where nobody does."""
    for earlier in range(epoch):
        rank.set_epoch(earlier)
        rank.steps(iter(rank.loader))
    rank.set_epoch(epoch)
    if rank.sampler is not None and not _keeps_state(rank.loader):
        steps = scaled(rank.loader)
        rank.steps(iter(rank.loader), done, steps)
        return SCALED, copy.deepcopy(steps.state_dict())
    where = next((name for name, part in rank.parts.items() if name != "dataset" and _stateful(part)), None)
    if where is not None:
        running = iter(rank.loader)  # held, as a loader may ask its iterator for the position
        rank.steps(running, done)
        return where, copy.deepcopy(rank.parts[where].state_dict())
    for where in ("batch_sampler", "the loader"):
        if where in rank.parts and _stateful(running := iter(rank.parts[where])):
            rank.steps(running, done)
            return f"the iterator of {where}", copy.deepcopy(running.state_dict())
    return None


def _taken_up(rank: _Rank, epoch: int, where: str, state: Any) -> Stream:
    """The rest of ``epoch`` in a loader that was built anew."""
    rank.set_epoch(epoch)
    if where == SCALED:
        scaled(rank.loader).load_state_dict(state)
        return rank.steps(iter(rank.loader))
    if where.startswith("the iterator of "):
        running = iter(rank.parts[where.removeprefix("the iterator of ")])
        running.load_state_dict(state)
        return rank.steps(running)
    rank.parts[where].load_state_dict(state)
    return rank.steps(iter(rank.loader))


def _gradient(streams: list[Stream]) -> str:
    """What the counts ask of a training loop."""
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
    """What all ranks ran in each step, as something to compare."""
    return [repr(parts) for parts in itertools.zip_longest(*streams)]


def _flat(streams: Iterable[Stream]) -> list[int]:
    return [id for stream in streams for ids in stream for id in ids]
