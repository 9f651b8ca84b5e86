"""Sizes, references, bases and states that ``VariableBatchSizeLR`` refuses, remaining unchanged."""

import copy
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
import torch
from base_schedulers import BASES, RATES, REFERENCE, in_force, plain, sgd
from torch.optim import lr_scheduler as schedulers

from ddpsched.errors import ConfigError
from ddpsched.training.variable_lr import VariableBatchSizeLR

BAD = [0, -1, -0.5, float("nan"), float("inf"), -float("inf"), None, "8", True, 1j, [8], torch.tensor(8), 10**400]


@pytest.mark.parametrize("value", BAD, ids=lambda value: repr(value)[:12])
def test_sizes_and_references_that_are_no_numbers_above_0(value: Any) -> None:
    base = BASES["ExponentialLR"](sgd())
    with pytest.raises(ValueError, match=r"reference = .*: give a finite number above 0"):
        VariableBatchSizeLR(base, value)
    schedule = VariableBatchSizeLR(base, REFERENCE)
    schedule.scale(24)
    with pytest.raises(ValueError, match=r"size = .*: give a finite number above 0"):
        schedule.scale(value)
    assert schedule.get_last_lr() == [rate * 3 for rate in RATES]  # unchanged


@pytest.mark.parametrize("value", [16, 16.0, np.int64(16), np.float32(16), Fraction(16)], ids=repr)
def test_any_real_number_is_a_size(value: Any) -> None:
    schedule = plain()
    schedule.scale(value)
    assert schedule.get_last_lr() == [rate * 2 for rate in RATES]
    assert type(schedule.state_dict()["size"]) is float


@pytest.mark.parametrize(("reference", "size"), [(1e-300, 1e300), (1e300, 1e-300)])
def test_a_factor_beyond_floats(reference: float, size: float) -> None:
    schedule = VariableBatchSizeLR(BASES["ExponentialLR"](sgd()), reference)
    with pytest.raises(ValueError, match="beyond what a float can hold"):
        schedule.scale(size)
    assert schedule.get_last_lr() == list(RATES)


@pytest.mark.parametrize("rule", ["cubic", "", None, "fixed"])
def test_an_unknown_rule(rule: Any) -> None:
    with pytest.raises(ValueError, match=r"rule = .*: the known ones are 'linear', 'sqrt'"):
        VariableBatchSizeLR(BASES["ExponentialLR"](sgd()), REFERENCE, rule)


def test_what_is_no_scheduler() -> None:
    for thing in (sgd(), None, 1e-3, schedulers.ExponentialLR):
        with pytest.raises(ValueError, match="is not a torch scheduler: it lacks"):
            VariableBatchSizeLR(thing, REFERENCE)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="two would scale twice"):
        VariableBatchSizeLR(plain(), REFERENCE)  # type: ignore[arg-type]


def test_a_group_that_base_does_not_know() -> None:
    optimizer = sgd()
    base = BASES["ExponentialLR"](optimizer)
    schedule = VariableBatchSizeLR(base, REFERENCE)
    optimizer.add_param_group({"params": [torch.nn.Parameter(torch.zeros(1))], "lr": 0.1})
    with pytest.raises(ValueError, match="rates for 2 parameter groups, its optimizer has 3"):
        VariableBatchSizeLR(base, REFERENCE)
    with pytest.raises(ValueError, match="rates for 2 parameter groups, its optimizer has 3"):
        schedule.scale(4)


def state(**changes: Any) -> dict[str, Any]:
    return {**plain().state_dict(), **changes}


@pytest.mark.parametrize(
    ("bad", "why"),
    [
        (state(reference=9.0), r"reference = 9\.0, here 8\.0"),
        (state(rule="sqrt"), "rule = 'sqrt', here 'linear'"),
        (state(scheduler="StepLR"), "scheduler = 'StepLR', here 'ExponentialLR'"),
        (state(size=0), "size = 0: give a finite number above 0"),
        (state(size="4"), "size = '4'"),
        (state(size=float("nan")), "size = nan"),
        (state(base=None), "needs exactly"),
        (state(more=1), "needs exactly .*'more'"),
        ({key: value for key, value in state().items() if key != "size"}, "needs exactly"),
        ({}, r"needs exactly .*got \[\]"),
        (None, "needs exactly .*got None"),
        (state(base={**state()["base"], "_last_lr": [0.1]}), "rates for 1 parameter groups"),
        (state(base={**state()["base"], "_last_lr": None}), "does not fit: TypeError"),
    ],
    ids=lambda value: value[:24] if isinstance(value, str) else "",
)
def test_a_state_that_does_not_fit_changes_nothing(bad: Any, why: str) -> None:
    schedule = plain()
    schedule.optimizer.step()
    schedule.step()
    schedule.scale(24)
    before, rates = copy.deepcopy(schedule.state_dict()), in_force(schedule.optimizer)
    with pytest.raises(ConfigError, match=why):
        schedule.load_state_dict(bad)
    assert schedule.state_dict() == before
    assert in_force(schedule.optimizer) == rates
    schedule.load_state_dict(state())  # a state that fits is still loaded
    assert schedule.get_last_lr() == list(RATES)


def test_torch_trips_over_a_state_of_another_shape() -> None:
    """SequentialLR pops keys from a state; one without them leaves it unchanged."""
    schedule = VariableBatchSizeLR(BASES["SequentialLR"](sgd()), REFERENCE)
    before = copy.deepcopy(schedule.state_dict())
    other = {**before, "base": {key: value for key, value in before["base"].items() if key != "_schedulers"}}
    with pytest.raises(ConfigError, match="does not fit: KeyError"):
        schedule.load_state_dict(other)
    assert schedule.state_dict() == before
