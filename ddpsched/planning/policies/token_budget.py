"""token_budget: the order's next samples, as many as a budget of tokens allows, a micro-batch each.

A micro-batch of n samples fits if n * longest <= budget (padded tokens), or if
its lengths sum to no more than the budget (real tokens); with two budgets both
prompt and text must. Its samples are neighbours of the order, so nothing is
chosen and the state is a cursor; how much is padded is the order's business.
"""

from collections.abc import Callable, Iterator
from itertools import pairwise

import numpy as np

from ddpsched.costs.kinds import Int
from ddpsched.errors import ConfigError
from ddpsched.planning.policies.filling import Filled, Supply, dealt, most_samples

Reach = Callable[[int], int]  # where the longest run of samples that fits, from a position on, ends


def token_budget(supply: Supply) -> Iterator[Filled]:
    """Steps of ``batches_per_optimizer_step`` micro-batches a rank, dealt in turn; the epoch's last may have fewer.

    With ``same_shape`` all micro-batches of a step share count and padded length. Raises ConfigError where a sample
    alone is over the budget, InfeasibleError where one is over a rank's memory.
    """
    columns, budgets = _columns(supply)
    _check(columns, budgets)
    if supply.policy.same_shape:
        return _same_shape(supply, columns, budgets)
    return _plain(supply, _reaches(supply, columns, budgets))


def _columns(supply: Supply) -> tuple[list[Int], list[int]]:
    budget = supply.policy.max_tokens_for_batch
    if isinstance(budget, int):
        return [supply.lengths], [budget]
    assert supply.parts is not None, "two budgets need the lengths of both parts; the config refuses data without"
    assert budget is not None, "the config refuses token_budget without"
    return [supply.parts[:, 0], supply.parts[:, 1]], budget


def _check(columns: list[Int], budgets: list[int]) -> None:
    for lengths, budget in zip(columns, budgets, strict=True):
        over = int((lengths > budget).sum())
        if over:
            raise ConfigError(
                f"policy.max_tokens_for_batch = {budget}, but {over} of {len(lengths)} samples are longer, up to "
                f"{lengths.max()} tokens, and fit into no micro-batch; raise it to at least that, lower "
                "data.max_length, or use policy.kind = 'pool', which runs them alone"
            )


def _reaches(supply: Supply, columns: list[Int], budgets: list[int]) -> list[Reach]:
    reaches = [
        _within_padded(lengths, most_samples(lengths, budget, None))
        if supply.policy.budget == "padded"
        else _within_sum(lengths, budget)
        for lengths, budget in zip(columns, budgets, strict=True)
    ]
    if supply.caps is not None:
        roomy = len(supply) * int(supply.lengths.max())
        reaches.append(_within_padded(supply.lengths, most_samples(supply.lengths, roomy, supply.caps)))
    return reaches


def _within_padded(lengths: Int, most: list[int]) -> Reach:
    each = lengths.tolist()

    def reach(start: int) -> int:
        longest, end = each[start], start + 1
        while end < len(each):
            longest = max(longest, each[end])
            if end + 1 - start > most[longest]:
                break
            end += 1
        return end

    return reach


def _within_sum(lengths: Int, budget: int) -> Reach:
    sums = np.cumsum(lengths)

    def reach(start: int) -> int:
        before = int(sums[start - 1]) if start else 0
        return int(np.searchsorted(sums, before + budget, side="right"))

    return reach


def _plain(supply: Supply, reaches: list[Reach]) -> Iterator[Filled]:
    cursor, num_micro = supply.cursor, supply.world_size * supply.policy.batches_per_optimizer_step
    while cursor < len(supply):
        runs: list[tuple[int, int]] = []
        while len(runs) < num_micro and cursor < len(supply):
            end = min(reach(cursor) for reach in reaches)
            runs.append((cursor, end))
            cursor = end
        longest = [int(supply.lengths[start:end].max()) for start, end in runs]
        yield Filled(*dealt(runs, longest, supply.world_size), cursor)


def _same_shape(supply: Supply, columns: list[Int], budgets: list[int]) -> Iterator[Filled]:
    """The next n * G * A samples, n the largest that fits; fewer than G * A at the end are one a micro-batch."""
    cursor, num_micro = supply.cursor, supply.world_size * supply.policy.batches_per_optimizer_step
    tables = [np.array(most_samples(*each, None)) for each in zip(columns, budgets, strict=True)]
    if supply.caps is not None:
        columns, roomy = [*columns, supply.lengths], len(supply) * int(supply.lengths.max())
        tables.append(np.array(most_samples(supply.lengths, roomy, supply.caps)))
    while cursor < len(supply):
        left = len(supply) - cursor
        counts = np.arange(1, max(1, left // num_micro) + 1)
        for lengths, most in zip(columns, tables, strict=True):
            counts = counts[: most[lengths[cursor]]]  # no more can fit, as the longest is at least the first
            ahead = np.maximum.accumulate(lengths[cursor : cursor + len(counts) * num_micro])
            longest = ahead[num_micro - 1 :: num_micro]  # of one sample a micro-batch, of two, ...
            over = counts[: len(longest)] > most[longest]
            counts = counts[: max(1, int(over.argmax()))] if over.any() else counts
        size, number = len(counts), min(num_micro, left)
        end = cursor + size * number
        shape = int(supply.lengths[cursor:end].max())
        runs = list(pairwise(range(cursor, end + 1, size)))
        own = [int(supply.lengths[start:stop].max()) for start, stop in runs]
        yield Filled(*dealt(runs, own, supply.world_size), end, pad_to=shape)
        cursor = end
