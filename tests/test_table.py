"""Each number of a config has a range, and each name is text that the system takes."""

import math
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any, get_args, get_origin

import pytest
from pydantic import BaseModel

from ddpsched.compare.arms import Tables
from ddpsched.config import RunConfig, apply_overrides, load, parse
from ddpsched.costs.calibration import Calibration
from ddpsched.costs.config import CostConfig, MemoryConfig, caps_of
from ddpsched.costs.memory_cap import MemoryModel
from ddpsched.errors import ConfigError
from ddpsched.integrations.loader_arguments import Arguments
from ddpsched.planning.policies import POLICIES
from ddpsched.planning.solvers.allocation import solve
from ddpsched.table import Table
from experiments.study import Compare

MODELS: list[type[BaseModel]] = [RunConfig, Arguments, Tables, Compare, Calibration, *POLICIES.values()]


def numbers(kind: Any, bounds: tuple[Any, ...] = ()) -> Iterator[tuple[Any, tuple[Any, ...]]]:
    """Yield each number type within a field's type, with the constraints around it."""
    if get_origin(kind) is Annotated:
        inner, *around = get_args(kind)
        yield from numbers(inner, (*bounds, *around))
    elif kind in (int, float, str):
        yield kind, bounds
    elif not (isinstance(kind, type) and issubclass(kind, BaseModel)):
        for each in get_args(kind):
            yield from numbers(each)


def limits(around: tuple[Any, ...]) -> tuple[Any, Any]:
    """Return the least and the largest value that constraints allow, None where they do not say."""
    flat = [each for one in around for each in (getattr(one, "metadata", None) or [one])]
    low = [getattr(each, "ge", getattr(each, "gt", None)) for each in flat]
    high = [getattr(each, "le", getattr(each, "lt", None)) for each in flat]
    return next((x for x in low if x is not None), None), next((x for x in high if x is not None), None)


def fields_of(model: type[BaseModel], seen: set[type]) -> Iterator[tuple[str, Any]]:
    """Yield the fields of a table and of the tables within, each with its type."""
    if model in seen:
        return
    seen.add(model)
    for name, field in model.model_fields.items():
        yield f"{model.__name__}.{name}", Annotated[(field.annotation, *field.metadata, None)]
        for inner in tables_in(field.annotation):
            yield from fields_of(inner, seen)


def tables_in(kind: Any) -> Iterator[type[BaseModel]]:
    if isinstance(kind, type) and issubclass(kind, BaseModel):
        yield kind
    for each in get_args(kind):
        yield from tables_in(each)


FIELDS = dict(each for model in MODELS for each in fields_of(model, set()))


@pytest.mark.parametrize("name", sorted(FIELDS))
def test_each_number_has_a_range(name: str) -> None:
    for kind, around in numbers(FIELDS[name]):
        if kind in (int, float) and name != "Identity.shape":
            low, high = limits(around)
            assert low is not None, f"{name} has no least value"
            assert high is not None, f"{name} has no largest value"
            assert math.isfinite(high)


HUGE = 10**40
PLACES = [
    "steps", "epochs", "global_batch", "world_size", "seed", "data.rows", "data.max_length", "data.size",
    "data.num_labels", "executor.threads", "train.eval_every", "order.window", "order.mega_batches", "lr.reference",
    "memory.budget_bytes", "policy.prefetch", "train.learning_rate", "executor.timeout_s", "sync.bucket_mb",
]  # fmt: skip


@pytest.mark.parametrize("key", PLACES)
@pytest.mark.parametrize(
    "value", [HUGE, -1, 2**200, -HUGE, "1" * 5000, "inf", "nan", "-inf", "1e300", "0x" + "f" * 5000]
)
def test_numbers_out_of_range(key: str, value: object) -> None:
    words = ["executor.kind=simulated", f"{key}={value}", *([] if key in ("steps", "epochs") else ["steps=2"])]
    with pytest.raises(ConfigError, match=rf"{key} = ") as caught:
        parse(apply_overrides({}, words))
    assert len(str(caught.value)) < 500


@pytest.mark.parametrize("key", ["outputs", "data.path", "model.name", "cost.path", "data.text", "order.path"])
@pytest.mark.parametrize(("text", "fault"), [("a\0b", "NUL"), ("a\udce4b", "unicode"), ("a" * 5000, "4096")])
def test_names_that_no_system_takes(key: str, text: str, fault: str) -> None:
    values = {"steps": 1}
    words = {"cost.path": ["cost.kind=calibrated"], "order.path": ["order.kind=curriculum"]}.get(key, [])
    values = apply_overrides(values, words)
    table, _, last = key.rpartition(".")
    if table:
        values.setdefault(table, {})[last] = text
    else:
        values[last] = text
    with pytest.raises(ConfigError, match=rf"{key}\b.*{fault}"):
        parse(values)


@pytest.mark.parametrize(
    ("words", "fault"),
    [
        (
            ["policy.prefetch=1000000", "world_size=1000", "global_batch=1000"],
            r"policy.prefetch \* world_size = .*most",
        ),
        (["policy.kind=packed", "policy.lookahead=1000000", "global_batch=64"], r"policy.lookahead \* global_batch"),
        (
            ["policy.kind=bins", "policy.batches_per_optimizer_step=65536", "world_size=64"],
            "batches_per_optimizer_step",
        ),
        (["policy.kind=balanced", "policy.max_microbatches=1000000000"], "policy.max_microbatches"),
    ],
)
def test_products_that_no_memory_holds(words: list[str], fault: str) -> None:
    with pytest.raises(ConfigError, match=fault):
        parse(apply_overrides({"steps": 1}, words))


@pytest.mark.parametrize("text", ["steps = " + "[" * 5000, ".".join("a" * 5000) + "=1", "steps = " + "1" * 5000])
def test_hostile_files(tmp_path: Path, text: str) -> None:
    (tmp_path / "run.toml").write_text(text)
    with pytest.raises(ConfigError, match=r"run\.toml: not valid TOML: (it is nested|line 1: )"):
        load(tmp_path / "run.toml")


@pytest.mark.parametrize("word", ["steps=" + "[" * 5000, ".".join("a" * 5000) + "=1", "steps=" + "1" * 5000])
def test_hostile_words(word: str) -> None:
    with pytest.raises(ConfigError, match=r"(nested|deep|5,000 digits)") as caught:
        parse(apply_overrides({}, [word]))
    assert len(str(caught.value)) < 400


def test_values_that_are_nested_deeply_in_a_mapping() -> None:
    values: dict[str, Any] = {}
    for _ in range(5000):
        values = {"a": values}
    with pytest.raises(ConfigError, match="nested more than"):
        parse({"steps": 1, "data": values})


@pytest.mark.parametrize("limit", [-1.0, 0.0, float("nan"), float("inf")])
def test_time_limits(limit: float) -> None:
    with pytest.raises(ValueError, match=r"time_limit_s = .*above 0"):
        solve([[1, 2], [1, 3]], 2, method="ilp", time_limit_s=limit)


def test_a_simulated_clock_that_overflows() -> None:
    from ddpsched.data.lengths import KnownLengths
    from ddpsched.simulated import SimulatedExecutor

    config = parse(apply_overrides({"steps": 1}, ["executor.kind=simulated", "executor.gamma_s=1e15"]))
    with pytest.raises(ConfigError, match="gamma_s"):
        SimulatedExecutor(config, KnownLengths([1, 2]))


def test_a_memory_model_that_overflows(monkeypatch: pytest.MonkeyPatch) -> None:
    model = MemoryModel(0, 0, 0, 1e15)
    monkeypatch.setattr(Calibration, "load", classmethod(lambda cls, path: type("", (), {"memory": model})))
    with pytest.raises(ConfigError, match="64-bit"):
        caps_of(MemoryConfig(path="x.json"), [10], 128)


def test_the_test_of_ranges_can_fail() -> None:
    class Open(Table):
        size: int
        costs: CostConfig

    found = dict(fields_of(Open, set()))
    assert [limits(around) for _, around in numbers(found["Open.size"])] == [(None, None)]
    assert [limits(around)[1] for _, around in numbers(found["CostConfig.alpha"])] == [1e15]
