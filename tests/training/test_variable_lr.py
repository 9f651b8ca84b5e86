"""A rate scaled by each step's size equals the base's rate times the factor, whatever came before."""

import copy
import json
from typing import Any

import pytest
import torch
from base_schedulers import BASES, RATES, RECURSIVE, REFERENCE, SIZES, STEPS, Build, in_force, sgd
from torch.optim import lr_scheduler as schedulers
from torch.optim.lr_scheduler import LRScheduler

import ddpsched
from ddpsched.training.variable_lr import RULES, VariableBatchSizeLR


def advance(schedule: Any, step: int) -> None:
    base = getattr(schedule, "base", schedule)
    metric = (1.0 / (1 + min(step, 4)),)  # stops improving at the fifth step
    schedule.step(*metric if isinstance(base, schedulers.ReduceLROnPlateau) else ())


def unscaled(build: Build, tensors: bool = False) -> list[list[tuple[float, float]]]:
    """Return the rates and momenta of the base alone in each step."""
    optimizer = sgd(tensors)
    base, seen = build(optimizer), []
    for step in range(STEPS):
        seen.append(in_force(optimizer))
        optimizer.step()
        advance(base, step)
    return seen


def check_scaled(
    build: Build, rule: str = "linear", kind: type[VariableBatchSizeLR] = VariableBatchSizeLR, tensors: bool = False
) -> None:
    """Check that in every step rates are the base's times the factor, and momentum is the base's."""
    optimizer = sgd(tensors)
    schedule = kind(build(optimizer), REFERENCE, rule)
    for step, (size, base_values) in enumerate(zip(SIZES, unscaled(build, tensors), strict=True)):
        assert in_force(optimizer) == base_values, "between step() and scale(), base's own"
        schedule.scale(SIZES[-1 - step])  # another size is scaled first and then replaced
        schedule.scale(size)
        factor = RULES[rule](size, REFERENCE)
        assert in_force(optimizer) == [(rate * factor, momentum) for rate, momentum in base_values]
        assert schedule.get_last_lr() == [rate for rate, _ in in_force(optimizer)]
        optimizer.step()
        advance(schedule, step)


class Compounding(VariableBatchSizeLR):
    """Scales the groups' present rates."""

    def _base_rates(self) -> list[float]:
        return [float(group["lr"]) for group in self.optimizer.param_groups]


class Leaking(VariableBatchSizeLR):
    """Steps the base while the groups are scaled."""

    def step(self, *args: Any) -> None:
        self.base.step(*args)
        self.size = None
        self._apply()


class OneForAll(VariableBatchSizeLR):
    """Uses one rate for all groups."""

    def _base_rates(self) -> list[float]:
        return [super()._base_rates()[0]] * len(self.optimizer.param_groups)


class Disturbing(VariableBatchSizeLR):
    """Resets more than the rates."""

    def scale(self, size: float) -> None:
        super().scale(size)
        for group in self.optimizer.param_groups:
            group["momentum"] = self.optimizer.defaults["momentum"]


def test_the_worked_example() -> None:
    """30 tokens a step at 1e-3 for a batch of 2: 10 samples of 3 tokens, then 4 of 7."""
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=1e-3)
    schedule = ddpsched.VariableBatchSizeLR(schedulers.LambdaLR(optimizer, lambda step: 1.0), 2)
    used = []
    for length in (3, 7):
        schedule.scale(30 // length)
        used.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        schedule.step()
    assert used == [5e-3, 2e-3]


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("name", BASES)
def test_nothing_compounds(name: str, rule: str) -> None:
    check_scaled(BASES[name], rule)


@pytest.mark.parametrize("name", ["LambdaLR", "ExponentialLR", "CosineAnnealingLR"])
def test_rates_that_are_tensors(name: str) -> None:
    """The tensors are written into, not replaced, as a captured optimizer reads them."""
    check_scaled(BASES[name], tensors=True)
    optimizer = sgd(tensors=True)
    tensors = [group["lr"] for group in optimizer.param_groups]
    VariableBatchSizeLR(BASES[name](optimizer), REFERENCE).scale(24)
    assert all(group["lr"] is tensor for group, tensor in zip(optimizer.param_groups, tensors, strict=True))


@pytest.mark.parametrize("name", BASES)
def test_the_comparison_sees_a_rate_that_compounds(name: str) -> None:
    with pytest.raises(AssertionError):
        check_scaled(BASES[name], kind=Compounding)


@pytest.mark.parametrize("name", RECURSIVE)
def test_the_comparison_sees_a_scaled_rate_that_reaches_base(name: str) -> None:
    with pytest.raises(AssertionError):
        check_scaled(BASES[name], kind=Leaking)


@pytest.mark.parametrize("name", BASES)
def test_the_comparison_sees_one_rate_for_all_groups(name: str) -> None:
    with pytest.raises(AssertionError):
        check_scaled(BASES[name], kind=OneForAll)


@pytest.mark.parametrize("name", ["OneCycleLR", "CyclicLR"])
def test_the_comparison_sees_a_disturbed_momentum(name: str) -> None:
    with pytest.raises(AssertionError):
        check_scaled(BASES[name], kind=Disturbing)


class Training:
    """Steps on a quadratic that can be stopped anywhere and resumed from plain values."""

    POINTS = ("unscaled", "scaled", "stepped")  # before scale(), before optimizer.step(), before step()

    def __init__(self, build: Build, kind: type[VariableBatchSizeLR] = VariableBatchSizeLR) -> None:
        self.optimizer = sgd()
        self.base, self.kind = build(self.optimizer), kind
        self.schedule = kind(self.base, REFERENCE)
        self.weights = [group["params"][0] for group in self.optimizer.param_groups]

    def run(self, first: int, last: int, begin: str = "unscaled", end: str = "unscaled") -> list[list[float]]:
        """Run steps ``first`` to ``last - 1``, and step ``last`` up to ``end``; return the rates that were used."""
        used = []
        for step in range(first, last + 1):
            done = self.POINTS.index(begin) if step == first else 0
            left = self.POINTS.index(end) if step == last else 3
            if done <= 0 < left:
                self.schedule.scale(SIZES[step])
            if done <= 1 < left:
                for weight in self.weights:
                    weight.grad = 2 * weight.detach()
                used.append([group["lr"] for group in self.optimizer.param_groups])
                self.optimizer.step()
            if done <= 2 < left:
                advance(self.schedule, step)
        return used

    def saved(self) -> dict[str, Any]:
        return {
            "weights": [weight.detach().clone() for weight in self.weights],
            "optimizer": copy.deepcopy(self.optimizer.state_dict()),
            "schedule": json.loads(json.dumps(self.schedule.state_dict())),
        }

    def load(self, saved: dict[str, Any], how: str) -> None:
        """Load the wrapper after the optimizer or before it (``wrapper first``), or load ``base`` alone and wrap it."""
        with torch.no_grad():
            for weight, value in zip(self.weights, saved["weights"], strict=True):
                weight.copy_(value)
        if how == "wrapper first":
            self.schedule.load_state_dict(saved["schedule"])
        self.optimizer.load_state_dict(saved["optimizer"])
        if how == "wrapper":
            self.schedule.load_state_dict(saved["schedule"])
        if how == "base":
            self.base.load_state_dict(dict(saved["schedule"]["base"]))  # CyclicLR pops keys from its argument
            self.schedule = self.kind(self.base, REFERENCE)
            if saved["schedule"]["size"] is not None:
                self.schedule.scale(saved["schedule"]["size"])


JSONABLE = [
    name for name in BASES if name != "MultiStepLR"
]  # its state has integer keys, which JSON turns into strings


def check_resumed(build: Build, point: str, how: str, kind: type[VariableBatchSizeLR] = VariableBatchSizeLR) -> None:
    """Stop at ``point`` of step 25 and resume, and compare with a run that was never stopped."""
    whole, first, second = Training(build), Training(build), Training(build, kind)
    expected = whole.run(0, 60)
    used = first.run(0, 25, end=point)
    saved = first.saved()
    kept = copy.deepcopy(saved)
    first.run(25, 40, begin=point)  # continuing does not change a saved state
    second.load(saved, how)
    assert saved["schedule"] == kept["schedule"]
    assert used + second.run(25, 60, begin=point) == expected
    assert all(torch.equal(a, b) for a, b in zip(second.weights, whole.weights, strict=True))


@pytest.mark.parametrize("how", ["wrapper", "wrapper first", "base"])
@pytest.mark.parametrize("point", Training.POINTS)
@pytest.mark.parametrize("name", JSONABLE)
def test_a_resumed_run_is_the_uninterrupted_one(name: str, point: str, how: str) -> None:
    check_resumed(BASES[name], point, how)


class Forgetting(VariableBatchSizeLR):
    """Loses the loaded size."""

    def load_state_dict(self, state: Any) -> None:
        super().load_state_dict({**state, "size": None})


class Restarting(VariableBatchSizeLR):
    """Sets the base back to its first step when it is wrapped."""

    def __init__(self, base: LRScheduler, *rest: Any) -> None:
        super().__init__(base, *rest)
        base.last_epoch = -1
        self.step()


@pytest.mark.parametrize(
    ("kind", "how", "point"),
    [
        (Compounding, "base", "scaled"),
        (Compounding, "wrapper", "scaled"),
        (Forgetting, "wrapper", "scaled"),
        (Restarting, "base", "unscaled"),
    ],
)
def test_the_resumption_test_can_fail(kind: type[VariableBatchSizeLR], how: str, point: str) -> None:
    with pytest.raises(AssertionError):
        check_resumed(BASES["CosineAnnealingLR"], point, how, kind)


def test_wrapping_takes_scaled_rates_back() -> None:
    """An optimizer saved while scaled holds rates that are not the base's."""
    saved = Training(BASES["ExponentialLR"])
    saved.run(0, 3, end="scaled")
    optimizer = sgd()
    base = BASES["ExponentialLR"](optimizer)
    optimizer.load_state_dict(saved.optimizer.state_dict())
    base.load_state_dict(saved.base.state_dict())
    base_rates = [rate * 0.97**3 for rate in RATES]
    assert [group["lr"] for group in optimizer.param_groups] != pytest.approx(base_rates)
    VariableBatchSizeLR(base, REFERENCE)
    assert [group["lr"] for group in optimizer.param_groups] == pytest.approx(base_rates)


def test_a_base_that_advances_once_an_epoch() -> None:
    optimizer = sgd()
    schedule = VariableBatchSizeLR(schedulers.ExponentialLR(optimizer, 0.5), REFERENCE)
    for epoch in range(3):
        for size in SIZES[:10]:
            schedule.scale(size)
            optimizer.step()
            assert schedule.get_last_lr() == [rate * 0.5**epoch * (size / REFERENCE) for rate in RATES]
        schedule.step()


def test_a_torch_whose_last_rate_is_the_groups_own_tensor(monkeypatch: pytest.MonkeyPatch) -> None:
    """Older torch copies no rate, so scaling in place would change the base's last rate."""

    def keep_the_tensor(self: Any, epoch: int | None = None) -> None:
        for group, value in zip(self.optimizer.param_groups, self.get_lr(), strict=True):
            group["lr"].fill_(value)
        self._last_lr = [group["lr"] for group in self.optimizer.param_groups]

    parameter = torch.nn.Parameter(torch.zeros(1))
    optimizer = torch.optim.SGD([parameter], lr=torch.tensor(1e-3))
    monkeypatch.setattr(torch.optim.lr_scheduler.LRScheduler, "_update_lr", keep_the_tensor, raising=False)
    base = torch.optim.lr_scheduler.ExponentialLR(optimizer, 1.0)
    base._last_lr = [group["lr"] for group in optimizer.param_groups]
    schedule = VariableBatchSizeLR(base, 2)
    used = []
    for size in (10, 4, 10):
        schedule.scale(size)
        used += schedule.get_last_lr()
        assert float(optimizer.param_groups[0]["lr"]) == pytest.approx(used[-1])
        assert float(schedule.state_dict()["base"]["_last_lr"][0]) == pytest.approx(1e-3)
        optimizer.step()
        schedule.step()
    assert used == pytest.approx([5e-3, 2e-3, 5e-3])
