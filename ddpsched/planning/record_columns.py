"""The columns, the cost and the memory that follow from a plan and the lengths of a rank's samples."""

from collections.abc import Mapping
from typing import Any

from ddpsched.costs.cost_model import CostModel, padded_tokens
from ddpsched.costs.memory_cap import Cap
from ddpsched.data.lengths import Lengths
from ddpsched.step_plan import StepPlan


def rank_cost(cost: CostModel, plan: StepPlan, rank: int, lengths: Lengths) -> int:
    """Return the cost of the rank's micro-batches on a rank of calibrated speed."""
    return sum(cost.price(micro, lengths.lengths(micro.ids)) for micro in plan.ranks[rank])


def largest_need(cap: Cap, plan: StepPlan, rank: int, lengths: Lengths) -> int:
    """Return what the rank's largest micro-batch needs, in the unit of ``cap``; 0 where it has none."""
    return max((cap.need(micro, micro.tokens(lengths.lengths(micro.ids))) for micro in plan.ranks[rank]), default=0)


def plan_columns(
    labels: Mapping[str, Any], plan: StepPlan, rank: int, lengths: Lengths, cost: CostModel = padded_tokens
) -> dict[str, Any]:
    """Return the columns of a record that a plan and the rank's lengths decide.

    ``labels``: columns of the run. ``cost``: by which micro-batches are padded, where there is a menu of shapes.
    """
    micro = [(each, each.tokens(lengths.lengths(each.ids))) for each in plan.ranks[rank]]
    return {
        **labels,
        "epoch": plan.epoch,
        "step": plan.step,
        "rank": rank,
        "world_size": plan.world_size,
        "num_samples": int(plan.counts[rank]),
        "global_batch": plan.global_batch,
        "num_tokens": int(sum(lengths.sum() for _, lengths in micro)),
        "padded_tokens": int(
            sum(
                lengths.sum() if each.packed else cost.computed(len(lengths), each.padded_length(lengths))
                for each, lengths in micro
            )
        ),
        "squared_tokens": int(sum(lengths @ lengths for _, lengths in micro)),
        "max_length": int(max((lengths.max() for _, lengths in micro), default=0)),
        "num_microbatches": len(micro),
        "loss_scale": plan.loss_scale(rank),
        "predicted_cost": None if plan.predicted_cost is None else plan.predicted_cost[rank],
        "lower_bound": plan.lower_bound,
        "offer_s": plan.times.offer_s,
        "exchange_s": plan.times.exchange_s,
        "solve_s": plan.times.solve_s,
        "plan_wait_s": plan.times.wait_s,
        "plan_hash": plan.digest_hex,
    }
