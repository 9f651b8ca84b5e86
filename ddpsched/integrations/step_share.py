"""StepShare: the size of a step and one rank's share of it, for a loop's loss and learning rate."""

from collections.abc import Callable
from dataclasses import dataclass

from ddpsched.data.lengths import Lengths
from ddpsched.errors import ConfigError
from ddpsched.integrations.agreement import process_group
from ddpsched.step_plan import StepPlan
from ddpsched.world import World


@dataclass(frozen=True)
class StepShare:
    """One optimizer step and this rank's share of it.

    ``epoch``: from 0. ``step``: from 0, over the whole iteration. ``num_samples``: B, samples of the step over all
    ranks, which ``VariableBatchSizeLR.scale`` takes; None where ranks do not exchange it. ``num_tokens``: their tokens,
    without padding, likewise. ``rank_samples``, ``rank_tokens`` and ``rank_microbatches``: this rank's.

    >>> share = StepShare(0, 7, world_size=2, rank_samples=5, rank_tokens=60, rank_microbatches=2, num_samples=8)
    >>> share.sum_scale, share.add_scale
    (0.25, 0.125)
    """

    epoch: int
    step: int
    world_size: int
    rank_samples: int
    rank_tokens: int
    rank_microbatches: int
    num_samples: int | None = None
    num_tokens: int | None = None

    @property
    def sum_scale(self) -> float:
        """G / B, the factor of *summed* losses where gradients are averaged over ranks, as DDP does."""
        return self.world_size / self._global_batch()

    @property
    def weight(self) -> float:
        """The factor of the summed loss of this rank's list under DDP: ``sum_scale``, or 0 for a stand-in."""
        return self.sum_scale if self.rank_microbatches else 0.0

    @property
    def add_scale(self) -> float:
        """1 / B, the factor of summed losses where gradients are added up over ranks."""
        return 1 / self._global_batch()

    def token_scale(self, count: int, agree: Callable[[int], int] | None = None) -> float:
        """Return G / N, the factor of losses *summed over label tokens* under DDP, for the mean over these; 0 for none.

        ``count``: label tokens of this rank in the step, over all its micro-batches; those of a stand-in count nothing.
        N is the sum over ranks, which one all-reduce finds: every rank calls this once a step. ``agree``: finds the sum
        in another way. Raises ConfigError where there are several ranks, but no process group and no ``agree``.
        """
        if agree is None and self.world_size > 1 and process_group() is None:
            raise ConfigError(
                f"token_scale: the label tokens of {self.world_size} ranks are summed over torch's process group, and "
                "there is none; initialise it, or give agree=, a function that returns the sum"
            )
        if agree is None:
            from ddpsched.integrations.agree import sum_over_ranks

            agree = sum_over_ranks
        # a rank may have parts alone, of samples that other ranks count, and learns their label tokens
        total = agree(count if self.rank_microbatches else 0)
        return self.world_size / total if total and self.rank_microbatches else 0.0

    def _global_batch(self) -> int:
        if self.num_samples is None:
            raise ConfigError(
                f"the samples of this step on all {self.world_size} ranks are not known here, as each rank fills its "
                "steps alone; give PoolStream agree=sum_over_ranks (ddpsched.integrations.agree)"
            )
        return self.num_samples

    @classmethod
    def of(cls, plan: StepPlan, lengths: Lengths, world: World) -> "StepShare":
        """Return the share that ``plan`` gives rank ``world.rank``."""
        tokens = lengths.lengths(plan.ids)  # rank by rank
        counts = plan.counts[: world.rank + 1].tolist()
        start = sum(counts[:-1])
        here = int(tokens[start : start + counts[-1]].sum())
        if plan.parts:
            micros = plan.ranks[world.rank]
            here = sum(int(micro.tokens(lengths.lengths(micro.ids)).sum()) for micro in micros)
        return cls(
            epoch=plan.epoch,
            step=plan.step,
            world_size=plan.world_size,
            rank_samples=counts[-1],
            rank_tokens=here,
            rank_microbatches=len(plan.ranks[world.rank]),
            num_samples=plan.global_batch,
            num_tokens=int(tokens.sum()),
        )
