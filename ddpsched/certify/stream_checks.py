"""Checks of what ranks ran: streams of sample ids, digests of plans, counts of collectives. Values in, a check out.

``streams[r][s]``: (count,) ids that rank r ran in step s of one epoch; ``digests[r][s]``: what rank r took the plan
of all ranks for, as a number that is equal where plans are.
"""

from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt

from ddpsched.certify.certificate import Check, count_of_ranks, numbered, ranks_named
from ddpsched.plan import Ids

Streams = Sequence[Sequence[npt.ArrayLike]]
Digests = Sequence[Sequence[int]]


def exactly_once(streams: Streams, expected: int | npt.ArrayLike) -> Check:
    """Every sample of the epoch runs once, on one rank. ``expected``: N for the ids 0 .. N - 1, or the ids."""
    ids, ranks, steps = _flat(streams)
    wanted = np.arange(expected) if isinstance(expected, int) else np.unique(np.asarray(expected, dtype=np.int64))
    values, counts = np.unique(ids, return_counts=True)
    missing, strange = np.setdiff1d(wanted, values), np.setdiff1d(values, wanted)
    repeated = values[counts > 1]
    name = "every sample once"
    if not (len(missing) or len(strange) or len(repeated)):
        length, on = max(map(len, streams), default=0), count_of_ranks(len(streams))
        return Check(name, True, f"{len(wanted):,} samples in {length:,} steps on {on}, each run once")
    says = [f"{len(wanted):,} samples, {len(ids):,} runs of them"]
    if len(repeated):
        told = [f"{each} ({_where(ids, ranks, steps, each)})" for each in repeated[:3].tolist()]
        says.append(f"{len(repeated):,} ran more than once: {numbered([*told, *repeated[3:]], len(told))}")
    if len(missing):
        says.append(f"{len(missing):,} never ran: {numbered(missing)}")
    if len(strange):
        says.append(f"{len(strange):,} are no samples of this epoch: {numbered(strange)}")
    return Check(name, False, "; ".join(says), _why_not_once(streams, len(wanted), missing, repeated, (ids, steps)))


def agreement(digests: Digests, streams: Streams) -> Check:
    """All ranks take the same plan for each step, and no sample is on two ranks in it."""
    name, found = "one plan", list(zip(*digests, strict=False))
    for step, row in enumerate(found):
        if len(set(row)) > 1:
            return Check(name, False, *_disagreement(digests, step, row))
    for step, parts in enumerate(zip(*streams, strict=False)):
        flat = np.concatenate([_ids(part) for part in parts])
        own = np.concatenate([np.full(len(_ids(part)), rank) for rank, part in enumerate(parts)])
        values, counts = np.unique(flat, return_counts=True)
        if (counts > 1).any():
            shared = values[counts > 1]
            both = np.unique(own[flat == shared[0]]).tolist()
            where = f"{ranks_named(both)} {'both run' if len(both) == 2 else 'run'}" if len(both) > 1 else "a rank runs"
            return Check(
                name,
                False,
                f"step {step}: all hold the same plan, yet {where} sample {numbered(shared)}",
                "each rank takes its samples from a list of its own, not from the common plan",
            )
    if len({len(each) for each in digests}) > 1:
        return Check(name, False, same_counts(digests).says, "the ranks' plans end at different steps")
    if not found:
        return Check.not_made(name, "no rank told of a plan")
    return Check(name, True, f"the same on {count_of_ranks(len(digests))} in each of {len(found):,} steps (by digest)")


def same_counts(streams: Sequence[Sequence[Any]]) -> Check:
    """Every rank makes the same number of steps."""
    name, lengths = "same number of steps", [len(each) for each in streams]
    if len(set(lengths)) == 1:
        return Check(name, True, f"{lengths[0]:,} steps on each of {count_of_ranks(len(lengths))}")
    least = min(lengths)
    short = [rank for rank, length in enumerate(lengths) if length == least]
    rest = [rank for rank, length in enumerate(lengths) if length > least]
    says = f"{ranks_named(short)} made {least:,} steps, " + ", ".join(f"rank {rank} {lengths[rank]:,}" for rank in rest)
    cause = (
        f"{ranks_named(short)} got fewer batches; in step {least} {ranks_named(rest)} would wait for a gradient in vain"
    )
    return Check(name, False, says, cause)


def same_collectives(counts: Sequence[Mapping[str, int | None]], waited: Collection[int] = ()) -> Check:
    """Every rank takes part in the same number of collectives in each stretch of the work.

    ``counts[r]``: collectives of rank r by the stretch's name, in order; a rank that failed in one has counted it, and
    None is of one that destroyed its process groups in it.
    ``waited``: ranks that failed waiting in a collective.
    """
    name = "same collectives"
    stretches = list(dict.fromkeys(stretch for own in counts for stretch in own))
    for stretch in stretches:
        told = {rank: own[stretch] for rank, own in enumerate(counts) if stretch in own}
        made = {rank: count for rank, count in told.items() if count is not None}
        gone = sorted(set(told) - set(made))
        if gone:
            cause = "leave destroy_process_group() to the caller: it takes the count of collectives with it"
            return Check.not_made(name, f"{ranks_named(gone)} destroyed the process group in {stretch}", cause)
        if len(set(made.values())) > 1:
            return Check(name, False, *_uneven(stretch, made, waited))
    partial = [stretch for stretch in stretches if any(stretch not in own for own in counts)]
    if partial:
        absent = [rank for rank, own in enumerate(counts) if partial[0] not in own]
        return Check(
            name, False, f"{ranks_named(absent)} did not come to {partial[0]}, the others did", "it broke off before"
        )
    if not stretches:
        return Check.not_made(name, "no collective was counted")
    each = [f"{stretch}: {counts[0][stretch]:,}" for stretch in stretches]
    return Check(name, True, f"the same number on each of {count_of_ranks(len(counts))} ({numbered(each)})")


def resumption(whole: Sequence[Any], resumed: Sequence[Any], at: int) -> Check:
    """A stream resumed after step ``at`` goes on as the uninterrupted one did.

    ``whole``: every step's digest, or ids, of a run that was not interrupted; ``resumed``: those of the resumed one.
    """
    name = "resumption"
    before, after = [_key(each) for each in whole], [_key(each) for each in resumed]
    rest = before[at + 1 :]
    if after == rest and rest:
        return Check(name, True, f"resumed after step {at:,}, the next {len(rest):,} steps are the uninterrupted ones")
    if not rest:
        return Check.not_made(name, f"no step follows step {at}, after which it was resumed")
    first = next((i for i, pair in enumerate(zip(rest, after, strict=False)) if len(set(pair)) > 1), None)
    if first is None:
        says = f"resumed after step {at}, {len(after):,} steps followed where {len(rest):,} did without interruption"
        return Check(name, False, says, "the position does not know where the stream ends")
    says = f"resumed after step {at}, step {at + 1 + first} is not the one that followed without interruption"
    return Check(name, False, says, _why_not_resumed(before, after, at))


def _why_not_resumed(before: list[Any], after: list[Any], at: int) -> str:
    """Where in the uninterrupted stream the resumed one begins."""
    where = next((step for step, key in enumerate(before) if key == after[0]), None)
    if where is None:
        return "the resumed stream is another one: another order or seed, or a state that leaves something out"
    if where == 0:
        return "it begins anew at the first step: the position is not restored, so samples run twice and others never"
    if where <= at:
        return f"it goes back to step {where} and repeats {at + 1 - where} step(s)"
    if where > at + 1:
        return f"it skips {where - at - 1} step(s)"
    return "it begins rightly and then leaves the stream: part of the state is not restored"


def _disagreement(digests: Digests, step: int, row: tuple[int, ...]) -> tuple[str, str]:
    """What to say of the first step in which digests differ, and why."""
    for rank, digest in enumerate(row):
        others = [own for other, own in enumerate(digests) if other != rank]
        earlier = [t for t in range(step) if all(own[t] == digest for own in others)]
        if earlier:
            says = f"step {step}: rank {rank} holds another plan than {_rest(len(row), [rank])}"
            return says, f"rank {rank} holds a stale plan: that of step {earlier[-1]}"
    (common, votes), *_ = Counter(row).most_common(1)
    if 2 * votes > len(row):
        odd = [rank for rank, digest in enumerate(row) if digest != common]
        verb = "holds" if len(odd) == 1 else "hold"
        says = f"step {step}: {ranks_named(odd)} {verb} another plan than {_rest(len(row), odd)}"
        return says, f"{ranks_named(odd)} planned from another config, other data or another version"
    groups = [ranks_named(r for r, d in enumerate(row) if d == digest) for digest in dict.fromkeys(row)]
    says = f"step {step}: {' and '.join(groups)} hold different plans; which is right cannot be told"
    return says, "the ranks planned from different configs, data, seeds or versions"


def _rest(size: int, odd: Collection[int]) -> str:
    return ranks_named(rank for rank in range(size) if rank not in odd)


def _uneven(stretch: str, made: Mapping[int, int], waited: Collection[int]) -> tuple[str, str]:
    """Who did fewer collectives, and who waited for it."""
    (common, votes), *_ = Counter(made.values()).most_common()
    most = max(made.values())
    usual = common if 2 * votes > len(made) else most
    odd = [rank for rank, count in made.items() if count != usual]
    others = [rank for rank in made if rank not in odd]
    told = " and ".join(f"rank {rank} did {made[rank]:,}" for rank in odd)
    says = f"{stretch}: {told} collectives, {ranks_named(others)} did {usual:,}"
    causes = []
    for rank in odd:
        apart = usual - made[rank]
        count = "one" if abs(apart) == 1 else f"{abs(apart):,}"
        causes.append(f"rank {rank} is short of {count}" if apart > 0 else f"rank {rank} did {count} too many")
    vain = [rank for rank in waited if (rank in others) == (made[odd[0]] < usual)]
    if vain:
        causes.append(f"{ranks_named(vain)} waited in vain")
    return says, "; ".join(causes)


def _why_not_once(streams: Streams, num_samples: int, missing: Ids, repeated: Ids, runs: tuple[Ids, Ids]) -> str | None:
    """The pattern behind repeated and missing samples, where there is one."""
    ids, steps = runs
    world_size = len(streams)
    if len(repeated):
        twin = _twin(streams)
        if twin is not None:
            return twin
        again = np.isin(ids, repeated)
        if not len(missing) and len(repeated) < max(_sizes(streams)) and (steps[again].max() == steps.max()):
            return "the end of the epoch was filled up with samples that had run, so that ranks get equally many"
        if len(repeated) == len(missing):
            return "samples were run in place of others: the plan, or the loader that follows it, is wrong there"
        return "the order that samples are drawn from holds them more than once"
    if not len(missing):
        return None
    sizes = _sizes(streams)
    if len(set(sizes)) == 1 and 0 < len(missing) < sizes[0] and len(missing) == num_samples % sizes[0]:
        return "the last, incomplete batch of the epoch was dropped (drop_last)"
    share = len(ids) / num_samples
    if world_size > 1 and abs(share * world_size - 1) < 0.02:
        return f"each rank's share was divided over the {world_size} ranks once more: a sampler sharded twice"
    return "the plan, or the loader that follows it, leaves them out"


def _twin(streams: Streams) -> str | None:
    """The first two stretches of work that are the same samples."""
    seen: dict[bytes, tuple[int, int]] = {}
    for step in range(max(map(len, streams), default=0)):
        for rank, own in enumerate(streams):
            ids = np.sort(_ids(own[step])) if step < len(own) else np.empty(0, dtype=np.int64)
            if not len(ids):
                continue
            first = seen.setdefault(ids.tobytes(), (rank, step))
            if first[1] == step and first[0] != rank:
                return f"ranks {first[0]}, {rank} run the same samples in step {step}: they are not divided over ranks"
            if first != (rank, step) and len(ids) > 1:
                then = "it" if first[0] == rank else f"rank {first[0]}"
                return f"rank {rank} runs in step {step} what {then} had run in step {first[1]}: a stale plan or batch"
    return None


def _sizes(streams: Streams) -> list[int]:
    """Samples of each step over all ranks."""
    length = max(map(len, streams), default=0)
    return [sum(len(_ids(own[step])) for own in streams if step < len(own)) for step in range(length)]


def _flat(streams: Streams) -> tuple[Ids, Ids, Ids]:
    """Of every run of a sample: its id, rank and step."""
    parts = [(_ids(part), rank, step) for rank, own in enumerate(streams) for step, part in enumerate(own)]
    empty = np.empty(0, dtype=np.int64)

    def joined(column: Callable[[tuple[Ids, int, int]], Ids]) -> Ids:
        return np.concatenate([empty, *map(column, parts)])

    return (
        joined(lambda part: part[0]),
        joined(lambda part: np.full(len(part[0]), part[1])),
        joined(lambda part: np.full(len(part[0]), part[2])),
    )


def _where(ids: Ids, ranks: Ids, steps: Ids, wanted: int) -> str:
    places = sorted(zip(steps[ids == wanted].tolist(), ranks[ids == wanted].tolist(), strict=True))
    again = [f"then step {step} on rank {rank}" for _, (step, rank) in pairwise(places)]
    return f"step {places[0][0]} on rank {places[0][1]}, {numbered(again, 2)}"


def _ids(part: npt.ArrayLike) -> Ids:
    return np.asarray(part, dtype=np.int64).reshape(-1)


def _key(step: Any) -> Any:
    """Something to compare: a digest as it is, ids as a set in order."""
    return step if isinstance(step, int | str | bytes) else tuple(np.sort(_ids(step)).tolist())
