"""peer: another package's batching, to compare with."""

from collections.abc import Iterator
from typing import ClassVar, Literal

import numpy as np

from ddpsched.errors import ConfigError, RunError
from ddpsched.peers import PEERS
from ddpsched.peers.peer import Peer, Problem, Step
from ddpsched.planning.assignment import Assignment
from ddpsched.planning.policy import Policy, Setting
from ddpsched.planning.steps.context import Context
from ddpsched.table import Positive, Text


class PeerPolicy(Policy):
    """Run a peer's steps as they come.

    Epochs may have more or fewer steps than ceil(N / B), and leave out or repeat samples where the peer does. A token
    budget is searched for once, in the first epoch. A run cannot resume within an epoch.

    Options: ``peer``, a name as in ``ddpsched plan --peer``. ``max_microbatches``, M, the most micro-batches of a rank
    in a step, of peers that take it. Source: the package itself.
    """

    kind: Literal["peer"] = "peer"
    peer: Text
    """A name as in `ddpsched plan --peer`."""
    max_microbatches: Positive = 1
    """M, the most micro-batches of a rank in a step."""

    takes: ClassVar[Literal["batches", "windows", "epoch"]] = "epoch"
    reads_cost: ClassVar[bool] = False
    resumes: ClassVar[bool] = False

    @property
    def packs(self) -> bool:
        return self.peer in PEERS and PEERS[self.peer].packed

    @property
    def needs_sums(self) -> bool:
        return self.max_microbatches > 1  # without sums, packed rows have no predicted cost

    def check(self, setting: Setting) -> None:
        super().check(setting)
        if setting.memory != "none":
            raise ValueError("a peer knows no memory caps; leave memory out with policy.kind = 'peer'")
        if self.peer in PEERS and PEERS[self.peer].splits:
            raise ValueError(
                f"policy.peer = {self.peer!r} splits samples over ranks, with barriers that no run has; compare "
                f"with it by `ddpsched plan --peer {self.peer}`, or use policy.kind = 'split'"
            )

    def __call__(self, context: Context) -> Iterator[Assignment]:
        """Yield each step. Raises ConfigError for an unknown peer, PeerMissing for one that is not installed, RunError
        where a peer gives a sample twice in one step, or no step at all.
        """
        if self.peer not in PEERS:
            raise ConfigError(f"policy.peer = {self.peer!r} is none of: {', '.join(PEERS)}")
        peer, spec = PEERS[self.peer], context.spec
        problem = peer.fitted(
            Problem(
                lengths=context.lengths.lengths(context.positions),
                order=context.order,
                world_size=spec.world_size,
                global_batch=spec.global_batch,
                max_microbatches=self.max_microbatches,
                seed=spec.seed,
                epoch=context.start.epoch,
                cost=spec.cost,
                budget=context.memo.get("budget"),
            )
        )
        context.memo["budget"] = problem.budget
        places = np.argsort(context.order)
        step = None
        for step in peer.steps(problem):
            yield _assignment(peer, step, problem, places)
        if step is None:
            raise RunError(
                f"{peer.name} makes no step of {len(context.order)} samples with global_batch = {spec.global_batch}; "
                "lower global_batch, or give it more samples"
            )


def _assignment(peer: Peer, step: Step, problem: Problem, places: np.ndarray) -> Assignment:
    ids = np.concatenate([ids for rank in step for ids in rank])
    values, counts = np.unique(ids, return_counts=True)
    if len(values) < len(ids):
        raise RunError(
            f"{peer.name} gives a sample twice in one step (ids {values[counts > 1][:5].tolist()} planned twice), "
            "which a plan cannot hold; train fewer steps than an epoch has, or on more samples"
        )
    sizes = tuple(tuple(len(ids) for ids in rank if len(ids)) for rank in step)
    costs = None
    if problem.cost.linear or not peer.packed:
        costs = problem.cost.price_ranks(problem.lengths[ids], sizes, peer.packed)
    return Assignment(places[ids], sizes, costs, method=peer.name, packed=peer.packed)
