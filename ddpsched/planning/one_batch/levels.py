"""Micro-batches that all ranks run together: as many on each rank, and each as long as the slowest rank's."""

from ddpsched.costs.cost_model import Int
from ddpsched.errors import ConfigError, InfeasibleError
from ddpsched.planning.one_batch.items import Items
from ddpsched.planning.one_batch.rows import first_fit
from ddpsched.planning.solvers.partition.lockstep import Levels, fill_levels, padded_levels
from ddpsched.planning.solvers.partition.several import fewest_microbatches, lower_bound, usable
from ddpsched.planning.solvers.partition.sorted_batch import line_of

MORE = 8  # levels tried above the fewest that the tokens need, before they are given up


def level_rows(
    items: Items, world_size: int, max_tokens: int | None, most: int | None, packed: bool
) -> tuple[list[list[Int]], int]:
    """Return each rank's micro-batches, as positions of samples, and the lower bound of the sum of the slowest.

    ``items``: what stays in one micro-batch. ``most``: micro-batches of a rank; without it as few as can be. Raises
    InfeasibleError where no such number holds the items within ``max_tokens``, ConfigError for groups with padding.
    """
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
        raise InfeasibleError(_why(items, world_size, fewest, max_tokens, most))
    _, levels = best
    ranks = [[items.positions(level[rank]) for level in levels] for rank in range(world_size)]
    if packed:
        bound = -(-int(items.costs.sum()) // world_size) + items.cost.fixed * fewest
        return ranks, max(bound, int(items.costs.max()) + items.cost.fixed)
    return ranks, lower_bound(line, world_size, usable(line, world_size, len(levels)))


def some_rows(items: Items, world_size: int, max_tokens: int | None) -> list[list[Int]]:
    """Return each rank's rows where samples are too few for as many on each rank: the last ranks may have one less.

    Rows are dealt by falling load, so that those which run together are alike. No two samples share a row while a rank
    has none.
    """
    rows = first_fit(items, range(len(items)), max_tokens or int(items.tokens.sum()))
    levels = -(-len(rows) // world_size)
    while len(rows) < min(len(items), levels * world_size):
        fullest = max((row for row in rows if len(row) > 1), key=lambda row: int(items.costs[row].sum()))
        rows.append([fullest.pop()])
    rows.sort(key=lambda row: -int(items.costs[row].sum()))
    return [[items.positions(row) for row in rows[rank::world_size]] for rank in range(world_size)]


def _cost(items: Items, part: list[int], packed: bool) -> int:
    lengths = items.lengths[items.positions(part)]
    return items.cost.packed(lengths) if packed else int(items.cost.padded(len(lengths), lengths.max()))


def _why(items: Items, world_size: int, fewest: int, max_tokens: int | None, most: int | None) -> str:
    if fewest * world_size > len(items):
        return (
            f"balance: lockstep needs {fewest} micro-batches on each of {world_size} ranks within {max_tokens} tokens, "
            f"but {len(items)} samples or groups cannot fill {fewest * world_size}; raise max_tokens"
        )
    needed = f"at least {fewest}" if most is None or most < fewest else f"more than {most}"
    return (
        f"balance: lockstep needs {needed} micro-batches on each of {world_size} ranks within {max_tokens} tokens, but "
        f"max_microbatches = {most}; raise either"
    )
