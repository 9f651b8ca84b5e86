"""balance: which rank runs which samples of a batch that exists already, and in which micro-batches."""

from __future__ import annotations

from collections.abc import Mapping
from numbers import Real
from typing import Any

import numpy as np
from pydantic import ValidationError

from ddpsched.costs.config import CostConfig, check_sum, cost_model
from ddpsched.costs.cost_model import CostModel, Int
from ddpsched.errors import ConfigError, InfeasibleError
from ddpsched.planning.one_batch.items import Items, groups_of, lengths_of
from ddpsched.planning.one_batch.levels import level_rows
from ddpsched.planning.one_batch.result import Balance
from ddpsched.planning.one_batch.rows import packed_rows
from ddpsched.planning.one_batch.spans import padded_spans
from ddpsched.planning.solvers.partition.lpt import spread
from ddpsched.planning.solvers.partition.rooms import spread_within
from ddpsched.table import first_fault

STAYS = ("rank", "microbatch")
SWAPS = 2  # a rank


def balance(
    lengths: Any,
    world_size: int,
    *,
    max_tokens: int | None = None,
    max_microbatches: int | None = None,
    groups: Any = None,
    alpha: float = 0,
    gamma: float = 0,
    cost: str | Mapping[str, Any] | CostModel | None = None,
    packed: bool = True,
    lockstep: bool = False,
    equal_counts: bool = False,
    groups_stay: str = "rank",
    stand_ins: bool = False,
) -> Balance:
    """Return a division of samples over ranks and micro-batches in which the costliest rank is cheap.

        parts = ddpsched.balance(lengths, world_size=8, max_tokens=16_384)
        for positions in ddpsched.micro_batches(ddp, parts.ranks[rank]):    # gradients meet in the last one
            (parts.sum_scale() * summed_loss(ddp, batch[positions])).backward()

        minimise  max_r sum_{m of rank r} cost(m),    cost(m) = alpha + sum_{i in m} (L_i + gamma L_i**2)

    A pure function: equal arguments give equal results on every rank, and nothing is communicated.

    ``lengths``: (B,) tokens of each sample; a list, array or tensor. ``world_size``: G ranks. ``packed``: micro-batches
    are rows without padding; else all samples of one cost as much as its longest.

    ``max_tokens``: of a micro-batch, its padding included. ``max_microbatches``: the most a rank may run; without it,
    as few as first fit finds within ``max_tokens``, 1 if that is not given either. ``alpha``: what a micro-batch costs
    by itself, in whole tokens. ``gamma``: of a token squared, for attention. ``cost``: in place of these two, a
    CostModel or as of BatchSampler, such as ``{"kind": "calibrated", "path": "device.json"}``.

    ``lockstep``: all ranks run their m-th micro-batches together, as where each gathers sharded parameters; then each
    has as many, and the step takes sum_m max_r cost(m, r).

    ``groups``: samples that stay together, such as the answers to one prompt: (B,) names, or lists of positions.
    ``groups_stay``: on one "rank", or in one "microbatch". ``equal_counts``: as many samples on each rank.
    ``stand_ins``: where samples (or groups) are too few for a micro-batch on each rank, or in lockstep for as many on
    each, the shortest sample stands in at weight 0; else that is refused. ``Balance.sum_scale`` then takes the rank.

    Source: longest processing time first (Graham 1969), with swaps; first fit decreasing for rows.

    Raises DataError for lengths or groups that are none, ConfigError for arguments that do not go together,
    InfeasibleError where a sample or a group is over ``max_tokens``, or ``max_microbatches`` are too few.

    >>> balance([5, 60, 7, 8, 30, 6, 9, 10], world_size=2)
    Balance of 8 samples: 2 ranks, 1 row each, makespan 68, 0.00% above the bound
      rank 0    ███████████████████████████████████████            67  2 samples
      rank 1    ████████████████████████████████████████           68  6 samples
    """
    given = lengths_of(lengths)
    model = _model(alpha, gamma, cost)
    _check(world_size, max_tokens, max_microbatches, groups_stay)
    for name, flag in (("packed", packed), ("lockstep", lockstep), ("equal_counts", equal_counts)):
        _check_flag(name, flag)
    _check_flag("stand_ins", stand_ins)
    world_size = int(world_size)
    max_tokens = None if max_tokens is None else int(max_tokens)
    max_microbatches = None if max_microbatches is None else int(max_microbatches)
    check_sum(model, given)
    group, names = groups_of(groups, len(given)) or (None, [])
    together = Items(given, model, group)  # what stays on one rank
    inner = together if groups_stay == "microbatch" else Items(given, model)  # what stays in one micro-batch
    _check_fit(inner, names, max_tokens, packed)
    _check_counts(together, world_size, equal_counts, stand_ins)
    if lockstep:
        _check_lockstep(groups, groups_stay, equal_counts)
        levels = level_rows(inner, world_size, max_tokens, max_microbatches, packed, stand_ins)
        return _result(*levels, given, model, packed, True)
    members = _members(together, world_size, equal_counts)
    free = group is None and not equal_counts
    if packed:
        ranks, bound = packed_rows(together, inner, members, max_tokens, max_microbatches, free)
    else:
        ranks, bound = padded_spans(together, inner, members, max_tokens, max_microbatches, free, equal_counts)
    return _result(ranks, bound, given, model, packed, False)


def _model(alpha: float, gamma: float, cost: str | Mapping[str, Any] | CostModel | None) -> CostModel:
    if cost is None:
        for name, value in (("alpha", alpha), ("gamma", gamma)):
            if not (isinstance(value, Real) and not isinstance(value, bool) and 0 <= value < 2**40):
                raise ConfigError(f"balance: {name} = {value!r}, needs a number from 0 to 2**40, in tokens")
        return CostModel(float(alpha), 1, float(gamma), scale=1)
    if (alpha, gamma) != (0, 0):
        raise ConfigError(
            f"balance: alpha = {alpha} and gamma = {gamma} are of a cost in tokens, but cost is given; leave them out"
        )
    if not isinstance(cost, CostModel):
        if not isinstance(cost, str | Mapping):
            raise ConfigError(
                f"balance: cost = {cost!r}, needs a CostModel, the name of a cost, or a table such as "
                '{"kind": "calibrated", "path": "device.json"}'
            )
        try:
            cost = cost_model(CostConfig.model_validate({"kind": cost} if isinstance(cost, str) else dict(cost)))
        except ValidationError as error:
            fault = first_fault(error).removeprefix("the whole = ")
            raise ConfigError(f"balance: cost: {fault}") from None
    if not cost.linear:
        raise ConfigError(
            "balance: a squared cost does not add up over micro-batches; give gamma=, or a calibrated cost"
        )
    return cost


def _check(world_size: int, max_tokens: int | None, max_microbatches: int | None, groups_stay: str) -> None:
    for name, value in (("world_size", world_size), ("max_tokens", max_tokens), ("max_microbatches", max_microbatches)):
        if value is None and name != "world_size":
            continue
        if isinstance(value, bool) or not isinstance(value, int | np.integer) or not 1 <= value <= 2**40:
            raise ConfigError(f"balance: {name} = {value!r}, needs an integer from 1 to 2**40")
    if groups_stay not in STAYS:
        raise ConfigError(f"balance: groups_stay = {groups_stay!r} is none of {', '.join(map(repr, STAYS))}")


def _check_flag(name: str, flag: object) -> None:
    if not isinstance(flag, bool | np.bool_):
        raise ConfigError(f"balance: {name} = {flag!r}, needs True or False")


def _check_fit(items: Items, names: list[str], max_tokens: int | None, packed: bool) -> None:
    needs = items.tokens if packed else items.counts * items.longest
    if max_tokens is not None and needs.max() > max_tokens:
        where = int(needs.argmax())
        what = f"sample {where}" if items.group is None else names[where]
        remedy = "cut it" if items.group is None else "let it stay on a rank (groups_stay='rank'), cut its samples"
        raise InfeasibleError(
            f"balance: {what} has {needs[where]} tokens, but max_tokens = {max_tokens}; {remedy}, or raise "
            f"max_tokens to {needs[where]}"
        )


def _check_counts(items: Items, world_size: int, equal_counts: bool, stand_ins: bool) -> None:
    size, what = len(items), "samples" if items.group is None else "groups"
    if size < world_size and not stand_ins:
        raise InfeasibleError(
            f"balance: {size} {what} for {world_size} ranks, so a rank would have none, and others would wait for it; "
            f"give stand_ins=True, by which it runs the shortest sample at weight 0, or at most {size} ranks"
        )
    if equal_counts and len(items.lengths) % world_size:
        raise InfeasibleError(
            f"balance: equal_counts, but {len(items.lengths)} samples are no multiple of {world_size} ranks; give "
            f"{-(-len(items.lengths) // world_size) * world_size}, or leave equal_counts out"
        )


def _members(items: Items, world_size: int, equal_counts: bool) -> list[list[int]]:
    """Return the items of each rank."""
    if not equal_counts:
        return spread(items.costs, world_size, swaps=SWAPS * world_size)[0]
    count = len(items.lengths) // world_size
    members = spread_within(items.costs, items.counts, world_size, count)
    if members is None:
        raise InfeasibleError(
            f"balance: no division of groups of {items.counts.min()} to {items.counts.max()} samples was found that "
            f"gives each rank {count}; leave equal_counts out, or give groups of equal size"
        )
    return members


def _check_lockstep(groups: Any, groups_stay: str, equal_counts: bool) -> None:
    if groups is not None and groups_stay == "rank":
        raise ConfigError(
            "balance: lockstep with groups that stay on a rank is not planned; give groups_stay='microbatch', or leave "
            "groups out"
        )
    if equal_counts:
        raise ConfigError(
            "balance: lockstep gives ranks equal numbers of micro-batches, not of samples; leave equal_counts out"
        )


def _result(ranks: list[list[Int]], bound: int, lengths: Int, cost: CostModel, packed: bool, lockstep: bool) -> Balance:
    shortest = np.array([lengths.argmin()], dtype=np.int64)
    needed = max(map(len, ranks)) if lockstep else 1  # of each rank
    stand_ins = frozenset((r, m) for r, micros in enumerate(ranks) for m in range(len(micros), needed))
    filled = [micros + [shortest] * (needed - len(micros)) for micros in ranks]
    order = np.concatenate([micro for micros in filled for micro in micros])
    sizes = [[len(micro) for micro in micros] for micros in filled]
    by_rank = cost.price_microbatches(lengths[order], sizes, packed)
    costs = np.array([sum(rank) for rank in by_rank], dtype=np.int64)
    makespan = sum(map(max, zip(*by_rank, strict=True))) if lockstep else int(costs.max())
    assert bound <= makespan, f"bound {bound} of a makespan of {makespan}"
    return Balance(tuple(map(tuple, filled)), lengths, costs, makespan, max(1, bound), packed, lockstep, stand_ins)
