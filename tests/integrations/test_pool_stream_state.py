"""States of a pool stream: resumed, skipped, and refused if they belong to another stream."""

import pickle
from itertools import islice
from typing import Any

import pytest
from pool_streams import KINDS, LENGTHS, Rows, Sample, Stateful, numbers, stream
from torch.utils.data import IterableDataset

from ddpsched import PoolStream, World
from ddpsched.errors import ConfigError


@pytest.mark.parametrize("rows", [Rows, Stateful])
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("done", [0, 1, 7, 40, 60])
def test_the_same_lists_from_a_state(rows: type[Rows], kind: str, done: int) -> None:
    """A stream resumes in any epoch; data with a state of its position is not read again, other data is."""
    options = {**KINDS[kind], "max_num_steps": 60, "batches_per_optimizer_step": 2}
    whole = list(stream(rows(), **options))
    first = stream(rows(), **options)
    got, state = list(islice(first, done)), pickle.loads(pickle.dumps(first.state_dict()))
    source = rows()
    resumed = stream(source, **options)
    resumed.load_state_dict(state)
    assert source.given == 0
    assert numbers(got + list(resumed)) == numbers(whole)
    if done == 40:
        assert source.opened[0] == state["reader"]["epoch"] > 0
        fresh = sum(len(batch) for batches in whole[40:] for batch in batches)
        again = source.given - fresh - len(resumed.state_dict()["waiting"]) + len(state["waiting"])
        assert again == (0 if rows is Stateful else state["reader"]["count"])


def test_a_state_one_step_off_is_another_stream() -> None:
    whole, first = list(stream(max_num_steps=20)), stream(max_num_steps=20)
    list(islice(first, 4))
    resumed = stream(max_num_steps=20)
    resumed.load_state_dict(first.state_dict())
    assert list(resumed) != whole[5:]


def test_naming_another_epoch_drops_a_loaded_position() -> None:
    first, resumed = stream(max_num_steps=20), stream(max_num_steps=20)
    list(islice(first, 4))
    resumed.load_state_dict(first.state_dict())
    later = resumed.epoch + 3
    with pytest.warns(UserWarning, match=rf"PoolStream: set_epoch\({later}\) drops the loaded position, step 4 of"):
        resumed.set_epoch(later)
    assert resumed.epoch == later


@pytest.mark.parametrize("rows", [Rows, Stateful])
def test_states_around_the_end_of_an_epoch(rows: type[Rows]) -> None:
    epochs, first = [], stream(rows(), infinite_loop=False)
    for epoch in range(3):
        first.set_epoch(epoch)
        epochs.append(list(first))
    first.set_epoch(1)
    lists = iter(first)
    list(islice(lists, len(epochs[1])))
    nothing_left = first.state_dict()
    assert next(lists, None) is None
    over = first.state_dict()
    resumed = stream(rows(), infinite_loop=False)
    resumed.load_state_dict(nothing_left)
    resumed.set_epoch(1)  # as loops over epochs do
    assert (list(resumed), list(resumed)) == ([], epochs[2])
    resumed.load_state_dict(over)
    assert list(resumed) == epochs[2]
    run = stream(rows(), infinite_loop=False, max_num_steps=10**6)
    list(run)
    again = stream(rows(), infinite_loop=False, max_num_steps=10**6)
    again.load_state_dict(run.state_dict())
    assert list(again) == [], "a whole run's end is kept"


class Iterated(Stateful, IterableDataset[Sample]):
    pass


@pytest.mark.parametrize("workers", [0, 1])
@pytest.mark.parametrize("done", [3, 40, 59])
def test_torchdatas_loader_feeds_and_resumes(workers: int, done: int) -> None:
    """The stream also resumes where a worker process has read ahead."""
    loaders = pytest.importorskip("torchdata.stateful_dataloader")

    def made() -> PoolStream:
        source = loaders.StatefulDataLoader(Iterated(), batch_size=None, num_workers=workers)
        return stream(source, max_num_steps=60)

    first = made()
    got = list(islice(first, done))
    resumed = made()
    resumed.load_state_dict(pickle.loads(pickle.dumps(first.state_dict())))
    assert numbers(got + list(resumed)) == numbers(list(stream(max_num_steps=60)))
    assert resumed.step is not None
    assert resumed.step.epoch > 0


def test_skipped_steps_are_read_but_not_made() -> None:
    whole, made = list(stream(max_num_steps=20)), list[int]()
    skipping = stream(max_num_steps=20, collate_fn=lambda samples: made.append(len(samples)) or samples)
    skipping.skip_batches(5)
    skipping.skip_batches(7)
    again = stream(max_num_steps=20)
    again.load_state_dict(skipping.state_dict())
    assert made == []
    skipping.set_epoch(0)
    assert list(skipping) == list(again) == whole[12:]
    assert len(made) == 8
    skipping.set_epoch(0)
    assert list(skipping) == whole, "skipped once"
    skipping.skip_batches(25)
    assert list(skipping) == []
    with pytest.raises(ConfigError, match="give a number of optimizer steps"):
        skipping.skip_batches(-1)


@pytest.mark.parametrize("rows", [Rows, Stateful])
def test_skipping_before_and_after_an_epoch_is_named(rows: type[Rows]) -> None:
    whole = stream(rows(), max_num_steps=20)
    whole.set_epoch(1)
    expected = list(whole)
    for skip_first in (True, False):
        made = stream(rows(), max_num_steps=20)
        for work in (made.skip_batches, made.set_epoch) if skip_first else (made.set_epoch, made.skip_batches):
            work(5 if work == made.skip_batches else 1)
        resumed = stream(rows(), max_num_steps=20)
        resumed.load_state_dict(made.state_dict())
        assert list(made) == list(resumed) == expected[5:]


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"pool_size": 16}, "the state is of another PoolStream: pool_size = 32, here 16;"),
        ({"strategy": "prefer_first"}, "strategy = 'prefer_closest', here 'prefer_first';"),
        ({"sequence_packing": True}, "strategy = 'prefer_closest', here 'sequence_packing';"),
        ({"world": World(0, 2)}, "world_size = 1, here 2;"),
        ({"max_num_steps": 2}, "after 3 steps, but max_num_steps = 2"),
    ],
)
def test_the_state_of_another_stream(options: dict[str, Any], words: str) -> None:
    first = stream()
    list(islice(first, 3))
    other = stream(**options)
    with pytest.raises(ConfigError, match=words):
        other.load_state_dict(first.state_dict())
    assert list(islice(other, 2)) == list(islice(stream(**options), 2)), "a refused state changes nothing"
    with pytest.raises(ConfigError, match="needs exactly"):
        other.load_state_dict({})


def test_other_data_is_found_out_when_it_is_read_again() -> None:
    first = stream(shuffled := Rows())
    list(islice(first, 20))
    state = first.state_dict()
    assert state["reader"]["epoch"] == shuffled.epoch
    for other in (Rows(LENGTHS[::-1]), Rows(LENGTHS[:20])):
        resumed = stream(other)
        resumed.load_state_dict(state)
        with pytest.raises(ConfigError, match="the state is of other data"):
            next(iter(resumed))
