"""Whole epochs of steps from the peers whose packages are installed."""

import subprocess
import sys
from collections import Counter
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from ddpsched.costs.cost_model import CostModel
from ddpsched.errors import PeerMissing
from ddpsched.peers import PEERS, Peer, Problem, Step
from ddpsched.peers.budget import mean_samples

ROOT = Path(__file__).parents[2]
# The most samples that a peer drops at an epoch's end, and that it repeats, of 1003 in steps of 32.
DROPS = {"verl": 31, "verl_equal": 31, "deepspeed": 45, "axolotl": 60, "trl_token_budget": 60}
ROWS = {"slime", "nemo_rl", "torchtitan"}  # as many rows as the cap asks for, about M
REPEATS = {"length_grouped": 31, "length_grouped_global": 31, "lhotse": 4}
HERE = {name for name, peer in PEERS.items() if peer.package.startswith(("transformers", "ddpsched's"))}

WHOLE = {name: peer for name, peer in PEERS.items() if not peer.splits}  # the others: test_megatron.py


def problem(size: int = 1003, **changes: int) -> Problem:
    rng = np.random.default_rng(size)
    given = Problem(
        lengths=np.clip(rng.lognormal(2.5, 0.6, size), 3, 66).astype(np.int64),
        order=rng.permutation(size),
        world_size=4,
        global_batch=32,
        max_microbatches=2,
    )
    return replace(given, **changes)


def asked(peer: Peer, given: Problem) -> list[Step]:
    try:
        return list(peer.steps(given))
    except PeerMissing as missing:
        if peer.name in HERE:
            raise
        pytest.skip(missing.reason)  # an optional package; those that are always here may not be missing


def ids_of(step: Step) -> list[int]:
    return [id for rank in step for micro in rank for id in micro.tolist()]


@pytest.mark.parametrize("peer", WHOLE.values(), ids=WHOLE)
@pytest.mark.parametrize("size", [1003, 1024])
def test_every_sample_is_there_as_often_as_the_peer_promises(peer: Peer, size: int) -> None:
    given = problem(size)
    steps = asked(peer, given)
    seen = Counter(id for step in steps for id in ids_of(step))
    assert set(seen) <= set(range(size))
    assert size - len(seen) <= DROPS.get(peer.name, 0)
    assert seen.total() - len(seen) <= REPEATS.get(peer.name, 0)
    for step in steps:
        assert len(step) == given.world_size
        assert all(len(rank) <= given.max_microbatches + 2 * (peer.name in ROWS) for rank in step)
        assert all(micro.dtype == np.int64 and len(micro) for rank in step for micro in rank)


@pytest.mark.parametrize("peer", WHOLE.values(), ids=WHOLE)
def test_the_same_question_has_the_same_answer(peer: Peer) -> None:
    given = problem(300)
    one, other = ([[[m.tolist() for m in rank] for rank in step] for step in asked(peer, given)] for _ in range(2))
    assert one == other


@pytest.mark.parametrize("peer", [p for p in PEERS.values() if p.budget], ids=lambda peer: peer.name)
def test_budgets_give_steps_of_b_samples_on_average(peer: Peer) -> None:
    given = problem(3000)
    asked(peer, replace(given, budget=400))
    fitted = peer.fitted(given)
    assert fitted.budget is not None
    assert fitted.budget >= given.longest
    assert mean_samples(peer.steps(fitted)) == pytest.approx(given.global_batch, rel=0.05)
    assert peer.fitted(fitted) is fitted


@pytest.mark.parametrize(
    "name",
    [
        "batch_rebalance",
        "batch_rebalance_scored",
        "batch_rebalance_accumulate",
        "flattening",
        "karmarkar_karp",
        "verl",
        "verl_equal",
        "slime",
        "nemo_rl",
        "torchtitan",
    ],
)
def test_global_batches_are_the_orders(name: str) -> None:
    given = problem()
    for turn, step in enumerate(asked(PEERS[name], given)):
        batch = given.order[turn * given.global_batch : (turn + 1) * given.global_batch]
        assert sorted(ids_of(step)) == sorted(batch.tolist())


def test_batch_rebalance_repeats_samples_where_the_last_batch_is_too_small() -> None:
    given = problem(66)  # the last batch has 2 samples for 4 ranks
    *_, last = PEERS["batch_rebalance"].steps(given)
    assert Counter(ids_of(last)) == Counter(given.order[[64, 65, 0, 1]].tolist())


def test_batch_rebalance_takes_the_cost_that_is_scored() -> None:
    dear = replace(problem(), cost=CostModel(0, 1, 10, scale=1))
    plain, same, scored = (
        [[len(rank[0]) for rank in step] for step in PEERS[name].steps(given)]
        for name, given in (
            ("batch_rebalance", problem()), ("batch_rebalance", dear), ("batch_rebalance_scored", dear),
        )
    )  # fmt: skip
    assert plain == same != scored


def test_accumulating_fills_every_micro_batch() -> None:
    *whole, _ = PEERS["batch_rebalance_accumulate"].steps(problem(max_microbatches=3))
    assert {len(rank) for step in whole for rank in step} == {3}


def test_the_last_step_of_length_grouped_is_filled_with_the_first_samples() -> None:
    first, *_, last = PEERS["length_grouped"].steps(problem(100))
    assert ids_of(last)[4:] == ids_of(first)[:28]


def test_length_grouped_needs_ranks_that_divide_the_batch() -> None:
    with pytest.raises(PeerMissing, match="3 ranks do not divide global_batch = 32"):
        PEERS["length_grouped"].steps(problem(world_size=3))


def test_epochs_differ_where_a_peer_draws_its_own_batches() -> None:
    for name in ("length_grouped", "fairseq", "lhotse", "cosmos_rl"):
        try:
            one, other = ([ids_of(s) for s in PEERS[name].steps(problem(epoch=e, budget=200))] for e in range(2))
        except PeerMissing:
            continue
        assert one != other


def test_deepspeed_in_windows_is_deepspeed_at_once() -> None:
    module = pytest.importorskip("deepspeed.runtime.data_pipeline.data_sampling.variable_batch_size_and_lr")
    from ddpsched.peers.deepspeed import _microbatches

    rng = np.random.default_rng(0)
    for _ in range(10):
        lengths = rng.integers(1, 40, rng.integers(5, 300)).tolist()
        whole = [[int(i) for i in positions] for _, positions in module.batch_by_seqlens(lengths, 60)[0]]
        assert list(_microbatches(module.batch_by_seqlens, lengths, 60)) == whole


def test_verls_partition_is_as_good_as_the_one_told_anew() -> None:
    given = problem(1024)
    verl, ours = asked(PEERS["verl"], given), asked(PEERS["karmarkar_karp"], given)

    def largest(steps: list[Step]) -> int:
        return sum(max(int(given.lengths[rank[0]].sum()) for rank in step) for step in steps)

    assert largest(verl) == pytest.approx(largest(ours), rel=0.01)


@pytest.mark.parametrize(
    ("name", "package"),
    [
        ("length_grouped", "transformers.trainer_pt_utils"),
        ("batch_rebalance", "transformers.trainer_pt_utils"),
        ("verl", "verl"),
        ("deepspeed", "deepspeed"),
        ("lhotse", "lhotse"),
        ("cosmos_rl", "cosmos_rl"),
        ("online_dynamic_batching", "odb"),
        ("megatron", "megatron"),
    ],
)
def test_an_absent_package_is_a_reason(name: str, package: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for module in [m for m in sys.modules if m.startswith(f"{package}.")]:
        monkeypatch.delitem(sys.modules, module)
    monkeypatch.setitem(sys.modules, package, None)  # what the import system takes for "not installed"
    with pytest.raises(PeerMissing) as missing:
        PEERS[name].steps(problem())
    assert "pip install" in missing.value.reason
    assert package.partition(".")[0] in missing.value.reason


def test_importing_peers_imports_no_package_of_theirs() -> None:
    heavy = {"torch", "transformers", "verl", "deepspeed", "lhotse", "cosmos_rl", "odb", "megatron"}
    check = f"import sys, ddpsched.peers, ddpsched.planning.policies.peer\nsys.exit(bool({heavy!r} & set(sys.modules)))"
    assert subprocess.run([sys.executable, "-c", check], cwd=ROOT).returncode == 0
