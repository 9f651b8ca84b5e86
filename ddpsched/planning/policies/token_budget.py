"""token_budget: the order's next samples, as many as a budget of tokens allows, a micro-batch each.

A micro-batch of n samples fits if n * longest <= budget (padded tokens), or if
its lengths sum to no more than the budget (real tokens); with two budgets both
prompt and text must. Its samples are neighbours of the order, so nothing is
chosen and the state is a cursor; how much is padded is the order's business.
"""

from collections.abc import Callable, Iterator
from itertools import pairwise
from typing import Annotated, Literal

import numpy as np
from pydantic import Field, model_validator

from ddpsched.costs.cost_model import Int
from ddpsched.errors import ConfigError
from ddpsched.planning.assignment import Assignment
from ddpsched.planning.policies.filling import FillingPolicy, Supply, Tokens, deal, most_samples
from ddpsched.planning.policy import Setting

Reach = Callable[[int], int]  # where the longest run of samples that fits, from a position on, ends


class TokenBudget(FillingPolicy):
    """Steps of ``batches_per_optimizer_step`` micro-batches a rank, dealt in turn; the epoch's last may have fewer.

    With ``same_shape`` all micro-batches of a step share count and padded length.
    """

    kind: Literal["token_budget"] = "token_budget"
    # of a micro-batch; two numbers bound the prompt's tokens and the text's
    max_tokens_for_batch: Tokens | Annotated[list[Tokens], Field(min_length=2, max_length=2)] | None = None
    budget: Literal["padded", "real"] = "padded"  # which tokens count
    same_shape: bool = False  # one count and padded length in a step, as pipelines ask

    @property
    def bounds_parts(self) -> bool:
        return isinstance(self.max_tokens_for_batch, list)

    @property
    def one_shape(self) -> bool:
        return self.same_shape

    @model_validator(mode="after")
    def _belong_together(self) -> "TokenBudget":
        if self.max_tokens_for_batch is None:
            raise ValueError("token_budget needs max_tokens_for_batch, the tokens that a micro-batch may hold")
        if self.same_shape and self.budget == "real":
            raise ValueError("same_shape fixes a padded length for all micro-batches; use budget = 'padded' with it")
        return self

    def check(self, setting: Setting) -> None:
        super().check(setting)
        if self.bounds_parts and not setting.has_parts:
            raise ValueError(
                f"policy.max_tokens_for_batch = {self.max_tokens_for_batch} bounds prompt and text; "
                "name the prompt's column in data.prompt, or give one number"
            )

    def fill(self, supply: Supply) -> Iterator[Assignment]:
        """Raises ConfigError where a sample alone is over the budget, InfeasibleError where one is over a memory."""
        columns, budgets = self._columns(supply)
        _check(columns, budgets)
        if self.same_shape:
            return _same_shape(self, supply, columns, budgets)
        return _plain(self, supply, _reaches(self, supply, columns, budgets))

    def _columns(self, supply: Supply) -> tuple[list[Int], list[int]]:
        budget = self.max_tokens_for_batch
        if isinstance(budget, list):
            assert supply.parts is not None, "two budgets need the lengths of both parts"
            return [supply.parts[:, 0], supply.parts[:, 1]], budget
        assert budget is not None, "its validator refuses None"
        return [supply.lengths], [budget]


def _check(columns: list[Int], budgets: list[int]) -> None:
    for lengths, budget in zip(columns, budgets, strict=True):
        over = int((lengths > budget).sum())
        if over:
            raise ConfigError(
                f"policy.max_tokens_for_batch = {budget}, but {over} of {len(lengths)} samples are longer, up to "
                f"{lengths.max()} tokens, and fit into no micro-batch; raise it to at least that, lower "
                "data.max_length, or use policy.kind = 'pool', which runs them alone"
            )


def _reaches(policy: TokenBudget, supply: Supply, columns: list[Int], budgets: list[int]) -> list[Reach]:
    reaches = [
        _within_padded(lengths, most_samples(lengths, budget, None))
        if policy.budget == "padded"
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


def _plain(policy: TokenBudget, supply: Supply, reaches: list[Reach]) -> Iterator[Assignment]:
    cursor, num_micro = supply.cursor, supply.world_size * policy.batches_per_optimizer_step
    while cursor < len(supply):
        runs: list[tuple[int, int]] = []
        while len(runs) < num_micro and cursor < len(supply):
            end = min(reach(cursor) for reach in reaches)
            runs.append((cursor, end))
            cursor = end
        yield deal(runs, supply.world_size, cursor, method="token_budget")


def _same_shape(policy: TokenBudget, supply: Supply, columns: list[Int], budgets: list[int]) -> Iterator[Assignment]:
    """The next n * G * A samples, n the largest that fits; fewer than G * A at the end are one a micro-batch."""
    cursor, num_micro = supply.cursor, supply.world_size * policy.batches_per_optimizer_step
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
        yield deal(runs, supply.world_size, end, shape, method="token_budget")
        cursor = end
