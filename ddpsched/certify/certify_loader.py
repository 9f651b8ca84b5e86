"""Somebody's data loader, asked what every rank would run: each sample once, in step, resumable?

All ranks are built in this one process, one after another, so nothing is trained and nothing is communicated. A
loader over a data set with positions is iterated as it is, only that the data set answers with the positions instead
of the samples.
"""

import contextlib
import copy
import itertools
import random
from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np
import torch
from torch.utils.data import DistributedSampler

from ddpsched.certify.certificate import Certificate, Check
from ddpsched.certify.loader_rank import Build, LoaderRank, Stream
from ddpsched.certify.stream_checks import exactly_once, resumption, same_counts
from ddpsched.errors import ConfigError, DataError
from ddpsched.functions import function_named
from ddpsched.integrations.scaled import scaled
from ddpsched.integrations.step_loader import StepLoader

EPOCHS = 2
NEW_ORDER = "new order every epoch"
SCALED = "ddpsched.scaled(loader)"
NO_STATE = "neither the loader nor its samplers can tell a position; torchdata's StatefulDataLoader can"


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


def certify_loader(target: str | Build, world_size: int) -> Certificate:
    """Ask the loaders of all ranks for two epochs, and again from the middle of each.

    ``target``: ``"module:function"``, or the function itself; ``function(rank, world_size)`` returns the rank's
    DataLoader, batch sampler, or (loader, ids); see ``loader_rank.HOW``. Raises ConfigError where it cannot be found or
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
        rank = LoaderRank(build, name, r, world_size)
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


def _once(epochs: list[list[Stream]], size: int, rank: LoaderRank) -> Check:
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


def _why_not_once(streams: list[Stream], size: int, rank: LoaderRank) -> str | None:
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
            rank = LoaderRank(build, name, r, world_size, workers=True)
            try:
                saved = _broken_off(rank, epoch, done)
            except (AttributeError, ConfigError) as error:  # a state that the loader cannot have after all
                says_so = f"state_dict raised {type(error).__name__}: {error}"
                return Check.not_made("resumption", says_so, NO_STATE)
            if saved is None:
                return Check.not_made("resumption", "no state_dict and load_state_dict", NO_STATE)
            where, state = saved
            try:
                resumed.append(_taken_up(LoaderRank(build, name, r, world_size, workers=True), epoch, where, state))
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


def _broken_off(rank: LoaderRank, epoch: int, done: int) -> tuple[str, Any] | None:
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


def _taken_up(rank: LoaderRank, epoch: int, where: str, state: Any) -> Stream:
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
