"""StepLoader resumes the same lists from a small state, within an epoch, without loading the ones before."""

import json
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from test_step_loader import LENGTHS, POLICIES, Rows, loader

from ddpsched import StepLoader, World
from ddpsched.data.order_file import About, OrderedWriter
from ddpsched.errors import ConfigError, DataError


def kept(made: StepLoader) -> dict[str, Any]:
    return json.loads(json.dumps(made.state_dict()))


def shares(made: StepLoader) -> list[Any]:
    return [(batches, made.step) for batches in made]


@pytest.mark.parametrize(
    ("workers", "name"),
    [
        pytest.param(workers, name, marks=pytest.mark.slow if workers and name not in ("minmax", "pool") else ())
        for workers in (0, 2)
        for name in POLICIES
    ],
)
def test_the_same_lists_in_the_middle_of_an_epoch(name: str, workers: int) -> None:
    """Rank 1's state, taken while workers had loaded ahead, equals rank 0's and resumes both."""
    whole = [loader(name, rank, max_num_steps=25) for rank in range(2)]
    expected = [shares(each) for each in whole]
    per_epoch = len(loader(name))
    for done in (0, 1, 3, per_epoch, per_epoch + 2, 25):
        first = [loader(name, rank, max_num_steps=25, num_workers=workers) for rank in range(2)]
        got = [[(batches, each.step) for batches in islice(each, done)] for each in first]
        state = kept(first[1])
        assert state == kept(first[0])
        for rank in range(2):
            resumed = loader(name, rank, max_num_steps=25)
            resumed.load_state_dict(state)
            assert (resumed.first_step, len(resumed)) == (done, 25)
            assert got[rank] + shares(resumed) == expected[rank]


@pytest.mark.parametrize("name", ["balanced", "bins", "pool"])
def test_a_state_one_step_off_is_another_stream(name: str) -> None:
    expected = list(loader(name))
    for done, equal in ((3, True), (2, False)):
        first = loader(name)
        list(islice(first, done))
        resumed = loader(name)
        resumed.load_state_dict(first.state_dict())
        assert (list(resumed) == expected[3:]) == equal


def test_no_sample_of_the_steps_before_is_loaded() -> None:
    first, data = loader("pool", max_num_steps=40), Rows()
    list(islice(first, 30))
    resumed = loader("pool", dataset=data, max_num_steps=40)
    resumed.load_state_dict(first.state_dict())
    assert data.asked == []
    assert data.asked == [id for batches in resumed for batch in batches for id in batch]


def test_a_data_set_that_grows_is_named() -> None:
    data = list(range(20))
    steps = StepLoader(data, [3] * 20, global_batch=4, collate_fn=list)
    list(steps)
    data.append(20)
    with pytest.raises(DataError, match="the data set has 21 samples, but there are 20 lengths"):
        next(iter(steps))


def test_around_the_end_of_an_epoch() -> None:
    """After the last list nothing is left of the epoch; after the iteration's end the next one begins."""
    epochs, first = [], loader("pool")
    for epoch in range(3):
        first.set_epoch(epoch)
        epochs.append(list(first))
    first.set_epoch(1)
    lists = iter(first)
    list(islice(lists, len(epochs[1])))
    nothing_left = kept(first)
    assert next(lists, None) is None
    over = kept(first)
    assert list(first) == epochs[2], "without set_epoch the next iteration is the next epoch"
    resumed = loader("pool")
    resumed.load_state_dict(nothing_left)
    assert (resumed.epoch, list(resumed), list(resumed)) == (1, [], epochs[2])
    resumed.load_state_dict(over)
    assert (resumed.epoch, list(resumed)) == (2, epochs[2])
    resumed.load_state_dict(nothing_left)
    with pytest.warns(UserWarning, match=r"StepLoader: set_epoch\(0\) drops the loaded position, step \d+ of epoch 1"):
        resumed.set_epoch(0)
    assert list(resumed) == epochs[0], "another epoch than the state's begins at its first step"


def test_the_end_of_a_run_and_more_steps_after_it() -> None:
    whole = list(loader("pool", max_num_steps=30))
    first = loader("pool", max_num_steps=20)
    assert list(first) == whole[:20]
    resumed = loader("pool", max_num_steps=20)
    resumed.load_state_dict(kept(first))
    assert list(resumed) == []
    longer = loader("pool", max_num_steps=30)
    longer.load_state_dict(kept(first))
    assert list(longer) == whole[20:]
    with pytest.raises(ConfigError, match="the state is after 20 steps, but max_num_steps = 19"):
        loader("pool", max_num_steps=19).load_state_dict(kept(first))
    two, three = loader("pool", epochs=2), list(loader("pool", epochs=3))
    done = list(two)
    more = loader("pool", epochs=3)
    more.load_state_dict(kept(two))
    assert done + list(more) == three
    later = loader("pool", epochs=3)
    list(later)
    with pytest.raises(ConfigError, match="in epoch 2 of a run that began with 0, but epochs = 1"):
        loader("pool", epochs=1).load_state_dict(kept(later))
    with pytest.raises(ConfigError, match="here an iteration is one epoch; give max_num_steps or epochs"):
        loader("pool").load_state_dict(kept(later))


def test_epochs_counted_from_the_one_that_is_set() -> None:
    whole = list(loader("bins", epochs=4))
    per_epoch = len(loader("bins"))
    later = loader("bins", epochs=2)
    later.set_epoch(1)
    lists = list(later)
    assert lists == whole[per_epoch : 3 * per_epoch]
    first = loader("bins", epochs=2)
    first.set_epoch(1)
    list(islice(first, per_epoch + 1))
    resumed = loader("bins", epochs=2)
    resumed.load_state_dict(kept(first))
    assert list(resumed) == lists[per_epoch + 1 :]


def test_skipping_goes_on_from_a_loaded_state() -> None:
    whole, first = list(loader("pool", max_num_steps=20)), loader("pool", max_num_steps=20)
    list(islice(first, 5))
    resumed = loader("pool", max_num_steps=20)
    resumed.load_state_dict(kept(first))
    resumed.skip_batches(6)
    again = loader("pool", max_num_steps=20)
    again.load_state_dict(kept(resumed))
    assert list(resumed) == list(again) == whole[11:]


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"lengths": LENGTHS[::-1]}, r"the state is of another StepLoader: data \(the digest of its lengths\) = "),
        ({"seed": 6}, "seed = 5, here 6;"),
        ({"order": "sequential"}, "order.kind = 'shuffled', here 'sequential';"),
        ({"world": World(0, 3)}, "world_size = 2, here 3;"),
        ({"policy": {**POLICIES["pool"], "batches_per_optimizer_step": 3}}, "batches_per_optimizer_step = 2, here 3;"),
        ({"policy": POLICIES["bins"]}, "policy.kind = 'pool', here 'bins'"),
    ],
)
def test_the_state_of_another_loader(changes: dict[str, Any], words: str) -> None:
    first = loader("pool")
    list(islice(first, 2))
    other = loader("pool", **changes)
    with pytest.raises(ConfigError, match=words):
        other.load_state_dict(kept(first))
    assert list(other) == list(loader("pool", **changes)), "a refused state changes nothing"


def test_a_state_that_cannot_be_read() -> None:
    first = loader("pool")
    list(islice(first, 2))
    state = kept(first)
    for wrong, words in (
        (None, "the state of a StepLoader needs exactly"),
        ({key: value for key, value in state.items() if key != "first_epoch"}, "needs exactly .*'first_epoch'"),
        ({**state, "first_epoch": 1}, "first_epoch = 1 is not one of 0 to 0"),
        ({**state, "first_epoch": None}, "first_epoch = None"),
        ({**state, "position": {**state["position"], "cursor": 4000}}, "cursor = 4000 lies beyond the data"),
    ):
        with pytest.raises(ConfigError, match=words):
            loader("pool").load_state_dict(wrong)  # type: ignore[arg-type]


def test_ordered_files_are_told_apart_by_what_they_hold(tmp_path: Path) -> None:
    """A curriculum resumes from a copy of its file, and not from another order."""
    ids = np.argsort(LENGTHS, kind="stable")
    paths = [tmp_path / name for name in ("order.npy", "copy.npy", "other.npy")]
    for path, order in zip(paths, (ids, ids, ids[::-1]), strict=True):
        writer = OrderedWriter(path, len(ids), [np.dtype(np.int64)] * 2, About(("length",), "data", "somewhere"))
        writer.begin()
        writer.finish(writer.write(0, [np.sort(LENGTHS), order]))
    made = [loader("static", order={"kind": "curriculum", "path": str(path)}) for path in paths]
    whole = list(made[0])
    assert sorted(id for batches in whole for batch in batches for id in batch)[:3] != []
    lists = iter(made[0])
    next(lists)
    made[1].load_state_dict(kept(made[0]))
    assert list(made[1]) == whole[1:]
    with pytest.raises(ConfigError, match=r"order\.path"):
        made[2].load_state_dict(kept(made[0]))
    by_length = loader("static", order="curriculum")
    assert list(by_length) == whole, "without a file by length"


@pytest.mark.parametrize("workers", [0, 2])
def test_skipping_before_and_after_an_epoch_is_named(workers: int) -> None:
    """The order of both calls does not matter, also in a state taken before the first list."""
    whole = loader("pool")
    whole.set_epoch(1)
    expected = list(whole)
    for skip_first in (True, False):
        made = loader("pool", num_workers=workers)
        for work in (made.skip_batches, made.set_epoch) if skip_first else (made.set_epoch, made.skip_batches):
            work(3 if work == made.skip_batches else 1)
        resumed = loader("pool")
        resumed.load_state_dict(kept(made))
        assert (made.epoch, made.first_step) == (1, 3)
        assert list(made) == list(resumed) == expected[3:]
    first = loader("pool")
    first.set_epoch(1)
    list(islice(first, 2))
    resumed = loader("pool")
    resumed.load_state_dict(kept(first))
    resumed.skip_batches(1)
    resumed.set_epoch(1)
    assert list(resumed) == expected[3:] != []


@pytest.mark.parametrize("workers", [0, 2])
def test_epochs_follow_each_other_and_a_look_changes_nothing(workers: int) -> None:
    """Epochs also advance where a loop takes the last list and never asks for the end."""
    expected = loader("balanced", global_batch=40)
    epochs = []
    for epoch in range(3):
        expected.set_epoch(epoch)
        epochs.append(list(expected))
    made = loader("balanced", global_batch=40, num_workers=workers)
    assert next(iter(made)) == epochs[0][0]
    assert list(islice(made, len(epochs[0]))) == epochs[0]
    state = kept(made)
    assert [list(made), list(made)] == epochs[1:]
    resumed = loader("balanced", global_batch=40, num_workers=workers)
    resumed.load_state_dict(state)
    assert [list(resumed), list(resumed)] == [[], epochs[1]]
    resumed.load_state_dict(kept(made))
    resumed.set_epoch(1)
    next(iter(resumed))
    assert list(resumed) == epochs[1]


@pytest.mark.parametrize("last", ["smaller", "join", "drop"])
def test_the_last_step_of_an_epoch(last: str) -> None:
    """103 samples in steps of 34 leave one for three ranks."""
    ranks = [loader("balanced", rank, 3, global_batch=34, last=last) for rank in range(3)]
    length = len(ranks[0])
    steps = list(zip(*ranks, strict=True))
    assert len(steps) == length == (4 if last == "smaller" else 3)
    empty = [not batches for step in steps for batches in step]
    assert sum(empty) == (2 if last == "smaller" else 0)
    ids = [id for step in steps for batches in step for batch in batches for id in batch]
    assert len(ids) == len(set(ids)) == (102 if last == "drop" else 103)
