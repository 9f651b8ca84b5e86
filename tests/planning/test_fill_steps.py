"""Plans with a varying global batch: three epochs of every policy, each sample once, all ranks in step."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ddpsched.config import RunConfig, parse
from ddpsched.costs.cost_model import padded_tokens
from ddpsched.data.embedded.length_histogram import sst2_lengths
from ddpsched.data.lengths import KnownLengths
from ddpsched.data.token_table import tokenise
from ddpsched.data.tokenizer import load_tokenizer
from ddpsched.errors import ConfigError
from ddpsched.exchange import LocalExchange
from ddpsched.planning.planner import num_steps, plan_steps
from ddpsched.planning.record_columns import plan_columns

FILLING: dict[str, dict[str, Any]] = {
    "token_budget": {"kind": "token_budget", "max_tokens_for_batch": 426},
    "token_budget, real": {"kind": "token_budget", "max_tokens_for_batch": 426, "budget": "real"},
    "token_budget, same shape": {
        "kind": "token_budget", "max_tokens_for_batch": 426, "same_shape": True, "batches_per_optimizer_step": 2,
    },
    "bins": {"kind": "bins", "median_batch": 32},
    "bins of each rank": {"kind": "bins", "median_batch": 32, "per_rank_bins": True},
    "pool": {"kind": "pool", "max_tokens_for_batch": 426, "pool_size": 256},
    "pool, first": {"kind": "pool", "max_tokens_for_batch": 426, "strategy": "prefer_first"},
    "pool, packed": {"kind": "pool", "max_tokens_for_batch": 426, "sequence_packing": True},
}  # fmt: skip
ARMS: dict[str, dict[str, Any]] = {
    "static": {"policy": {"kind": "static"}},
    "static, padded to the maximum": {"policy": {"kind": "static"}, "data": {"pad_to": "max_length"}},
    "static, length_grouped": {"policy": {"kind": "static"}, "order": {"kind": "length_grouped"}},
    "static, curriculum": {"policy": {"kind": "static"}, "order": {"kind": "curriculum"}},
    "static, paced": {"policy": {"kind": "static"}, "order": {"kind": "curriculum", "pacing": "root"}},
    "static, curriculum_local": {"policy": {"kind": "static"}, "order": {"kind": "curriculum_local"}},
    "token_budget, curriculum": {
        "policy": {"kind": "token_budget", "max_tokens_for_batch": 426}, "order": {"kind": "curriculum", "window": 99},
    },
    "minmax": {"policy": {"kind": "minmax", "prefetch": 64}},
    "balanced": {"policy": {"kind": "balanced"}},
    "packed": {"policy": {"kind": "packed"}},
    **{name: {"policy": policy} for name, policy in FILLING.items()},
}  # fmt: skip


def config_of(values: dict[str, Any], world_size: int, **more: Any) -> RunConfig:
    limit = {} if "steps" in more else {"epochs": 3}
    return parse({**limit, "global_batch": 32, "world_size": world_size, **values, **more})


@pytest.fixture(scope="module")
def lengths(data_dir: Path) -> KnownLengths:
    """Return the lengths of SST-2's whole training split."""
    lines = (data_dir / "sst2" / "train.tsv").read_text(encoding="utf-8").splitlines()[1:]
    table = tokenise(load_tokenizer(str(data_dir / "bert-uncased")), [line.split("\t")[1] for line in lines], 128)
    return KnownLengths(table.lengths(np.arange(len(table))))


def once_an_epoch(config: RunConfig, source: KnownLengths) -> None:
    """Check that every epoch has each sample once, that step numbers are consecutive, and that ranks' shares fit."""
    seen = np.zeros(len(source), dtype=np.int64)
    epochs, last = 0, -1
    for plan in plan_steps(config.plan_spec(), source, LocalExchange(config.world_size)):
        assert plan.step == last + 1
        last = plan.step
        if plan.epoch > epochs:
            assert (seen == plan.epoch).all(), f"after epoch {epochs}"
            epochs = plan.epoch
        np.add.at(seen, plan.ids, 1)
        counts = [len(micro) for micro in plan.ranks]
        assert len(counts) == config.world_size
        if config.policy.varies:  # dealt evenly, so that ranks have as much to do between two synchronisations
            assert max(counts) - min(counts) <= 1
            assert max(counts) <= config.policy.batches_per_optimizer_step
    assert epochs == 2
    assert (seen == 3).all()


@pytest.mark.parametrize("world_size", [1, 2, 3, 4, 8])
@pytest.mark.parametrize("arm", ARMS)
def test_three_epochs(arm: str, world_size: int) -> None:
    once_an_epoch(config_of(ARMS[arm], world_size), KnownLengths(sst2_lengths(3001, np.random.default_rng(0))))


@pytest.mark.parametrize("world_size", [4, *(pytest.param(size, marks=pytest.mark.slow) for size in (1, 2, 3, 8))])
@pytest.mark.parametrize("arm", ARMS)
def test_three_epochs_of_sst2(arm: str, world_size: int, lengths: KnownLengths) -> None:
    once_an_epoch(config_of(ARMS[arm], world_size), lengths)


def test_the_replaced_bins_repeat_and_say_so(lengths: KnownLengths) -> None:
    config = config_of({"policy": {"kind": "bins", "replacement": True}}, 4)
    with pytest.raises(AssertionError, match="after epoch 0"):
        once_an_epoch(config, lengths)


@pytest.mark.parametrize("arm", FILLING)
def test_predicted_costs_are_those_of_the_records(arm: str) -> None:
    source = KnownLengths(sst2_lengths(500, np.random.default_rng(0)))
    config = config_of(ARMS[arm], 3)
    for plan in plan_steps(config.plan_spec(), source, LocalExchange(3)):
        assert plan.predicted_cost is not None
        for rank in range(3):
            columns = plan_columns(config.labels, plan, rank, source)
            assert columns["predicted_cost"] == columns["padded_tokens"]
            if not config.policy.packs:
                assert columns["padded_tokens"] == sum(
                    padded_tokens.price(m, source.lengths(m.ids)) for m in plan.ranks[rank]
                )


def test_one_shape_is_one_length_for_all_ranks() -> None:
    source = KnownLengths(sst2_lengths(500, np.random.default_rng(0)))
    for plan in plan_steps(config_of(ARMS["token_budget, same shape"], 2).plan_spec(), source, LocalExchange(2)):
        shapes = {(len(m), m.padded_length(source.lengths(m.ids))) for rank in plan.ranks for m in rank}
        assert len(shapes) == 1


def test_padded_to_the_maximum() -> None:
    source = KnownLengths(sst2_lengths(500, np.random.default_rng(0)))
    config = config_of({"policy": {"kind": "static"}, "data": {"pad_to": "max_length", "max_length": 99}}, 2)
    for plan in plan_steps(config.plan_spec(), source, LocalExchange(2)):
        assert plan.predicted_cost == tuple(99 * plan.counts)
        assert plan_columns(config.labels, plan, 0, source)["padded_tokens"] == 99 * plan.counts[0]
    digest = next(plan_steps(config_of(ARMS["static"], 2).plan_spec(), source, LocalExchange(2))).digest
    assert digest != next(plan_steps(config.plan_spec(), source, LocalExchange(2))).digest, (
        "another shape is another plan"
    )


def test_number_of_steps() -> None:
    source = KnownLengths(sst2_lengths(700, np.random.default_rng(0)))
    for arm in FILLING:
        config = config_of(ARMS[arm], 2)
        made = [plan.epoch for plan in plan_steps(config.plan_spec(), source, LocalExchange(2))]
        assert num_steps(config.plan_spec(), source) == len(made), "the rate must not reach 0 before the last step"
    assert num_steps(config_of(ARMS["pool"], 2, steps=7).plan_spec(), source) == 7


def test_an_infinite_loop_and_one_that_ends() -> None:
    source = KnownLengths(sst2_lengths(700, np.random.default_rng(0)))
    endless = config_of(ARMS["pool"], 2, steps=100)
    plans = list(plan_steps(endless.plan_spec(), source, LocalExchange(2)))
    assert len(plans) == 100
    assert plans[-1].epoch > 1
    first, second = ([p.ids.tolist() for p in plans if p.epoch == epoch] for epoch in (0, 1))
    assert first[0] != second[0], "each epoch is shuffled anew"
    once = config_of({"policy": {**FILLING["pool"], "infinite_loop": False}}, 2, steps=100)
    ended = list(plan_steps(once.plan_spec(), source, LocalExchange(2)))
    assert [plan.digest for plan in ended] == [plan.digest for plan in plans if plan.epoch == 0]
    assert num_steps(once.plan_spec(), source) == len(ended)


def test_what_does_not_go_together() -> None:
    for values, words in [
        ({"policy": {"kind": "pool"}, "steps": 3, "epochs": 1}, "give exactly one of the two"),
        ({"policy": {"kind": "static", "pool_size": 4}}, "pool_size belongs to kind = 'pool', not 'static'"),
        ({"policy": {"kind": "pool", "max_tokens_for_batch": [4, 4]}}, "pool takes one"),
        ({"policy": {"kind": "token_budget"}}, "needs max_tokens_for_batch"),
        ({"policy": {"kind": "bins"}, "data": {"lengths": "online"}}, "needs every length on every rank"),
        ({"policy": {"kind": "balanced"}, "data": {"pad_to": "max_length"}}, "nothing to gain"),
        ({"policy": {"kind": "pool", "pool_size": 0}}, "greater than 0"),
        (
            {"policy": {"kind": "token_budget", "max_tokens_for_batch": 9, "same_shape": True, "budget": "real"}},
            "padded",
        ),
    ]:
        with pytest.raises(ConfigError, match=words):
            parse({"epochs": 1, **values} if "steps" not in values else values)
