"""accelerate's loop in one process: what is refused, and where batches and states go."""

import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
from launched import LENGTHS, NUM_SAMPLES, sampler
from torch.utils.data import DataLoader

import ddpsched
from ddpsched import StepLoader, StreamScheduler, World
from ddpsched.errors import ConfigError
from ddpsched.integrations import tested_versions
from ddpsched.integrations.accelerate import prepare

pytest.importorskip("accelerate")
from accelerate import Accelerator


@pytest.fixture
def accelerator() -> Accelerator:
    return Accelerator(cpu=True)


def loader() -> Any:
    return DataLoader(range(NUM_SAMPLES), batch_sampler=sampler(world=World(0, 1)))  # type: ignore[arg-type]


def test_what_would_divide_once_more_is_refused(accelerator: Accelerator) -> None:
    with pytest.raises(ConfigError, match=r"gradient_accumulation_steps=3\): accelerator\.backward would divide"):
        prepare(Accelerator(cpu=True, gradient_accumulation_steps=3), loader())
    with pytest.raises(ConfigError, match="DEEPSPEED divides gradients in its own way; use DDP"):
        prepare(_Deepspeed(), loader())


class _Deepspeed:
    class distributed_type:  # an attribute of accelerate's
        name = "DEEPSPEED"

    gradient_accumulation_steps = 1


def test_batches_are_on_the_device(accelerator: Accelerator) -> None:
    steps = StepLoader([{"x": torch.ones(2)}] * NUM_SAMPLES, LENGTHS, global_batch=16, world=World(0, 1))
    for batches, scale in prepare(accelerator, steps):
        assert {each["x"].device for each in batches} == {accelerator.device}
        assert scale == 1 / sum(len(each["x"]) for each in batches)


def test_a_checkpoint_holds_the_position(accelerator: Accelerator, tmp_path: Path) -> None:
    steps = prepare(accelerator, loader())
    whole = [batch.tolist() for batch, _ in steps] + [batch.tolist() for batch, _ in steps]
    steps.set_epoch(0)
    first = []
    for batch, _ in steps:
        first.append(batch.tolist())
        if len(first) == 2:
            accelerator.save_state(str(tmp_path))
            break
    again = Accelerator(cpu=True)
    rest = prepare(again, loader())
    again.load_state(str(tmp_path))
    assert rest.epoch == 0
    assert first + [batch.tolist() for batch, _ in rest] + [batch.tolist() for batch, _ in rest] == whole


def test_a_checkpoint_of_another_number_of_ranks(accelerator: Accelerator, tmp_path: Path) -> None:
    first = DataLoader(range(NUM_SAMPLES), batch_sampler=sampler(world=World(0, 2)))  # type: ignore[arg-type]
    steps = prepare(accelerator, first)
    for _ in zip(range(2), steps, strict=False):
        pass
    accelerator.save_state(str(tmp_path))
    again = Accelerator(cpu=True)
    rest = prepare(again, loader())
    again.load_state(str(tmp_path))
    seen = [int(number) for batch, _ in rest for number in batch]
    assert len(seen) == len(set(seen)) == NUM_SAMPLES - 2 * 16


def test_a_loader_that_is_not_prepared(accelerator: Accelerator) -> None:
    """accelerator.prepare gives back what it does not know, and iterating it would train all the same."""
    plain = DataLoader([torch.ones(n) for n in LENGTHS], 4, collate_fn=list)
    unknown = accelerator.prepare(ddpsched.balanced(plain))
    with pytest.warns(UserWarning, match=r"iterate ddpsched\.integrations\.accelerate\.prepare\(accelerator, loader\)"):
        next(iter(unknown))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        next(iter(prepare(accelerator, ddpsched.balanced(plain))))


def test_the_state_of_a_stream_is_each_ranks_own(accelerator: Accelerator) -> None:
    prepare(accelerator, StreamScheduler(["a"], len, global_batch=1))
    assert not accelerator._custom_objects


def test_another_version_is_named(accelerator: Accelerator, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tested_versions, "version", lambda name: "2.0.1")
    with pytest.warns(UserWarning, match=r"tested with accelerate 1\.14 to 1\.15, not 2\.0\.1"):
        prepare(accelerator, loader())
