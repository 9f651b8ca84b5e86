"""token_budget: the order's next samples, as many as a budget of tokens allows, a micro-batch each."""

from collections.abc import Callable, Iterator
from typing import Annotated, Literal

import numpy as np
from pydantic import Field, model_validator

from ddpsched.costs.cost_model import Int
from ddpsched.costs.shape_menu import Shape
from ddpsched.errors import ConfigError
from ddpsched.planning.assignment import Assignment
from ddpsched.planning.policies.filling import FillingPolicy, Supply, deal, most_samples
from ddpsched.planning.policy import Setting
from ddpsched.planning.shapes.choose import lengths_that_pad_least, within_budget
from ddpsched.planning.shapes.observed import observe
from ddpsched.planning.steps.context import Context
from ddpsched.table import Tokens

Limit = tuple[Int, list[int]]  # lengths, and the most samples of a micro-batch by its longest
Reach = Callable[[int], int]  # the end of the longest run of samples that fits, from a position on


class TokenBudget(FillingPolicy):
    """Fill micro-batches with neighbours of the order, and deal them to ranks in turn.

    A micro-batch of n samples fits if

        padded    n * longest <= max_tokens_for_batch          real    sum of lengths <= max_tokens_for_batch

    and with two budgets if both prompt and text do. Nothing is chosen, so the state is a cursor; the order decides how
    much is padded. A step has ``batches_per_optimizer_step`` micro-batches a rank; the epoch's last may have fewer.

    Options: ``max_tokens_for_batch``, tokens of a micro-batch; two numbers bound the prompt's tokens and the text's.
    ``budget``, which tokens count. ``same_shape``: all micro-batches of a step share count and padded length, as
    pipelines ask. ``batches_per_optimizer_step``.
    Sources: Vaswani et al., 2017, section 5.1; fairseq's ``--max-tokens``; DeepSpeed's variable batch size.
    """

    kind: Literal["token_budget"] = "token_budget"
    max_tokens_for_batch: Tokens | Annotated[list[Tokens], Field(min_length=2, max_length=2)] | None = None
    """Tokens of a micro-batch; two numbers bound the prompt's tokens and the text's."""
    budget: Literal["padded", "real"] = "padded"
    """Which tokens count."""
    same_shape: bool = False
    """All micro-batches of a step share count and padded length, as pipelines ask."""

    @property
    def bounds_parts(self) -> bool:
        return isinstance(self.max_tokens_for_batch, list)

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

    def shapes(self, context: Context, most: int) -> list[Shape]:
        """Return the lengths that pad this epoch's micro-batches least, each with as many rows as the budget holds.

        Raises ConfigError for a budget that does not bound rows times length.
        """
        if self.budget != "padded" or isinstance(self.max_tokens_for_batch, list):
            raise ConfigError(
                "policy.kind = 'token_budget' with budget = 'real' or two budgets fills any number of rows of any "
                "length, which no menu of shapes holds; use one budget of padded tokens, or compile.kind = 'dynamic'"
            )
        assert self.max_tokens_for_batch is not None, "its validator refuses None"
        lengths = context.lengths.lengths(context.order)
        menu = lengths_that_pad_least(observe(self(context), lengths), lengths, most)
        return [(min(rows, len(lengths)), length) for rows, length in within_budget(menu, self.max_tokens_for_batch)]

    def fill(self, supply: Supply) -> Iterator[Assignment]:
        """Return the steps. Raises ConfigError for a sample over the budget, InfeasibleError for one over a memory."""
        columns, budgets = [supply.lengths], self.max_tokens_for_batch
        if isinstance(budgets, list):
            assert supply.parts is not None, "two budgets need the lengths of both parts"
            columns = [*supply.parts.T]
        assert budgets is not None, "its validator refuses None"
        bounds = list(zip(columns, budgets if isinstance(budgets, list) else [budgets], strict=True))
        for lengths, budget in bounds:
            over = int((lengths > budget).sum())
            if over:
                raise ConfigError(
                    f"policy.max_tokens_for_batch = {budget}, but {over} of {len(lengths)} samples are longer, up to "
                    f"{lengths.max()} tokens, and fit into no micro-batch; raise it to at least that, lower "
                    "data.max_length, or use policy.kind = 'pool', which runs them alone"
                )
        caps, num_micro = list[Limit](), (supply.batch_ranks or supply.world_size) * self.batches_per_optimizer_step
        if supply.caps is not None:
            caps = [(supply.lengths, most_samples(supply.lengths, None, supply.caps))]
        if self.budget == "real":
            reaches = [_within_sum(*bound) for bound in bounds] + [_within_padded(*cap) for cap in caps]
            return _in_runs(supply, reaches, num_micro)
        limits = [(lengths, most_samples(lengths, budget)) for lengths, budget in bounds] + caps
        if self.same_shape:
            return _same_shape(supply, limits, num_micro)
        return _in_runs(supply, [_within_padded(*limit) for limit in limits], num_micro)


def _within_padded(lengths: Int, most: list[int]) -> Reach:
    each = lengths.tolist()

    def reach(start: int) -> int:
        longest = 0
        for end in range(start, len(each)):
            longest = max(longest, each[end])
            if end - start >= most[longest]:
                return end
        return len(each)

    return reach


def _within_sum(lengths: Int, budget: int) -> Reach:
    sums = np.concatenate(([0], np.cumsum(lengths)))
    return lambda start: int(np.searchsorted(sums, sums[start] + budget, side="right")) - 1


def _in_runs(supply: Supply, reaches: list[Reach], num_micro: int) -> Iterator[Assignment]:
    cursor = supply.cursor
    while cursor < len(supply):
        runs: list[Int] = []
        while len(runs) < num_micro and cursor < len(supply):
            start, cursor = cursor, min(reach(cursor) for reach in reaches)
            runs.append(np.arange(start, cursor))
        yield deal(runs, supply.world_size, cursor, method="token_budget")


def _same_shape(supply: Supply, limits: list[Limit], num_micro: int) -> Iterator[Assignment]:
    """Yield the next n * G * A samples, n the largest that fits; fewer than G * A at the end are one a micro-batch."""
    cursor = supply.cursor
    tables = [(lengths, np.array(most)) for lengths, most in limits]
    while cursor < len(supply):
        left = len(supply) - cursor
        counts = np.arange(1, max(1, left // num_micro) + 1)
        for lengths, most in tables:
            counts = counts[: most[lengths[cursor]]]  # no more can fit, as the longest is at least the first
            ahead = np.maximum.accumulate(lengths[cursor : cursor + len(counts) * num_micro])
            longest = ahead[num_micro - 1 :: num_micro]  # of one sample a micro-batch, of two, ...
            over = counts[: len(longest)] > most[longest]
            counts = counts[: max(1, int(over.argmax()))] if over.any() else counts
        start, size = cursor, len(counts)
        cursor += size * min(num_micro, left)
        shape = int(supply.lengths[start:cursor].max())
        micro = [np.arange(first, first + size) for first in range(start, cursor, size)]
        yield deal(micro, supply.world_size, cursor, shape, method="token_budget")
