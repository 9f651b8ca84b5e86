"""The length of a StepLoader's iteration, the steps it skips, and the arguments it refuses."""

from collections.abc import Iterator
from itertools import islice
from typing import Any

import numpy as np
import pytest
from step_loaders import LENGTHS, POLICIES, Rows, loader
from torch.utils.data import IterableDataset

from ddpsched import StepLoader, World
from ddpsched.errors import ConfigError, DataError


def test_steps_and_epochs_of_an_iteration() -> None:
    """max_num_steps counts optimizer steps, over any number of micro-batches and epochs."""
    policy = {**POLICIES["pool"], "batches_per_optimizer_step": 4}
    made = loader("pool", policy=policy, world_size=1, max_num_steps=20)
    epoch = len(loader("pool", policy=policy, world_size=1))
    lists = list(made)
    assert len(lists) == len(made) == 20 > epoch > 1
    whole = [len(batches) for batches in lists]
    assert whole.count(4) >= 20 - 20 // epoch - 1, "only an epoch's last step may have fewer"
    ended = loader("pool", policy=policy, world_size=1, max_num_steps=20, infinite_loop=False)
    assert len(list(ended)) == len(ended) == epoch
    by_epochs = loader("pool", policy=policy, world_size=1, epochs=2)
    got = list(by_epochs)
    assert len(got) == len(by_epochs)
    assert got == lists[: len(got)]
    assert got[:epoch] == list(loader("pool", policy=policy, world_size=1))
    static = loader("static", max_num_steps=20)
    assert len(list(static)) == len(static) == 20
    assert len(list(loader("static", max_num_steps=20, infinite_loop=False))) == 7
    counted = loader("static", max_num_steps=np.int64(3))
    counted.skip_batches(np.int64(1))
    assert len(list(counted)) == 2, "numpy's integers are integers"
    with pytest.raises(ConfigError, match="epochs = 2, but infinite_loop=False ends after one"):
        loader("pool", epochs=2, infinite_loop=False)
    with pytest.raises(ConfigError, match="epochs = 2, but infinite_loop=False ends after one"):
        loader("pool", policy={**policy, "infinite_loop": False}, world_size=1, epochs=2)
    with pytest.raises(ConfigError, match=r"policy\.kind = 'pol'.*'static'"):
        loader("pool", policy={"kind": "pol"})


def test_a_thousand_steps_of_four() -> None:
    policy = {"kind": "pool", "max_tokens_for_batch": 8, "pool_size": 8, "batches_per_optimizer_step": 4}
    made = StepLoader(range(64), [4] * 64, world=World(1, 2), policy=policy, max_num_steps=1000, collate_fn=list)
    counts = [len(batches) for batches in made]
    assert (len(counts), sum(counts)) == (1000, 4000)


def test_an_empty_list_and_what_stands_in_for_it() -> None:
    policy = {"kind": "token_budget", "max_tokens_for_batch": 6}
    lists = [
        list(StepLoader(range(3), [6, 6, 2], world=World(rank, 2), policy=policy, order="sequential", collate_fn=list))
        for rank in range(2)
    ]
    assert lists == [[[[0]], [[2]]], [[[1]], []]]
    made = StepLoader(
        ["aaaaaa", "bbbbbb", "cc"], [6, 6, 2], world=World(1, 2), policy=policy, collate_fn=list,
        sample_padding_fn=lambda text, length: text.ljust(length, "."),
    )  # fmt: skip
    assert made.stand_in() == ["cc"]


def test_skipped_steps_load_nothing_and_count() -> None:
    whole = list(loader("pool", max_num_steps=20))
    data = Rows()
    made = loader("pool", dataset=data, max_num_steps=20)
    made.skip_batches(7)
    made.skip_batches(2)
    assert (data.asked, made.first_step, len(made)) == ([], 9, 20)
    made.set_epoch(0)  # as loops over epochs do
    rest = list(made)
    assert rest == whole[9:]
    assert data.asked == [id for batches in rest for batch in batches for id in batch]
    assert made.step is not None
    assert made.step.step == 19
    made.set_epoch(0)
    assert list(made) == whole, "skipped once"
    made.set_epoch(0)
    made.skip_batches(21)
    with pytest.raises(ConfigError, match=r"skip_batches\(21\): only 20 optimizer steps are left"):
        list(made)
    made = loader("pool", max_num_steps=20)
    for wrong in (-1, 1.5, True):
        with pytest.raises(ConfigError, match="give a number of optimizer steps"):
            made.skip_batches(wrong)  # type: ignore[arg-type]
    made.skip_batches(20)
    assert list(made) == []


def test_plans_are_those_of_the_next_iteration() -> None:
    made = loader("bins")
    made.skip_batches(2)
    planned = [[micro.ids.tolist() for micro in plan.ranks[0]] for plan in made.plans()]
    assert planned == list(made)


def test_an_iteration_left_early_begins_anew() -> None:
    made = loader("pool", num_workers=2)
    whole = list(made)
    made.set_epoch(0)
    assert list(islice(made, 2)) == whole[:2]
    assert list(made) == whole


class Stream(IterableDataset[int]):
    def __iter__(self) -> Iterator[int]:
        return iter(())


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"max_num_steps": 3, "epochs": 1}, "max_num_steps = 3 and epochs = 1: give one of the two"),
        ({"max_num_steps": 0}, "StepLoader: max_num_steps = 0: input should be greater than 0"),
        ({"epochs": 1.5}, "StepLoader: epochs = 1.5: input should be a valid integer"),
        ({"dataset": Stream()}, "Stream has no samples by id; use ddpsched.PoolStream"),
        ({"dataset": iter([])}, "list_iterator has no samples by id"),
        ({"batch_size": 8, "shuffle": True}, "batch_size = 8, shuffle = True: the policy decides"),
        ({"global_batch": 16}, "global_batch = 16, but policy 'pool' fills"),
        ({"policy": "balanced"}, "policy 'balanced' needs global_batch"),
        ({"policy": {"kind": "pool", "strategy": "best"}}, "StepLoader: policy.strategy = 'best'"),
        ({"order": "random"}, "StepLoader: order.kind = 'random'"),
        ({"policy": {"kind": "token_budget", "max_tokens_for_batch": [9, 9]}}, "bounds two parts of a sample"),
    ],
)
def test_bad_arguments(changes: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        loader("pool", **changes)


def test_data_that_does_not_fit() -> None:
    with pytest.raises(DataError, match="the data set has 103 samples, but there are 102 lengths"):
        loader("pool", dataset=Rows(), lengths=LENGTHS[1:])
    with pytest.raises(DataError, match=r"lengths\[1\] = 0"):
        StepLoader(range(2), [3, 0], world=World(), policy="pool")
    with pytest.raises(ConfigError, match="2 of 3 samples are longer"):
        list(StepLoader(range(3), [3, 9, 9], world=World(), policy={"kind": "token_budget", "max_tokens_for_batch": 8}))


def test_samples_over_a_pools_budget_run_alone_and_are_counted() -> None:
    lengths = [5, 40, 6, 60, 7]
    pool = StepLoader(
        range(5), lengths, world=World(0, 1), policy={"kind": "pool", "max_tokens_for_batch": 30}, collate_fn=list
    )
    batches = [batch for step in pool for batch in step]
    assert pool.over_budget == 2
    assert all([long] in batches for long in (1, 3))
    assert StepLoader(range(5), lengths, world=World(0, 1), policy="static", global_batch=2).over_budget == 0
