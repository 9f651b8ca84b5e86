"""Samplers and loaders that plan with costs, memory and speeds, as a run of the same tables does."""

import json
from typing import Any

import numpy as np
import pytest
from plan_commands import fill

from ddpsched import BatchSampler, PoolStream, StepLoader, World, for_world_size
from ddpsched.config import parse
from ddpsched.data.embedded.length_histogram import sst2_lengths
from ddpsched.data.lengths import KnownLengths
from ddpsched.errors import ConfigError, InfeasibleError
from ddpsched.exchange import LocalExchange
from ddpsched.planning.planner import plan_steps

LENGTHS = sst2_lengths(203, np.random.default_rng(0))
SEVERAL = {"kind": "balanced", "max_microbatches": 4}


@pytest.fixture(scope="module")
def calibration(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(fill(tmp_path_factory.mktemp("device")) / "calibration.json")


def loaders(size: int = 2, **words: Any) -> list[StepLoader]:
    data = list(range(len(LENGTHS)))
    words = {"global_batch": 16, "collate_fn": list, **words}
    return [StepLoader(data, LENGTHS, world=World(rank, size), **words) for rank in range(size)]


def costs_of(calibration: str) -> dict[str, dict[str, Any]]:
    device = {"path": calibration}
    return {
        "alpha": {"cost": {"kind": "padded_tokens", "alpha": 40.0}},
        "gamma": {"cost": {"kind": "padded_tokens", "gamma": 0.05}},
        "calibrated": {"cost": {"kind": "calibrated", **device}},
        "memory": {"cost": {"kind": "calibrated", **device}, "memory": {**device, "budget_bytes": 1_500_000}},
    }


@pytest.mark.parametrize("name", ["alpha", "gamma", "calibrated", "memory"])
@pytest.mark.parametrize(
    "policy", [SEVERAL, {"kind": "balanced"}, {"kind": "minmax", "prefetch": 32}, {"kind": "packed"}]
)
def test_plans_are_those_of_a_run_with_these_tables(name: str, policy: dict[str, Any], calibration: str) -> None:
    words = costs_of(calibration)[name]
    config = parse({"epochs": 1, "global_batch": 16, "world_size": 2, "policy": policy, **words})
    allowed = [config.memory.budget_bytes] * 2 if config.memory.budget_bytes else None
    config = config.model_copy(update={"data": config.data.model_copy(update={"max_length": int(LENGTHS.max())})})
    expected = plan_steps(config.plan_spec(allowed), KnownLengths(LENGTHS), LocalExchange(2))
    (rank, _) = loaders(policy=policy, **words)
    plain = [plan.digest for plan in loaders(policy=policy)[0].plans()]
    found = [plan.digest for plan in rank.plans()]
    assert found == [plan.digest for plan in expected]
    if policy is SEVERAL:
        assert found != plain, "the cost decides how many micro-batches are worth it"


def test_a_fixed_cost_leaves_fewer_micro_batches() -> None:
    """Without one, all M are used up, though each costs time by itself."""
    counts = [
        sum(len(rank) for plan in loaders(policy=SEVERAL, cost=cost)[0].plans() for rank in plan.ranks)
        for cost in ("padded_tokens", {"kind": "padded_tokens", "alpha": 1000.0})
    ]
    steps = -(-len(LENGTHS) // 16)
    assert counts[0] > 7 * steps
    assert counts[1] == 2 * steps


def test_no_micro_batch_is_larger_than_memory(calibration: str) -> None:
    """300 padded tokens beside the model, which `fill` writes."""
    words = {"policy": SEVERAL, "memory": {"path": calibration, "budget_bytes": 1_300_000}}
    micros = [micro for plan in loaders(**words)[0].plans() for rank in plan.ranks for micro in rank]
    assert max(len(micro) * micro.padded_length(LENGTHS[micro.ids]) for micro in micros) <= 300
    with pytest.raises(InfeasibleError, match="memory"):
        next(loaders(**words | {"policy": "static"})[0].plans())


@pytest.mark.parametrize("policy", ["balanced", "packed", "minmax"])
def test_a_slow_rank_gets_less(policy: str) -> None:
    for speeds in ((1.0, 0.5), (3, 1.5)):
        tokens = np.zeros(2)
        for plan in loaders(policy=policy, speeds=speeds)[0].plans():
            tokens += [LENGTHS[plan.rank_ids(rank)].sum() for rank in range(2)]
        assert tokens[1] < 0.75 * tokens[0]


def test_each_sample_still_comes_once_and_ranks_agree() -> None:
    words = {"policy": SEVERAL, "cost": {"kind": "padded_tokens", "alpha": 30.0}, "speeds": (1.0, 0.7, 0.9)}
    ranks = loaders(3, **words)
    seen = [id for step in zip(*ranks, strict=True) for batches in step for batch in batches for id in batch]
    assert sorted(seen) == list(range(len(LENGTHS)))


@pytest.mark.parametrize(
    ("words", "named"),
    [
        ({"cost": {"kind": "padded_tokens", "alpha": 5.0}}, "cost.alpha = 0.0, here 5.0"),
        ({"speeds": (1.0, 0.5)}, "speeds = None, here [1.0, 0.5]"),
    ],
)
def test_a_state_is_of_one_cost(words: dict[str, Any], named: str) -> None:
    plain, other = loaders()[0], loaders(**words)[0]
    state = json.loads(json.dumps(plain.state_dict()))
    with pytest.raises(ConfigError) as caught:
        other.load_state_dict(state)
    assert named in str(caught.value)
    again = json.loads(json.dumps(other.state_dict()))
    loaders(**words)[0].load_state_dict(again)


def test_another_world_size_keeps_the_cost() -> None:
    words = {"policy": SEVERAL, "cost": {"kind": "padded_tokens", "alpha": 30.0}}
    first = loaders(2, **words)[0]
    next(iter(first))
    (three, *_) = loaders(3, **words)
    three.load_state_dict(for_world_size(first.state_dict(), 3))
    assert three.first_step == 1


def bad(calibration: str) -> dict[str, tuple[dict[str, Any], str]]:
    return {
        "online": ({"cost": {"kind": "calibrated", "path": calibration, "online": True}}, r"give speeds=\[\.\.\.\]"),
        "probe": ({"memory": {"probe": True, "budget_bytes": 5}}, "a loader has no model or device to ask; give both"),
        "no budget": ({"memory": {"path": calibration}}, "give both path, .* and budget_bytes"),
        "no such cost": ({"cost": "tokens"}, r"cost\.kind = 'tokens': input should be"),
        "no such key": ({"cost": {"kind": "padded_tokens", "alfa": 1}}, "unknown key cost.alfa; did you mean"),
        "no such file": ({"cost": {"kind": "calibrated", "path": "no.json"}}, "calibration no.json: "),
        "speeds of three": ({"speeds": (1, 2, 3)}, "speeds of 3 ranks, but there are 2; give one a rank"),
        "speed of zero": ({"speeds": (1, 0)}, "speeds.* 0.*greater than 0"),
        "speeds of static": ({"policy": "static", "speeds": (1, 2)}, "plans without costs; leave speeds out"),
        "a number": ({"cost": 5}, "cost = 5, needs a name, or a mapping with its name under 'kind'"),
    }


@pytest.mark.parametrize("case", bad(""))
def test_refused(case: str, calibration: str) -> None:
    words, named = bad(calibration)[case]
    with pytest.raises(ConfigError, match=f"StepLoader.*{named}" if "calibration no" not in named else named):
        loaders(**words)


def test_the_sampler_takes_them_too(calibration: str) -> None:
    ranks = [
        BatchSampler(
            LENGTHS,
            global_batch=16,
            world=World(r, 2),
            cost={"kind": "calibrated", "path": calibration},
            speeds=(1, 0.5),
        )
        for r in range(2)
    ]
    assert sorted(id for rank in ranks for ids in rank for id in ids) == list(range(len(LENGTHS)))


def test_a_pool_of_a_stream_keeps_to_memory(calibration: str) -> None:
    texts = ["x" * int(n) for n in LENGTHS]
    policy = {"kind": "pool", "max_tokens_for_batch": 2000, "pool_size": 64}
    for packing in (False, True):
        stream = PoolStream(
            texts, len, policy=policy | {"sequence_packing": packing}, infinite_loop=False, world=World(0, 1),
            memory={"path": calibration, "budget_bytes": 1_300_000},
        )  # fmt: skip
        micros = [micro for step in stream for micro in step]
        assert sorted(map(len, texts)) == sorted(len(text) for micro in micros for text in micro)
        held = [sum(map(len, micro)) if packing else len(micro) * max(map(len, micro)) for micro in micros]
        assert 150 < max(held) <= 300
    with pytest.raises(InfeasibleError, match="memory"):
        list(PoolStream(["x" * 301], len, policy=policy, infinite_loop=False, world=World(0, 1),
                        memory={"path": calibration, "budget_bytes": 1_300_000}))  # fmt: skip
