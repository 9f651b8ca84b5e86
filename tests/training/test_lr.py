"""The optimizer's rate follows its rule: warm-up alone, or scaled by the size of each step."""

import math
from typing import Any

import pytest
import torch

from ddpsched.config import LrConfig, TrainConfig
from ddpsched.training.optimise import Optimiser
from ddpsched.training.variable_lr import RULES, linear_warmup

STEPS, RATE = 20, 1e-3
SIZES = [32.0, 8.0, 57.0, 1.0, 100.0]


def optimiser(**lr: Any) -> Optimiser:
    torch.manual_seed(0)
    config = TrainConfig(learning_rate=RATE, warmup=0.2)
    return Optimiser(torch.nn.Linear(3, 2), config, STEPS, LrConfig(**lr), global_batch=32)


def rates(optimiser: Optimiser, sizes: list[Any]) -> list[float]:
    used = []
    for size in sizes:
        for parameter in optimiser._parameters:
            parameter.grad = torch.ones_like(parameter)
        used.append(optimiser.step(size))
    return used


def test_the_rules() -> None:
    assert {name: rule(8, 2) for name, rule in RULES.items()} == {"linear": 4.0, "sqrt": 2.0}
    for rule in RULES.values():
        assert rule(7, 7) == 1.0
        assert rule(3000, 600) == rule(10, 2)  # the unit cancels


def test_every_kind_of_the_config_has_its_rule() -> None:
    kinds = set(LrConfig.model_fields["kind"].annotation.__args__)  # type: ignore[union-attr]
    assert kinds == {"fixed", *RULES}


@pytest.mark.parametrize(
    ("lr", "factors"),
    [
        ({"kind": "fixed"}, [1.0] * len(SIZES)),
        ({"kind": "linear"}, [size / 32 for size in SIZES]),  # the default reference is the global batch
        ({"kind": "linear", "reference": 8}, [size / 8 for size in SIZES]),
        ({"kind": "sqrt"}, [math.sqrt(size / 32) for size in SIZES]),
        ({"kind": "sqrt", "per": "tokens", "reference": 600}, [math.sqrt(size / 600) for size in SIZES]),
    ],
    ids=lambda value: "-".join(map(str, value.values())) if isinstance(value, dict) else "",
)
def test_the_optimisers_rate(lr: dict[str, Any], factors: list[float]) -> None:
    rule = linear_warmup(STEPS, 0.2)
    expected = [RATE * rule(step) * factor for step, factor in enumerate(factors)]
    assert rates(optimiser(**lr), SIZES) == pytest.approx(expected, rel=1e-15)


def test_the_rate_that_is_returned_is_the_one_that_moves_weights() -> None:
    """AdamW's first step without decay is the rate itself in every entry."""
    moved = []
    for size in (32.0, 8.0):
        one = optimiser(kind="linear")
        bias = one._parameters[1]
        before = bias.detach().clone()
        (rate,) = rates(one, [size])
        moved.append(rate)
        assert (before - bias).tolist() == pytest.approx([rate] * 2, rel=1e-4)
    assert moved[0] == pytest.approx(4 * moved[1])


def test_a_fixed_rate_asks_for_no_size() -> None:
    assert rates(optimiser(), [None, 5.0]) == rates(optimiser(), SIZES[:2])
    plain = Optimiser(torch.nn.Linear(3, 2), TrainConfig(learning_rate=RATE, warmup=0.2), STEPS)
    assert rates(plain, [None, None]) == rates(optimiser(), SIZES[:2])


@pytest.mark.parametrize("kind", ["fixed", "linear"])
def test_a_skipped_step_advances_the_schedule(kind: str) -> None:
    one, other = optimiser(kind=kind), optimiser(kind=kind)
    expected = rates(one, SIZES)
    used = rates(other, SIZES[:2])
    other.skip()
    assert used + rates(other, SIZES[3:]) == expected[:2] + expected[3:]
    assert expected[2] != expected[3]  # otherwise no step would differ from the next


def test_a_rule_needs_a_size_and_moves_nothing_without() -> None:
    one = optimiser(kind="sqrt", per="tokens", reference=600)
    for parameter in one._parameters:
        parameter.grad = torch.ones_like(parameter)
    before = [p.detach().clone() for p in one._parameters]
    with pytest.raises(ValueError, match=r"'sqrt' needs the size of each step, in tokens"):
        one.step()
    with pytest.raises(ValueError, match=r"size = 0: "):
        one.step(0)
    assert all(torch.equal(a, b) for a, b in zip(before, one._parameters, strict=True))
    assert one.step(600) == rates(optimiser(), [None])[0]


def test_a_rule_needs_a_reference() -> None:
    with pytest.raises(ValueError, match=r"'linear' needs lr\.reference, or the global batch"):
        Optimiser(torch.nn.Linear(3, 2), TrainConfig(), STEPS, LrConfig(kind="linear"))
