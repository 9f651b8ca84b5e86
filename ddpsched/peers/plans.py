"""A peer's steps as plans, for arms of a study: ``policy.kind = "peer"``."""

from collections.abc import Iterator
from dataclasses import replace
from itertools import count

import numpy as np

from ddpsched.config import RunConfig
from ddpsched.costs.kinds import CostModel, Int, cost_model
from ddpsched.data.lengths import Lengths
from ddpsched.errors import ConfigError, RunError
from ddpsched.orders.epoch_order import epoch_order
from ddpsched.peers import PEERS
from ddpsched.peers.peer import Peer, Problem, Step
from ddpsched.plan import Microbatch, StepPlan


def peer_plans(config: RunConfig, source: Lengths) -> Iterator[StepPlan]:
    """Plans of ``config.policy.peer`` until ``config.steps`` or ``config.epochs`` is reached.

    Epochs may have more or fewer steps than ceil(N / B), and leave out or repeat samples where the peer does.
    A budget is found once, in the first epoch. Raises ConfigError for an unknown peer, PeerMissing for one
    that cannot be asked here, RunError where a peer gives the same sample twice in one step, or no step at all.
    """
    if config.policy.peer not in PEERS:
        raise ConfigError(f"policy.peer = {config.policy.peer!r} is none of: {', '.join(PEERS)}")
    peer = PEERS[config.policy.peer]
    lengths = source.lengths(np.arange(len(source), dtype=np.int64))
    cost = cost_model(config.cost)
    problem = Problem(
        lengths=lengths,
        order=np.arange(len(source), dtype=np.int64),
        world_size=config.world_size,
        global_batch=config.global_batch,
        max_microbatches=config.policy.max_microbatches,
        seed=config.seed,
        cost=cost,
    )
    step = 0
    for epoch in count() if config.epochs is None else range(config.epochs):
        order = epoch_order(config, source, epoch)
        problem = peer.fitted(replace(problem, order=order, epoch=epoch))
        first = step
        for ranks in peer.steps(problem):
            yield _plan(peer, epoch, step, ranks, lengths, cost)
            step += 1
            if step == config.steps:
                return
        if step == first:
            raise RunError(
                f"{peer.name} makes no step of {len(source)} samples with global_batch = {config.global_batch}; "
                "lower global_batch, or give it more samples"
            )


def _plan(peer: Peer, epoch: int, step: int, ranks: Step, lengths: Int, cost: CostModel) -> StepPlan:
    try:
        return StepPlan(
            epoch=epoch,
            step=step,
            ranks=tuple(tuple(Microbatch(ids, peer.packed) for ids in rank if len(ids)) for rank in ranks),
            predicted_cost=_costs(peer.packed, ranks, lengths, cost),
            method=peer.name,
        )
    except ValueError as error:
        raise RunError(
            f"{peer.name} gives a sample twice in one step ({error}), which a plan cannot hold; "
            "train fewer steps than an epoch has, or on more samples"
        ) from None


def _costs(packed: bool, ranks: Step, lengths: Int, cost: CostModel) -> tuple[int, ...] | None:
    """One integer per rank; None where the cost says nothing of packed rows."""
    if not packed:
        return tuple(sum(int(cost(len(ids), lengths[ids].max())) for ids in rank if len(ids)) for rank in ranks)
    packed_cost = getattr(cost, "packed", None)
    if packed_cost is None:
        return None
    return tuple(sum(packed_cost(lengths[ids]) for ids in rank) for rank in ranks)
