"""A peer's steps as plans of a run."""

from collections.abc import Iterator
from itertools import islice

import numpy as np
import pytest

from ddpsched.config import RunConfig, parse
from ddpsched.errors import ConfigError, RunError
from ddpsched.exchange import LocalExchange
from ddpsched.peers import PEERS, Peer, Step
from ddpsched.planning.planner import plan_steps
from ddpsched.step_plan import StepPlan


class Source:
    def __init__(self, size: int) -> None:
        self._lengths = np.clip(np.random.default_rng(size).lognormal(2.5, 0.6, size), 3, 66).astype(np.int64)

    def __len__(self) -> int:
        return len(self._lengths)

    def lengths(self, ids: np.ndarray) -> np.ndarray:
        return self._lengths[ids]


def peer_plans(config: RunConfig, source: Source) -> Iterator[StepPlan]:
    return plan_steps(config.plan_spec(), source, LocalExchange(config.world_size))  # type: ignore[arg-type]


def config(peer: str, **changes: object) -> RunConfig:
    return parse({"epochs": 2, "policy": {"kind": "peer", "peer": peer}, **changes})


def test_epochs_follow_one_another() -> None:
    plans = list(peer_plans(config("batch_rebalance"), Source(100)))
    assert [plan.step for plan in plans] == list(range(8))
    assert [plan.epoch for plan in plans] == [0] * 4 + [1] * 4
    assert sorted(np.concatenate([plan.ids for plan in plans[4:]]).tolist()) == list(range(100))
    assert plans[0].ids.tolist() != plans[4].ids.tolist()
    assert {plan.method for plan in plans} == {"batch_rebalance"}


def test_steps_end_the_run_wherever_an_epoch_stands() -> None:
    plans = list(peer_plans(config("fairseq", epochs=None, steps=9), Source(100)))
    assert [plan.step for plan in plans] == list(range(9))


def test_costs_are_those_of_the_ranks_micro_batches() -> None:
    source = Source(100)
    for peer, packed in (("batch_rebalance", False), ("karmarkar_karp", True)):
        for plan in islice(peer_plans(config(peer), source), 4):
            for rank, cost in zip(plan.ranks, plan.predicted_cost or (), strict=True):
                lengths = [source.lengths(micro.ids) for micro in rank]
                assert cost == sum(n.sum() if packed else len(n) * n.max() for n in lengths)
                assert all(micro.packed == packed for micro in rank)


def test_a_cost_that_knows_no_packed_rows_predicts_nothing() -> None:
    plan = next(peer_plans(config("karmarkar_karp", cost={"kind": "padded_tokens_squared"}), Source(100)))
    assert plan.predicted_cost is None


def invented(steps: list[Step]) -> Peer:
    return Peer("invented", "", False, lambda problem: iter(steps))


def test_a_rank_without_samples_is_empty(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(PEERS, "invented", invented([[[np.array([3, 1])], []]]))
    plan = next(peer_plans(config("invented"), Source(100)))
    assert plan.counts.tolist() == [2, 0]
    assert plan.ranks[1] == ()
    assert plan.predicted_cost is not None
    assert plan.predicted_cost[1] == 0


def test_an_epoch_without_steps_ends_the_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(PEERS, "invented", invented([]))
    with pytest.raises(RunError, match="invented makes no step of 100 samples with global_batch = 32"):
        next(peer_plans(config("invented", epochs=None, steps=3), Source(100)))


def test_a_sample_twice_in_a_step_is_refused() -> None:
    plans = peer_plans(config("batch_rebalance", global_batch=32, world_size=32), Source(30))
    with pytest.raises(RunError, match="batch_rebalance gives a sample twice in one step"):
        next(plans)


def test_an_unknown_peer_is_named() -> None:
    with pytest.raises(ConfigError, match=r"policy\.peer = 'nobody' is none of: length_grouped, "):
        next(peer_plans(config("nobody"), Source(100)))


def test_a_peer_that_splits_samples_is_for_paper_only() -> None:
    with pytest.raises(
        ConfigError, match=r"policy\.peer = 'megatron' splits samples .* `ddpsched plan --peer megatron`"
    ):
        config("megatron")
