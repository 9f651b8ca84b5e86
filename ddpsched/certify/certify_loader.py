"""Certification of a data loader: each sample once, equal numbers of steps, resumable.

The loaders of all ranks are built in this one process, one after another, so nothing is trained and nothing is
communicated. A loader over a data set with positions is iterated as it is, except that the data set answers with the
positions instead of the samples.
"""

from __future__ import annotations

import copy
from collections.abc import Iterable, Iterator
from dataclasses import replace
from itertools import pairwise, zip_longest
from typing import Any

from torch.utils.data import DistributedSampler

from ddpsched.arguments import function_named
from ddpsched.certify.certificate import Certificate, Check
from ddpsched.certify.loader_rank import Build, LoaderRank, Stream
from ddpsched.certify.stream_checks import ANOTHER, exactly_once, resumption, same_counts
from ddpsched.errors import ConfigError, DataError
from ddpsched.integrations.scaled import scaled
from ddpsched.integrations.step_loader import StepLoader
from ddpsched.training.random_states import kept_random_states

EPOCHS = 3
NEW_ORDER = "new order every epoch"
SCALED = "ddpsched.scaled(loader)"
NO_STATE = "neither the loader nor its samplers can save a position; torchdata's StatefulDataLoader can"


def certify_loader(target: str | Build, world_size: int) -> Certificate:
    """Ask the loaders of all ranks for three epochs, and again from the start, the middle and the last step of each.

    ``target``: ``"module:function"``, or the function itself; ``function(rank, world_size)`` returns the rank's
    DataLoader, batch sampler, StepLoader, ``ddpsched.balanced(loader)``, or (loader, ids); see ``loader_rank.HOW``. The
    caller's random generators are left as they were. Raises ConfigError where it cannot be imported or ``world_size``
    is smaller than 1, and DataError where it fails or the samples of its batches are unknown.
    """
    if world_size < 1:
        raise ConfigError(f"world_size = {world_size}: at least 1 rank is needed")
    build, name = function_named(target, "loader") if isinstance(target, str) else (target, target.__name__)
    with kept_random_states():
        return _certificate(build, name, world_size)


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
        f"{world_size} ranks, {size:,} samples, {EPOCHS} epochs, every rank seeded alike",
        _gradient(first, ours is not None),
        "one plan: ranks of a process group compare theirs as they begin; here all are built in one process"
        if ours is not None
        else "one plan: not applicable, these ranks share none; what they must share is the number of steps",
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
    shares = [_flat([stream]) for stream in streams]
    if world_size > 1 and len(set(ids)) < len(ids) == size and all(len(set(each)) == len(each) for each in shares):
        return "each rank takes its share of another order: the seed, or set_epoch(e), differs between ranks"
    if getattr(rank.loader, "drop_last", False) and len(set(ids)) < size:
        return f"DataLoader(drop_last=True) leaves out the last, incomplete batch; {uneven}"
    return None


def _resumed(build: Build, name: str, epochs: list[list[Stream]]) -> Check:
    """Break each epoch off at several places, and continue it with loaders that are built anew."""
    check, reports = "resumption", []
    for epoch, done in _breaks(epochs):
        streams, resumed = epochs[epoch], []
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
            rest = [stream[done:] for stream in streams]
            if ANOTHER in cause and sorted(_flat(rest)) == sorted(_flat(resumed)):
                cause = "the same samples follow in another order: the state of a generator is not restored"
            elif ANOTHER in cause:
                cause = "other samples follow: the seed, or the epoch that set_epoch(e) named, is not restored"
            if where != "the loader" and rank.num_workers:
                cause += f"; a DataLoader with workers asks {where} for batches ahead of those it hands out"
            return replace(result, says=f"epoch {epoch}, by the state of {where}: {result.says}", cause=cause)
        reports.append(f"{epoch} {'at its start' if not done else f'after step {done - 1:,}'}")
    if not reports:
        return Check.not_made(check, "an epoch of fewer than two steps has no middle")
    says = f"by the state of {where}, the steps that follow are the uninterrupted ones: epoch {', '.join(reports)}"
    return Check(check, True, says)


def _breaks(epochs: list[list[Stream]]) -> Iterator[tuple[int, int]]:
    """Yield each epoch and how many of its steps run before it is broken off: none, half of them, all but one."""
    for epoch, streams in enumerate(epochs):
        steps = min(map(len, streams))
        if steps > 1:
            yield from ((epoch, done) for done in sorted({0, steps // 2, steps - 1}) if epoch or done)


def _broken_off(rank: LoaderRank, epoch: int, done: int) -> tuple[str, Any] | None:
    """Run ``done`` steps of ``epoch``; return what holds the position, by name, and its state."""
    for earlier in range(epoch):
        rank.set_epoch(earlier)
        rank.steps(iter(rank.loader))
    rank.set_epoch(epoch)
    for where, holder, iterator in _holders(rank):
        if done:
            running = iter(rank.loader) if iterator is None else iterator  # held, as a loader may ask it for the place
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


def _gradient(streams: list[Stream], ours: bool) -> str:
    """Return what the ranks' counts require of a training loop. ``ours``: of a loader that knows the scale."""
    for step, parts in enumerate(zip(*streams, strict=False)):
        counts = [len(part) for part in parts]
        if len(set(counts)) > 1:
            if ours:
                return (
                    f"gradient: not applicable, a loader has no loss; ranks run unequal counts ({counts} in "
                    f"step {step}), so multiply each batch's summed loss by its scale: loader.scale, or "
                    "ddpsched.scaled(loader)"
                )
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
