"""A balanced Trainer that was stopped goes on in the middle of an epoch, with the samples and gradients it had left."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch.distributed as dist
from ranks import run_ranks
from transformers_trainers import SIZE, Step, train

from ddpsched.errors import ConfigError
from ddpsched.integrations.transformers.balanced_trainer import STATE

pytest.importorskip("accelerate")
Case = tuple[str, dict[str, Any], dict[str, Any], int]
BUDGET = {"policy": {"kind": "token_budget", "max_tokens_for_batch": 60}, "seed": 6}
CASES: dict[str, Case] = {
    "in epoch 2": ("classifier", {}, {}, 8),
    "at an epoch's end": ("own", {}, {}, 6),
    "accumulation of 2": ("language", {}, {"gradient_accumulation_steps": 2}, 4),
    "minmax": ("language", {"policy": "minmax"}, {}, 7),
    "epochs of several lengths": ("own", BUDGET, {"gradient_accumulation_steps": 2}, 10),
    "workers": ("own", {}, {"dataloader_num_workers": 1, "dataloader_persistent_workers": True}, 9),
}  # fmt: skip


def both(folder: str, cases: list[Case]) -> list[tuple[list[Step], list[Step], list[Step]]]:

    dist.init_process_group("gloo")
    found = []
    for number, (kind, balancing, more, stop) in enumerate(cases):
        place = f"{folder}/{number}"
        whole = train(kind, balancing, epochs=3, **more)
        first = train(kind, balancing, place, epochs=3, stop=stop, **more)
        rest = train(kind, balancing, place, f"{place}/checkpoint-{stop}", epochs=3, **more)
        found.append((whole, first, rest))
    return found


@pytest.fixture(scope="module")
def ran(tmp_path_factory: pytest.TempPathFactory) -> list[list[tuple[list[Step], list[Step], list[Step]]]]:
    return run_ranks(both, 2, str(tmp_path_factory.mktemp("runs")), list(CASES.values()), timeout_s=200)


@pytest.mark.parametrize("name", CASES)
@pytest.mark.slow
def test_ranks_go_on_with_what_is_left(ran: Any, name: str) -> None:
    for rank in ran:
        whole, first, rest = rank[list(CASES).index(name)]
        assert len(first) == CASES[name][3]
        assert len(first + rest) == len(whole)
        for (ids, sizes, gradient), (ids_then, sizes_then, gradient_then) in zip(first + rest, whole, strict=True):
            assert (ids, sizes) == (ids_then, sizes_then)
            np.testing.assert_array_equal(gradient, gradient_then)


@pytest.mark.slow
def test_every_sample_once_an_epoch_whatever_its_steps(ran: Any) -> None:
    steps = list(zip(*(rank[list(CASES).index("epochs of several lengths")][0] for rank in ran), strict=True))
    ids = [id for step in steps for own, _, _ in step for id in own]
    epochs = [ids[first : first + SIZE] for first in range(0, len(ids), SIZE)]
    assert [sorted(epoch) for epoch in epochs] == [list(range(SIZE))] * 3
    counts = np.cumsum([sum(len(own) for own, _, _ in step) for step in steps]).tolist()
    ends = [counts.index(SIZE * epoch) for epoch in (1, 2, 3)]
    assert len({ends[0] + 1, ends[1] - ends[0], ends[2] - ends[1]}) > 1, "epochs have several numbers of steps"


def on_two(folder: str) -> list[Step]:
    dist.init_process_group("gloo")
    return train("classifier", {}, folder, stop=4, save_steps=4)


def test_with_another_number_of_processes(tmp_path: Path) -> None:
    """Two ranks of 4 samples become one of 8: the global batches stay."""
    begun = run_ranks(on_two, 2, str(tmp_path))
    checkpoint = str(tmp_path / "checkpoint-4")
    rest = train("classifier", {}, resume=checkpoint, per_device_train_batch_size=8)
    whole = train("classifier", {}, per_device_train_batch_size=8)
    steps = [sorted(id for rank in begun for id in rank[step][0]) for step in range(4)]
    assert steps + [sorted(ids) for ids, _, _ in rest] == [sorted(ids) for ids, _, _ in whole]


def test_a_checkpoint_of_other_plans_is_refused(tmp_path: Path) -> None:
    train("own", {}, str(tmp_path), stop=3)
    checkpoint = str(tmp_path / "checkpoint-3")
    for balancing, more, named in (
        ({"seed": 1}, {}, "seed = 42, here 1"),
        ({"policy": "static"}, {}, "policy.kind = 'balanced', here 'static'"),
        ({}, {"per_device_train_batch_size": 5}, "global_batch = 4, here 5"),
        ({"lengths": np.ones(SIZE, dtype=int)}, {}, "data"),
    ):
        with pytest.raises(ConfigError, match=named):
            train("own", balancing, resume=checkpoint, **more)
    (tmp_path / "checkpoint-3" / STATE).write_text("{")
    with pytest.raises(ConfigError, match=f"{STATE}: .*resume from another checkpoint"):
        train("own", {}, resume=checkpoint)


def test_a_checkpoint_without_plans_is_skipped_to(tmp_path: Path) -> None:
    """One of a Trainer without ddpsched has no position of ours; Trainer's own count of steps leads there too."""
    first = train("own", {}, str(tmp_path), stop=14)
    (tmp_path / "checkpoint-14" / STATE).unlink()
    rest = train("own", {}, resume=str(tmp_path / "checkpoint-14"))
    assert [ids for ids, _, _ in first + rest] == [ids for ids, _, _ in train("own", {})]
