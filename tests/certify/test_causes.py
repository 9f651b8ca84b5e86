"""A gradient that is lost, multiplied or wrong in one place is named; only rounding is reported as rounding."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ddpsched.certify.causes import times
from ddpsched.certify.gradient_comparison import TOLERANCES, Likeness, compare
from ddpsched.certify.target import Target

SIZES = {"tokens.weight": 256, "hidden.weight": 64, "hidden.bias": 16, "head.weight": 48, "head.bias": 3}
SIZE = sum(SIZES.values())
ROUNDING = ("rounding:", "lower precision")
FLOAT64, FLOAT32 = TOLERANCES["float64"], TOLERANCES["float32"]


def target_of(
    counts: Sequence[int] = (5, 3, 2, 4),
    ranks: Sequence[int] = (0, 0, 1, 2),
    seed: int = 0,
    small: str = "",
    by: float = 1e-5,
) -> Target:
    """Return random parts; the gradient of the parameter ``small`` is ``by`` times as large as the others'."""
    rng = np.random.default_rng(seed)
    parts = np.array([n * rng.normal(size=SIZE) for n in counts])
    target = Target(
        gradient=parts.sum(axis=0) / sum(counts), parts=parts, coordinates=np.arange(SIZE), counts=np.array(counts),
        ranks=np.array(ranks), parameters=SIZES,
    )  # fmt: skip
    if small:
        target.parts[:, target.slices[small]] *= by
        target.gradient[target.slices[small]] *= by
    return target


def noise(target: Target, share: float, seed: int = 123_456) -> np.ndarray:
    """Return the error of summing in a shorter format: no direction, and ``share`` of the gradient's norm."""
    whole = np.random.default_rng(seed).normal(size=len(target.gradient))
    return whole * share * np.linalg.norm(target.gradient) / np.linalg.norm(whole)


def changed(target: Target, name: str, factor: float) -> np.ndarray:
    gradient = target.gradient.copy()
    gradient[target.slices[name]] *= factor
    return gradient


def cause(likeness: Likeness) -> str:
    assert not likeness.holds
    assert likeness.cause is not None
    return likeness.cause


def assert_not_rounding(likeness: Likeness) -> None:
    assert not any(word in cause(likeness) for word in ROUNDING), likeness.cause


@pytest.mark.parametrize("tolerance", [FLOAT64, FLOAT32])
@pytest.mark.parametrize("name", SIZES)
@pytest.mark.parametrize("by", [1.0, 1e-3, 1e-5])
def test_a_lost_parameter_is_named(name: str, by: float, tolerance: float) -> None:
    target = target_of(small=name, by=by)
    gradient = changed(target, name, 0.0) + 0.1 * tolerance * noise(target, 1.0) * (changed(target, name, 0.0) != 0)
    assert cause(compare(gradient, target, tolerance)).startswith(f"the gradient of {name} is missing: 0 everywhere")


@pytest.mark.parametrize("dtype", [np.float64, np.float32])
def test_a_lost_parameter_below_the_tolerance_fails(dtype: Any) -> None:
    """A loss is recognised by many zero coordinates, or by ``grad`` being None."""
    for name, by in (("hidden.bias", 1e-14), ("head.bias", 1e-17)):
        target = target_of(small=name, by=by)
        target = replace(target, gradient=target.gradient.astype(dtype))
        gradient, tolerance = changed(target, name, 0.0), TOLERANCES[np.dtype(dtype).name]
        assert compare(target.gradient.copy(), target, tolerance, missing=[name]).holds, "a gradient that is there"
        text = compare(gradient, target, tolerance, missing=[name])
        assert text.relative_error <= tolerance
        assert f"the gradient of {name} is missing: None, though the losses" in cause(text)
        assert compare(gradient, target, tolerance).holds == (SIZES[name] < 16)


def test_a_parameter_that_no_loss_reaches_is_not_missed() -> None:
    target = target_of(small="hidden.bias", by=0.0)
    assert compare(target.gradient.copy(), target, FLOAT64, missing=["hidden.bias"]).holds
    extra = target.gradient.copy()
    extra[target.slices["hidden.bias"]] = 1e-5
    assert "the gradient of hidden.bias is not 0, though the loss of no sample" in cause(compare(extra, target, 1e-12))


@pytest.mark.parametrize("tolerance", [FLOAT64, FLOAT32])
@pytest.mark.parametrize("count", [1, 3, 8])
def test_lost_coordinates_are_counted(count: int, tolerance: float) -> None:
    target = target_of()
    where = np.argsort(-np.abs(target.gradient[target.slices["hidden.weight"]]))[:count]
    gradient = target.gradient * (1 + 0.1 * tolerance * np.random.default_rng(1).normal(size=SIZE))
    gradient[target.slices["hidden.weight"].start + where] = 0
    text = cause(compare(gradient, target, tolerance))
    assert text == f"the gradient of hidden.weight is missing at {count} of its 64 coordinates"
    unnamed = replace(target, parameters={})
    assert cause(compare(gradient, unnamed, tolerance)) == f"the gradient is missing at {count} of its 387 coordinates"


def test_what_is_wrong_beside_a_lost_parameter_is_told_too() -> None:
    target = target_of(small="head.bias")
    text = cause(compare(3 * changed(target, "head.bias", 0.0), target, FLOAT64))
    assert text.startswith("the gradient of head.bias is missing")
    assert "at all other parameters: 3 times too large: summed over 3 ranks and not averaged" in text


@pytest.mark.parametrize("tolerance", [FLOAT64, FLOAT32])
@pytest.mark.parametrize("factor", [3.0, 0.5, -1.0, 1.01])
@pytest.mark.parametrize("name", SIZES)
def test_a_parameter_with_a_factor_of_its_own_is_named(name: str, factor: float, tolerance: float) -> None:
    target = target_of(small=name, by=1e-2)
    text = cause(compare(changed(target, name, factor) + noise(target, 0.1 * tolerance), target, tolerance))
    place, _, much = text.partition(" is wrong: ")
    assert place == f"the gradient of {name}, and no other's,"
    assert float(much.partition(" times ")[0]) == pytest.approx(factor, rel=1e-4)


def test_a_parameter_that_is_not_synchronised_is_named() -> None:
    target = target_of(small="hidden.weight", by=1e-4)
    gradient, where = target.gradient.copy(), target.slices["hidden.weight"]
    gradient[where] = target.parts[target.ranks == 2][0, where] / 4
    text = cause(compare(gradient, target, FLOAT64))
    place, _, what = text.partition(" is wrong: ")
    assert place == "the gradient of hidden.weight, and no other's,"
    assert what.startswith("not synchronised: this is rank 2's own gradient")


@pytest.mark.parametrize(("factor", "words"), [(1e-6, "1.000001"), (-1e-6, "0.999999"), (1e-9, "1.000000001")])
def test_a_common_factor_near_1_is_a_factor(factor: float, words: str) -> None:
    for target in (target_of(), replace(target_of(), parameters={}), target_of([3], [0]), target_of([1, 1], [0, 1])):
        text = cause(compare((1 + factor) * target.gradient, target, FLOAT64))
        assert text.startswith(f"{words} times what it should be: "), text


def test_a_factor_is_told_through_the_noise_of_a_lower_precision() -> None:
    """The gradient is computed in float32 and summed over three ranks."""
    target = target_of()
    text = cause(compare(3 * target.gradient + noise(target, 1e-7), target, FLOAT64))
    assert text.startswith("3 times too large: summed over 3 ranks and not averaged")


@pytest.mark.parametrize("weight", [0.0, 2.0, 0.999])
@pytest.mark.parametrize("size", [1e-4, 1e-8])
def test_a_sample_of_tiny_weight_is_named(size: float, weight: float) -> None:
    target = target_of([1] * 5, [0, 0, 1, 1, 2])
    target.parts[1] *= size
    target = replace(target, gradient=target.parts.sum(axis=0) / 5, names=tuple(f"sample {i}" for i in range(5)))
    weights = np.array([1, weight, 1, 1, 1]) / 5
    text = cause(compare(weights @ target.parts, target, FLOAT64))
    assert text.startswith("the right samples, weighted wrongly; in units of the right weight, sample 1: "), text
    assert text.endswith(" (all others 1)")
    assert float(text.split("sample 1: ")[1].split()[0]) == pytest.approx(weight, abs=0.02)


@settings(max_examples=200, deadline=None)
@given(
    st.lists(st.tuples(st.integers(1, 9), st.integers(0, 3)), min_size=1, max_size=7),
    st.sampled_from([-1, 1]),
    st.floats(-9, 1),
    st.sampled_from([FLOAT64, FLOAT32]),
    st.integers(0, 1000),
)
def test_a_factor_is_never_rounding(
    batch: list[tuple[int, int]], sign: int, magnitude: float, tolerance: float, seed: int
) -> None:
    """The factor is named to within the rounding of the gradient's precision."""
    counts, ranks = zip(*sorted(batch, key=lambda each: each[1]), strict=True)
    target, beyond = target_of(list(counts), list(ranks), seed), sign * 10.0**magnitude
    likeness = compare((1 + beyond) * target.gradient + noise(target, tolerance / 30), target, tolerance)
    if abs(beyond) > 2 * tolerance:
        assert_not_rounding(likeness)
        text = cause(likeness)
        assert " times " in text or beyond == -1 or "alike" in text, text
    assert likeness.best_scale == pytest.approx(1 + beyond, abs=tolerance)


@settings(max_examples=200, deadline=None)
@given(
    st.sampled_from(list(SIZES)), st.floats(-10, 0), st.sampled_from([FLOAT64, FLOAT32]), st.integers(0, 1000),
    st.sampled_from([0.0, 2.0, 0.5, 1.1]),
)  # fmt: skip
def test_a_parameter_of_any_size_is_never_rounding(
    name: str, magnitude: float, tolerance: float, seed: int, factor: float
) -> None:
    target = target_of(seed=seed, small=name, by=10.0**magnitude)
    gradient = changed(target, name, factor)
    gradient += noise(target, tolerance / 30) * (gradient != 0)
    likeness = compare(gradient, target, tolerance)
    if likeness.relative_error > tolerance or (factor == 0 and SIZES[name] >= 16):
        assert_not_rounding(likeness)
        assert name in cause(likeness)


@settings(max_examples=200, deadline=None)
@given(st.integers(0, 1000), st.integers(1, 60), st.sampled_from([FLOAT64, FLOAT32]))
def test_lost_coordinates_are_never_rounding(seed: int, count: int, tolerance: float) -> None:
    target = target_of(seed=seed)
    gradient = target.gradient + noise(target, tolerance / 30)
    gradient[np.random.default_rng(seed).choice(SIZE, count, replace=False)] = 0
    likeness = compare(gradient, target, tolerance)
    if likeness.relative_error > tolerance:
        assert_not_rounding(likeness)
        assert "is missing" in cause(likeness)


@settings(max_examples=200, deadline=None)
@given(st.integers(0, 1000), st.sampled_from([np.float32, np.float16]))
def test_true_rounding_is_called_so(seed: int, lower: Any) -> None:
    target = target_of(seed=seed)
    for gradient in (
        target.gradient.astype(lower).astype(np.float64),
        (target.parts / 14).astype(lower).sum(axis=0, dtype=lower).astype(np.float64),
    ):
        text = cause(compare(gradient, target, FLOAT64))
        assert text.startswith("rounding: computed, or added up, in a lower precision")
        assert ("float32" if lower is np.float32 else "16-bit") in text


def test_noise_that_no_precision_leaves_is_not_called_rounding() -> None:
    target = target_of()
    for share in (1e-10, 5e-5, 0.3):
        assert_not_rounding(compare(target.gradient + noise(target, share), target, FLOAT64))
    few = noise(target, 1e-3) * (np.arange(SIZE) % 50 == 0)
    for known in (target, replace(target, parameters={})):
        assert_not_rounding(compare(target.gradient + few, known, FLOAT64))


def test_rounding_of_one_parameter_is_called_so_and_named() -> None:
    """One parameter's gradient is sent in bfloat16."""
    target, where = target_of(), slice(256, 320)
    gradient = target.gradient.copy()
    gradient[where] += 3e-3 * np.random.default_rng(0).normal(size=64) * gradient[where]
    text = cause(compare(gradient, target, FLOAT64))
    assert text.startswith("the gradient of hidden.weight, and no other's, is wrong: rounding: ")


def cancelling() -> Target:
    """Return parts ten thousand times as large as their sum."""
    target = target_of([1, 1, 1, 1], [0, 0, 1, 1])
    for m in (1, 3):
        target.parts[m] = 1e-4 * target.parts[m] - target.parts[m - 1]
    return replace(target, gradient=target.parts.sum(axis=0) / 4, names=tuple(f"sample {i}" for i in range(4)))


def test_an_allowance_for_cancellation_lets_noise_pass_and_nothing_else() -> None:
    target = cancelling()
    allowed = 2.0**-49 * target.cancellation
    assert 5e-12 < allowed < 1e-10

    def judged(gradient: np.ndarray) -> Likeness:
        assert compare(gradient, target, FLOAT64).relative_error > FLOAT64
        return compare(gradient, target, FLOAT64, rounding=allowed)

    assert judged(target.gradient + noise(target, 0.9 * allowed)).holds
    assert not judged(target.gradient + noise(target, 1.1 * allowed)).holds
    assert cause(judged((1 + 0.9 * allowed) * target.gradient)).startswith("1.0000000")
    for name in SIZES:
        tiny = replace(target, gradient=target.gradient.copy(), parts=target.parts.copy())
        where = tiny.slices[name]
        by = 0.5 * allowed * np.linalg.norm(tiny.gradient) / np.linalg.norm(tiny.gradient[where])
        tiny.gradient[where] *= by
        tiny.parts[:, where] *= by
        likeness = compare(changed(tiny, name, 0.0), tiny, FLOAT64, rounding=allowed)
        assert FLOAT64 < likeness.relative_error < allowed
        assert f"the gradient of {name} is missing" in cause(likeness)


def test_parameters_without_a_sampled_coordinate() -> None:
    """A large model's parts are sampled at few coordinates; a loss at the others is named as well."""
    target, seen = target_of(), np.arange(0, 256, 4)
    target = replace(target, parts=target.parts[:, seen], coordinates=seen)
    assert cause(compare(changed(target, "head.bias", 0.0), target, FLOAT64)).startswith("the gradient of head.bias is")
    text = cause(compare(changed(target, "head.bias", 2.0), target, FLOAT64))
    assert text.startswith("the gradient of head.bias, and no other's, is wrong: 2 times too large")


def test_factors_have_as_many_digits_as_tell_them_from_1() -> None:
    assert [times(each) for each in (1.0, 2, 0.7, 1.002, 1 + 1e-6, 1 - 1e-6, 1 + 1.23e-9)] == [
        "1", "2", "0.7", "1.002", "1.000001", "0.999999", "1.0000000012"
    ]  # fmt: skip
