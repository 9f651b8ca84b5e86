"""Micro-batches that all ranks run together: as many on each rank, and each as long as the slowest rank's."""

from ddpsched.costs.cost_model import Int
from ddpsched.errors import ConfigError, InfeasibleError
from ddpsched.planning.one_batch.items import Items
from ddpsched.planning.one_batch.rows import first_fit
from ddpsched.planning.solvers.partition.lockstep import Levels, fill_levels, padded_levels
from ddpsched.planning.solvers.partition.several import fewest_microbatches, lower_bound, usable
from ddpsched.planning.solvers.partition.sorted_batch import Line, line_of

MORE = 8  # levels tried above the fewest that the tokens need, before they are given up


def level_rows(
    items: Items, world_size: int, max_tokens: int | None, most: int | None, packed: bool, stand_ins: bool
) -> tuple[list[list[Int]], int]:
    """Return each rank's micro-batches, as positions of samples, and the lower bound of the sum of the slowest.

    ``items``: what stays in one micro-batch. ``most``: micro-batches of a rank; without it as few as can be.
    ``stand_ins``: where items are too few for as many on each rank, the last ranks may have one less. Raises
    InfeasibleError where no such number holds the items within ``max_tokens``, ConfigError for groups with padding.
    """
    line: Line | None = None
    if packed:
        fewest = 1 if max_tokens is None else -(-int(items.tokens.sum()) // (max_tokens * world_size))
    elif items.group is not None:
        raise ConfigError("balance: lockstep with groups is planned for rows without padding; leave packed=False out")
    else:
        limit = None if max_tokens is None else lambda lengths: max_tokens // lengths
        line = line_of(items.lengths, items.cost, limit)
        fewest = fewest_microbatches(line, world_size)
    best: tuple[int, Levels] | None = None
    for count in range(fewest, (fewest + MORE if most is None else most) + 1):
        if count * world_size > len(items):
            break
        if packed:
            levels = fill_levels(items.costs, items.tokens, world_size, count, max_tokens)
        else:
            assert line is not None
            spans = padded_levels(line, world_size, count)
            parts = [] if spans is None else [[line.order[a:b].tolist() for a, b in level] for level in spans]
            levels = parts or None
        if levels is None:
            continue
        cost = sum(max(_cost(items, part, packed) for part in level) for level in levels)
        if best is None or cost < best[0]:
            best = cost, levels
        if most is None:
            break
    if best is None:
        ranks = _dealt(items, world_size, max_tokens, most, line)
        _check(items, ranks, max_tokens, most, stand_ins)
    else:
        ranks = [[items.positions(level[rank]) for level in best[1]] for rank in range(world_size)]
    if line is None:
        bound = -(-int(items.costs.sum()) // world_size) + items.cost.fixed * fewest
        return ranks, max(bound, int(items.costs.max()) + items.cost.fixed)
    return ranks, lower_bound(line, world_size, usable(line, world_size, max(map(len, ranks))))


def _dealt(
    items: Items, world_size: int, max_tokens: int | None, most: int | None, line: Line | None
) -> list[list[Int]]:
    """Return each rank's micro-batches, filled first and then dealt: the last ranks may have one less.

    ``line``: of padded ones. They are dealt by falling cost, so that those which run together are alike. No two samples
    share a micro-batch while a rank has one less.
    """
    if line is None:
        limit = max_tokens or int(items.tokens.sum())
        rows = first_fit(items, range(len(items)), limit, None if most is None else most * world_size)
    else:
        rows, start, whole = [], 0, line.cost_of(0, len(line))
        while start < len(line):
            end = min(len(line), start + line.take(whole, start))
            rows.append(line.order[start:end].tolist())
            start = end
    levels = -(-len(rows) // world_size)

    def cost(row: list[int]) -> int:
        return _cost(items, row, packed=line is None)

    while len(rows) < min(len(items), levels * world_size):
        rows.append([max((row for row in rows if len(row) > 1), key=cost).pop()])
    rows.sort(key=cost, reverse=True)
    return [[items.positions(row) for row in rows[rank::world_size]] for rank in range(world_size)]


def _check(items: Items, ranks: list[list[Int]], max_tokens: int | None, most: int | None, stand_ins: bool) -> None:
    """Raise InfeasibleError where ranks have too many micro-batches, or one less than others without ``stand_ins``."""
    size, least, count = len(ranks), min(map(len, ranks)), max(map(len, ranks))
    if most is not None and count > most:
        raise InfeasibleError(
            f"balance: max_microbatches = {most}, but lockstep needs {count} micro-batches of {max_tokens} tokens on "
            f"each of {size} ranks; raise max_microbatches to {count}, or max_tokens"
        )
    if least < count and not stand_ins:
        raise InfeasibleError(
            f"balance: lockstep needs {count} micro-batches of {max_tokens} tokens on each of {size} ranks, but "
            f"{len(items)} samples or groups cannot fill {count * size}; raise max_tokens, or give stand_ins=True, by "
            "which a rank runs the shortest sample at weight 0 in place of what it lacks"
        )


def _cost(items: Items, part: list[int], packed: bool) -> int:
    lengths = items.lengths[items.positions(part)]
    return items.cost.packed(lengths) if packed else int(items.cost.padded(len(lengths), lengths.max()))
