"""Checks of what all ranks ran: sample ids, plan digests and counts of collectives in, a ``Check`` out.

``streams[r][s]``: (count,) ids that rank r ran in step s of one epoch. ``digests[r][s]``: an integer that stands for
the plan of step s as rank r holds it; equal plans have equal digests.
"""

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from itertools import zip_longest
from typing import Any

import numpy as np
import numpy.typing as npt

from ddpsched.certify.certificate import Check, count_of_ranks, first_few, ranks_named
from ddpsched.step_plan import Ids

ANOTHER = "the resumed stream is another one"
Streams = Sequence[Sequence[npt.ArrayLike]]
Digests = Sequence[Sequence[int]]


def exactly_once(streams: Streams, expected: int | npt.ArrayLike) -> Check:
    """Check that every sample of the epoch runs once, on one rank.

    ``expected``: the ids, or N for the ids 0 .. N - 1.

    >>> exactly_once([[[0, 1], [4]], [[2], [3]]], 5).says
    '5 samples in 2 steps on 2 ranks, each run once'
    """
    ids, ranks, steps = _runs(streams)
    wanted = np.arange(expected) if isinstance(expected, int) else np.unique(np.asarray(expected, dtype=np.int64))
    values, counts = np.unique(ids, return_counts=True)
    missing, strange = np.setdiff1d(wanted, values), np.setdiff1d(values, wanted)
    repeated = values[counts > 1]
    name, length = "every sample once", max(map(len, streams), default=0)
    if not (len(missing) or len(strange) or len(repeated)):
        on = count_of_ranks(len(streams))
        return Check(name, True, f"{len(wanted):,} samples in {length:,} steps on {on}, each run once")
    says = [f"{len(wanted):,} samples, {len(ids):,} runs of them"]
    if len(repeated):
        first = [f"{id} ({_places(steps[ids == id], ranks[ids == id])})" for id in repeated[:3].tolist()]
        says.append(f"{len(repeated):,} ran more than once: {first_few([*first, *repeated[3:]], len(first))}")
    if len(missing):
        says.append(f"{len(missing):,} never ran: {first_few(missing)}")
    if len(strange):
        says.append(f"{len(strange):,} are no samples of this epoch: {first_few(strange)}")
    cause = None
    if len(repeated):
        at_end = steps[np.isin(ids, repeated)].max() == steps.max()
        cause = _why_repeated(streams, missing, repeated, steps, bool(at_end))
    elif len(missing):
        cause = _why_missing(len(streams), len(wanted), missing, np.bincount(steps, minlength=length))
    return Check(name, False, "; ".join(says), cause)


def agreement(digests: Digests, streams: Streams) -> Check:
    """Check that all ranks hold the same plan for each step, and that no sample is on two ranks in it."""
    name, rows = "one plan", list(zip(*digests, strict=False))
    for step, row in enumerate(rows):
        if len(set(row)) > 1:
            return Check(name, False, *_disagreement(digests, step, row))
    for step, parts in enumerate(zip(*streams, strict=False)):
        ids, ranks, _ = _runs([[part] for part in parts])
        values, counts = np.unique(ids, return_counts=True)
        shared = values[counts > 1]
        if len(shared):
            both = np.unique(ranks[ids == shared[0]]).tolist()
            where = f"{ranks_named(both)} {'both run' if len(both) == 2 else 'run'}" if len(both) > 1 else "a rank runs"
            says = f"step {step}: all hold the same plan, yet {where} sample {first_few(shared)}"
            return Check(name, False, says, "each rank takes its samples from its own list, not from the common plan")
    if len({len(each) for each in digests}) > 1:
        return Check(name, False, same_counts(digests).says, "the ranks' plans end at different steps")
    if not rows:
        return Check.not_made(name, "no rank reported a plan")
    return Check(name, True, f"the same on {count_of_ranks(len(digests))} in each of {len(rows):,} steps (by digest)")


def same_counts(streams: Sequence[Sequence[Any]]) -> Check:
    """Check that every rank makes the same number of steps.

    >>> same_counts([[1, 2, 3], [1, 2]]).says
    'rank 1 made 2 steps, rank 0 3'
    """
    name, lengths = "same number of steps", [len(each) for each in streams]
    least = min(lengths)
    short = ranks_named(rank for rank, length in enumerate(lengths) if length == least)
    rest = [rank for rank, length in enumerate(lengths) if length > least]
    if not rest:
        return Check(name, True, f"{least:,} steps on each of {count_of_ranks(len(lengths))}")
    says = f"{short} made {least:,} steps, " + ", ".join(f"rank {rank} {lengths[rank]:,}" for rank in rest)
    cause = f"{short} got fewer batches; in step {least} {ranks_named(rest)} would wait for a gradient in vain"
    return Check(name, False, says, cause)


def same_collectives(counts: Sequence[Mapping[str, int | None]], waited: Collection[int] = ()) -> Check:
    """Check that every rank takes part in the same number of collectives in each phase of the work.

    ``counts[r]``: the collectives of rank r by phase, in order. A rank that failed in a collective has counted it. None
    stands for a rank that destroyed its process groups in that phase. ``waited``: ranks that failed while they waited
    in a collective.

    >>> check = same_collectives([{"step 0": 4}, {"step 0": 3}], waited=[0])
    >>> check.says, check.cause
    ('step 0: rank 1 did 3 collectives, rank 0 did 4', 'rank 1 is short of one; rank 0 waited in vain')
    """
    name = "same collectives"
    phases = list(dict.fromkeys(phase for by_phase in counts for phase in by_phase))
    for phase in phases:
        reported = {rank: by_phase[phase] for rank, by_phase in enumerate(counts) if phase in by_phase}
        made = {rank: count for rank, count in reported.items() if count is not None}
        if len(made) < len(reported):
            cause = "leave destroy_process_group() to the caller: it deletes the count of collectives"
            gone = ranks_named(reported.keys() - made.keys())
            return Check.not_made(name, f"{gone} destroyed the process group in {phase}", cause)
        if len(set(made.values())) > 1:
            return Check(name, False, *_uneven(phase, made, waited))
    for phase in phases:
        absent = [rank for rank, by_phase in enumerate(counts) if phase not in by_phase]
        if absent:
            says = f"{ranks_named(absent)} did not reach {phase}, the others did"
            return Check(name, False, says, "it stopped before that")
    if not phases:
        return Check.not_made(name, "no collective was counted")
    each = first_few(f"{phase}: {counts[0][phase]:,}" for phase in phases)
    return Check(name, True, f"the same number on each of {count_of_ranks(len(counts))} ({each})")


def resumption(whole: Sequence[Any], resumed: Sequence[Any], at: int) -> Check:
    """Check that a stream resumed after step ``at``, or at its start, -1, continues as the uninterrupted one did.

    ``whole``: the digest, or the ids, of every step of an uninterrupted run; ``resumed``: those of the resumed run.
    """
    name = "resumption"
    before, after = [_key(each) for each in whole], [_key(each) for each in resumed]
    rest, place = before[at + 1 :], f"after step {at:,}" if at >= 0 else "at its start"
    if not rest:
        return Check.not_made(name, f"no step follows step {at}, after which it was resumed")
    if after == rest:
        return Check(name, True, f"resumed {place}, the next {len(rest):,} steps are the uninterrupted ones")
    first = next((i for i, (one, other) in enumerate(zip(rest, after, strict=False)) if one != other), None)
    if first is None:
        says = f"resumed {place}, {len(after):,} steps followed where {len(rest):,} did without interruption"
        return Check(name, False, says, "the saved position does not say where the stream ends")
    says = f"resumed {place}, step {at + 1 + first} is not the one that followed without interruption"
    return Check(name, False, says, _why_not_resumed(before, after, at))


def _why_not_resumed(before: list[Any], after: list[Any], at: int) -> str:
    """Return the cause, from the place in the uninterrupted stream where the resumed one begins."""
    if after[0] not in before:
        return f"{ANOTHER}: another order or seed, or a state that leaves something out"
    where = before.index(after[0])
    if where == 0:
        return "it starts over at the first step: the position is not restored, so samples run twice and others never"
    if where <= at:
        return f"it goes back to step {where} and repeats {at + 1 - where} step(s)"
    if where > at + 1:
        return f"it skips {where - at - 1} step(s)"
    return "it begins correctly and then leaves the stream: part of the state is not restored"


def _disagreement(digests: Digests, step: int, row: tuple[int, ...]) -> tuple[str, str]:
    """Return what differs in the first step whose digests differ, and the cause."""
    for rank, digest in enumerate(row):
        others = [each for other, each in enumerate(digests) if other != rank]
        earlier = [t for t in range(step) if all(each[t] == digest for each in others)]
        if earlier:
            odd, cause = [rank], f"rank {rank} holds a stale plan: that of step {earlier[-1]}"
            break
    else:
        ((common, votes),) = Counter(row).most_common(1)
        if 2 * votes <= len(row):
            groups = [ranks_named(r for r, d in enumerate(row) if d == digest) for digest in dict.fromkeys(row)]
            says = f"step {step}: {' and '.join(groups)} hold different plans; which is right cannot be determined"
            return says, "the ranks planned from different configs, data, seeds or versions"
        odd = [rank for rank, digest in enumerate(row) if digest != common]
        cause = f"{ranks_named(odd)} planned from another config, other data or another version"
    rest = ranks_named(rank for rank in range(len(row)) if rank not in odd)
    return f"step {step}: {ranks_named(odd)} {'holds' if len(odd) == 1 else 'hold'} another plan than {rest}", cause


def _uneven(phase: str, made: Mapping[int, int], waited: Collection[int]) -> tuple[str, str]:
    """Return which ranks did more or fewer collectives, and which waited for them."""
    ((common, votes),) = Counter(made.values()).most_common(1)
    usual = common if 2 * votes > len(made) else max(made.values())
    odd = [rank for rank, count in made.items() if count != usual]
    others = [rank for rank in made if rank not in odd]
    each = " and ".join(f"rank {rank} did {made[rank]:,}" for rank in odd)
    causes = []
    for rank in odd:
        apart = usual - made[rank]
        count = "one" if abs(apart) == 1 else f"{abs(apart):,}"
        causes.append(f"rank {rank} is short of {count}" if apart > 0 else f"rank {rank} did {count} too many")
    blocked = [rank for rank in waited if (rank in others) == (made[odd[0]] < usual)]
    if blocked:
        causes.append(f"{ranks_named(blocked)} waited in vain")
    return f"{phase}: {each} collectives, {ranks_named(others)} did {usual:,}", "; ".join(causes)


def _why_repeated(streams: Streams, missing: Ids, repeated: Ids, steps: Ids, at_end: bool) -> str:
    """Return the pattern behind repeated samples. ``at_end``: one of them runs in the epoch's last step."""
    seen: dict[bytes, tuple[int, int]] = {}  # rank and step of each list of samples
    for step, parts in enumerate(zip_longest(*streams, fillvalue=())):
        for rank, part in enumerate(parts):
            ids = np.sort(_ids(part))
            if not len(ids):
                continue
            first, then = seen.setdefault(ids.tobytes(), (rank, step))
            if then == step and first != rank:
                return f"ranks {first}, {rank} run the same samples in step {step}: they are not divided over ranks"
            if (first, then) != (rank, step) and len(ids) > 1:
                earlier = "it" if first == rank else f"rank {first}"
                return f"rank {rank} runs in step {step} what {earlier} had run in step {then}: a stale plan or batch"
    if not len(missing) and at_end and len(repeated) < np.bincount(steps).max():
        return "the end of the epoch was filled up with samples that had run, so that ranks get equally many"
    if len(repeated) == len(missing):
        return "samples were run in place of others: the plan, or the loader that follows it, is wrong there"
    return "the order that samples are drawn from holds them more than once"


def _why_missing(world_size: int, num_samples: int, missing: Ids, sizes: Ids) -> str:
    """Return the pattern behind missing samples. ``sizes``: (num_steps,) samples of each step over all ranks."""
    if len(set(sizes)) == 1 and len(missing) < sizes[0] and len(missing) == num_samples % sizes[0]:
        return "the last, incomplete batch of the epoch was dropped (drop_last)"
    if world_size > 1 and abs(sizes.sum() / num_samples * world_size - 1) < 0.02:
        return f"each rank's share was divided over the {world_size} ranks once more: a sampler sharded twice"
    return "the plan, or the loader that follows it, leaves them out"


def _runs(streams: Streams) -> npt.NDArray[np.int64]:
    """Return (3, num_runs): id, rank and step of every run of a sample."""
    columns = [np.empty((3, 0), dtype=np.int64)]
    for rank, steps in enumerate(streams):
        columns += [np.stack(np.broadcast_arrays(_ids(part), rank, step)) for step, part in enumerate(steps)]
    return np.concatenate(columns, axis=1)


def _places(steps: Ids, ranks: Ids) -> str:
    (step, rank), *again = sorted(zip(steps.tolist(), ranks.tolist(), strict=True))
    return f"step {step} on rank {rank}, {first_few((f'then step {s} on rank {r}' for s, r in again), 2)}"


def _ids(part: npt.ArrayLike) -> Ids:
    return np.asarray(part, dtype=np.int64).reshape(-1)


def _key(step: Any) -> Any:
    """Return a value to compare: a digest as it is, ids sorted."""
    return step if isinstance(step, int | str | bytes) else tuple(np.sort(_ids(step)).tolist())
