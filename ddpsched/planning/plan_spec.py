"""PlanSpec: the input of planning as one value, without paths, model or executor."""

from collections.abc import Callable
from dataclasses import dataclass, field

from ddpsched.costs.config import check_range
from ddpsched.costs.cost_model import CostModel, padded_tokens
from ddpsched.costs.memory_cap import Cap
from ddpsched.data.lengths import Lengths
from ddpsched.errors import ConfigError
from ddpsched.orders.epoch_order import ORDERS, Draw, Order
from ddpsched.planning.policy import Policy, Setting
from ddpsched.step_plan import Ids

VARYING = 2**16  # samples that a step may have where the policy lets it vary
LAST = ("smaller", "join", "drop", "full")  # the ways to treat an epoch's last samples


@dataclass(frozen=True, eq=False)
class PlanSpec:
    """All options, beside the lengths, that the plans of a run follow from; equal on every rank.

    Attributes:
        world_size: G, ranks.
        global_batch: B, samples of a step over all ranks; where the policy lets it vary, only orders read it.
        policy: a member of ``ddpsched.planning.policies.POLICIES``, with its options.
        seed: of orders, and of the random draws of policies.
        epochs: None where ``steps`` decide.
        steps: optimizer steps; None where ``epochs`` decide.
        order: the order in which an epoch visits the samples.
        cost: the cost of a micro-batch.
        caps: ``caps[r]``, the memory limit of rank r; None for no limit.
        max_length: tokens of the longest sample that there may be.
        pad_to: tokens that every padded row has at least.
        refined: whether ranks report their measured speed, which scales their costs.
        lengths_known: whether every rank knows all lengths.
        last: where an epoch's last samples are fewer than the ranks, a "smaller" step, "join" or "drop"; "full" leaves
            them out wherever they are fewer than ``global_batch``.
        batch_ranks: ranks that global batches are made for, where a run goes on with another number; None for G.
        arrange: what is done to the first epoch's order, from this spec, the lengths and the order; None for nothing.

    Raises ConfigError where these do not agree.
    """

    world_size: int
    global_batch: int
    policy: Policy
    seed: int = 0
    epochs: int | None = None
    steps: int | None = None
    order: Order = field(default_factory=Order)
    cost: CostModel = padded_tokens
    caps: tuple[Cap, ...] | None = None
    max_length: int = 1
    pad_to: int = 0
    refined: bool = False
    lengths_known: bool = True
    last: str = "smaller"
    batch_ranks: int | None = None
    arrange: "Callable[[PlanSpec, Lengths, Ids], Ids] | None" = None

    def __post_init__(self) -> None:
        for name in ("world_size", "global_batch", "seed", "epochs", "steps", "batch_ranks"):
            value, least = getattr(self, name), 0 if name == "seed" else 1
            if value is not None and value < least:
                raise ConfigError(f"{name} = {value}: must be at least {least}")
        if self.caps is not None and len(self.caps) != self.world_size:
            raise ConfigError(f"caps of {len(self.caps)} ranks, world_size = {self.world_size}; give one a rank")
        most = max(self.global_batch, VARYING) if self.policy.varies else self.global_batch
        check_range(self.cost, most, self.max_length)
        try:
            self.policy.check(
                Setting(
                    self.world_size,
                    self.global_batch,
                    self.epochs,
                    lengths_known=self.lengths_known,
                    has_parts=True,  # ConfigError where they have none, once they are asked for
                    pads_to_max=self.pad_to > 0,
                    squared_cost=self.cost.squared,
                    refined_cost=self.refined,
                )
            )
        except ValueError as error:
            raise ConfigError(str(error)) from None
        if self.last not in LAST:
            raise ConfigError(f"last = {self.last!r}; it is one of {', '.join(map(repr, LAST))}")
        if self.last != "smaller" and self.policy.takes != "batches":
            raise ConfigError(
                f"last = {self.last!r} is for policies whose steps are the next samples of the order ('static', "
                f"'balanced', 'packed'); {self.policy.kind!r} chooses them in another way; give last = 'smaller', or "
                "one of those policies"
            )

    def epoch_order(self, lengths: Lengths, epoch: int) -> Ids:
        """Return each id once, int64 (N,): the order in which this epoch visits the samples."""
        size, options = self.global_batch, self.order.options
        batches = max(1, min(options.mega_batches, len(lengths) // (4 * size)))
        ranks = self.ranks_of_batch
        order = ORDERS[options.kind](Draw(lengths, self.order, self.seed, epoch, ranks, size, size * batches))
        return order if self.arrange is None or epoch > 0 else self.arrange(self, lengths, order)

    @property
    def ranks_of_batch(self) -> int:
        """Ranks that global batches are made for: another number of ranks shares the same ones."""
        return self.batch_ranks or self.world_size
