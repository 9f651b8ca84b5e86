"""Policy: the options of a policy, its checks, and the assignments of an epoch."""

from abc import abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Literal

from ddpsched.costs.shape_menu import Shape
from ddpsched.errors import ConfigError
from ddpsched.planning.assignment import Assignment, Int
from ddpsched.table import LARGEST_STEP, LARGEST_TABLE, Table

if TYPE_CHECKING:
    from ddpsched.planning.steps.context import Context


@dataclass(frozen=True)
class Setting:
    """The parts of a run that a policy's options must agree with.

    ``epochs``: None where steps decide. ``lengths_known``: on every rank. ``has_parts``: lengths are of prompt and
    text. ``pads_to_max``: every row is padded to the same length. ``squared_cost``: the cost does not add up.
    ``refined_cost``: ranks report their measured speed. ``memory``: the source of the cap on micro-batches.
    """

    world_size: int
    global_batch: int
    epochs: int | None = None
    lengths_known: bool = True
    has_parts: bool = False
    pads_to_max: bool = False
    squared_cost: bool = False
    refined_cost: bool = False
    memory: Literal["none", "probe", "model"] = "none"


class Policy(Table):
    """The rule by which ranks get their samples. A subclass is one file: its fields are its options, its docstring its
    page.

    ``policy(context)`` yields the assignment of each step of an epoch, from the context's start on. It must follow
    from the context alone, so that every rank makes the same one.
    """

    kind: str
    takes: ClassVar[Literal["batches", "windows", "epoch"]]  # the next B samples, each rank's window, or all at once
    varies: ClassVar[bool] = False  # whether the global batch varies from step to step
    needs_lengths: ClassVar[bool] = True  # of all samples on every rank
    reads_cost: ClassVar[bool] = True  # whether its plans follow from the cost
    resumes: ClassVar[bool] = True  # whether its plans can go on within an epoch

    @property
    def packs(self) -> bool:
        """Whether micro-batches are rows without padding."""
        return False

    @property
    def splits(self) -> bool:
        """Whether samples may be split over ranks."""
        return False

    @property
    def most_microbatches(self) -> int:
        """The most micro-batches of a rank in a step, unless memory needs more: option ``max_microbatches``, or 1."""
        return int(getattr(self, "max_microbatches", 1))

    @property
    def needs_sums(self) -> bool:
        """Whether its cost must add up over samples or micro-batches."""
        return self.packs or self.in_lockstep or self.most_microbatches > 1

    @property
    def in_lockstep(self) -> bool:
        """Whether all ranks have as many micro-batches, and run them together: the option ``lockstep``."""
        return bool(getattr(self, "lockstep", False))

    @property
    def batches_at_once(self) -> int:
        """W, global batches whose samples are dealt together: the option ``lookahead``, or 1."""
        return int(getattr(self, "lookahead", 1))

    @property
    def window(self) -> tuple[str, int] | None:
        """The option that limits how many samples wait at a rank, and its value; None where none wait."""
        return None

    @property
    def bounds_parts(self) -> bool:
        """Whether prompt and text have a budget each."""
        return False

    @property
    def one_shape(self) -> bool:
        """Whether all micro-batches of a step are padded to one length: the option ``same_shape``."""
        return bool(getattr(self, "same_shape", False))

    @property
    def repeats(self) -> bool:
        """Whether an epoch may repeat samples and leave others out: the option ``replacement``."""
        return bool(getattr(self, "replacement", False))

    @property
    def endless(self) -> bool:
        """Whether another epoch begins while steps are left: the option ``infinite_loop``, else always."""
        return bool(getattr(self, "infinite_loop", True))

    @property
    def remarks(self) -> list[str]:
        """Remarks on options with an effect that a user may not expect."""
        return []

    def resized(self, world_size: int, global_batch: int) -> "Policy":
        """Return this policy for another number of ranks, where an option must follow it."""
        return self

    def over_budget(self, lengths: Int) -> int | None:
        """Return how many samples are longer than a micro-batch's budget, and run alone; None without such a budget."""
        return None

    @abstractmethod
    def __call__(self, context: "Context") -> Iterator[Assignment]:
        """Yield the assignment of each step."""

    def shapes(self, context: "Context", most: int) -> list[Shape]:
        """Return at most ``most`` shapes, rows and length, on which these plans lose little, without memory limits.

        Every micro-batch that is planned on them has one that holds it. Raises ConfigError where none can be promised.
        """
        raise ConfigError(
            f"policy.kind = {self.kind!r} plans on no menu of shapes; use compile.kind = 'eager' or 'dynamic', or one "
            "of 'static', 'balanced', 'minmax', 'token_budget', 'bins' and 'pool' without packing"
        )

    def rows_of_longest(self, world_size: int, most_samples: int) -> int:
        """Return how many rows the micro-batch of the longest sample may have that these plans cannot make smaller.

        ``most_samples``: of a step. One where plans adapt to a menu of shapes.
        """
        return 1

    def check(self, setting: Setting) -> None:
        """Raise ValueError where these options do not agree with the rest of a run."""
        s = setting
        if s.global_batch < s.world_size and not self.varies:
            raise ValueError(
                f"global_batch = {s.global_batch} is smaller than world_size = {s.world_size}: "
                "every rank needs at least one sample; raise global_batch or lower world_size"
            )
        self._check_sizes(s)
        if self.needs_lengths and not s.lengths_known:
            raise ValueError(
                f"policy.kind = {self.kind!r} needs every length on every rank; "
                "use data.lengths = 'known', or policy.kind = 'minmax' with online lengths"
            )
        if s.squared_cost and self.needs_sums:
            raise ValueError(
                "cost.kind = 'padded_tokens_squared' does not add up over samples or micro-batches; "
                "use 'padded_tokens' (with gamma for attention), 'affine_quadratic' or 'calibrated'"
            )
        if s.refined_cost and not self.reads_cost:
            raise ValueError(
                f"cost.online = true measures each rank's speed to plan with, but policy.kind = {self.kind!r} plans "
                "without costs; leave it out, or use 'minmax', 'balanced' or 'packed'"
            )
        if self.in_lockstep and (s.memory != "none" or s.refined_cost):
            given = "memory" if s.memory != "none" else "cost.online"
            raise ValueError(
                f"policy.lockstep = true plans for ranks that are alike, and {given} is of each rank; leave it out; "
                "limit rows by policy.max_tokens of 'packed', or policy.max_microbatches of 'balanced'"
            )
        if s.pads_to_max and self.kind != "static":
            raise ValueError(
                "data.pad_to = 'max_length' makes all samples as long, which leaves policy.kind = "
                f"{self.kind!r} nothing to gain; use it with 'static', as the approach to compare with"
            )
        if self.varies and s.memory == "probe":
            raise ValueError(
                f"memory.probe tries samples of data.max_length up to the global batch, which policy.kind = "
                f"{self.kind!r} lets vary; use memory.path, a file of `ddpsched calibrate`"
            )

    def check_longest(self, tokens: int, world_size: int) -> None:
        """Raise InfeasibleError where a sample of so many tokens can run on no rank, nor in parts on all of them."""

    def _check_sizes(self, s: Setting) -> None:
        """Raise ValueError where a step of all ranks together would hold more than memory."""
        name, waiting = self.window or ("window", 0)
        per_rank = "max_microbatches" if "max_microbatches" in type(self).model_fields else "batches_per_optimizer_step"
        for words, one, other, most in (
            (f"policy.{name} * world_size", waiting, s.world_size, LARGEST_TABLE),
            ("policy.lookahead * global_batch", self.batches_at_once, s.global_batch, LARGEST_TABLE),
            (f"policy.{per_rank} * world_size", self.most_microbatches, s.world_size, LARGEST_STEP),
        ):
            if one * other > most:
                raise ValueError(f"{words} = {one} * {other} = {one * other}: at most {most}; lower one of the two")
