"""A gradient equal to its target holds; otherwise the cause names the weights of its samples."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ddpsched.certify.gradient_comparison import TOLERANCES, compare
from ddpsched.certify.target import Target, draw_coordinates

SIZE = 400


def target_of(counts: list[int], ranks: list[int], seed: int = 0, alike: float = 0.0, **rest: object) -> Target:
    """Return parts of ``counts`` samples, whose gradients share a direction by ``alike``, at all coordinates."""
    rng = np.random.default_rng(seed)
    common = rng.normal(size=SIZE)
    parts = np.array([n * (alike * common + (1 - alike) * rng.normal(size=SIZE)) for n in counts])
    return Target(
        gradient=parts.sum(axis=0) / sum(counts), parts=parts, coordinates=np.arange(SIZE), counts=np.array(counts),
        ranks=np.array(ranks), **rest,
    )  # type: ignore[arg-type] # fmt: skip


def cause_of(weights: np.ndarray, target: Target, tolerance: float = 1e-12) -> str:
    likeness = compare(weights @ target.parts, target, tolerance)
    assert not likeness.holds
    assert likeness.cause is not None
    return likeness.cause


def mistaken(target: Target) -> dict[str, np.ndarray]:
    """Return the weights of each mistake, keyed by the words that must name it.

    The first of the three ranks has four micro-batches.
    """
    counts, ranks, size = target.counts, target.ranks, target.num_ranks
    total, right = target.total, np.full(len(counts), 1 / target.total)
    by_rank, steps = np.bincount(ranks, weights=counts), np.bincount(ranks)
    last = np.append(ranks[1:] != ranks[:-1], True)
    return {
        "summed over 3 ranks and not averaged": 3 * right,
        "multiplied by the number of ranks": 3 * right,
        "averaged twice over the 3 ranks": right / 3,
        "not divided by the 4 accumulation steps": 4 * right,
        "divided by the 4 accumulation steps, though": right / 4,
        "summed over 3 ranks and 4 accumulation steps": 12 * right,
        "its sign is turned": -right,
        f"not divided by the {total:g} samples": total * right,
        f"divided twice by the {total:g} samples": right / total,
        "0.7 times what it should be: clipping": 0.7 * right,
        "every rank takes the mean over its own samples (no scale G*b_r/B)": 1 / (size * by_rank[ranks]),
        "every rank takes the mean over its own samples (no scale G*b_r/B): rank 0": 3 / (size * by_rank[ranks]),
        "every micro-batch weighs the same": 1 / (len(counts) * counts),
        "mean of its micro-batches' means": 1 / (size * steps[ranks] * counts),
        "rank 1's samples are missing": np.where(ranks == 1, 0, right),
        "rank 2's samples are missing from the gradient; the others": np.where(ranks == 2, 0, 1 / (total - by_rank[2])),
        "not synchronised: this is rank 0's own gradient, the mean": np.where(ranks == 0, 1 / by_rank[0], 0),
        "not synchronised: this is rank 1's own gradient": np.where(ranks == 1, right, 0),
        "only each rank's last micro-batch": np.where(last, right, 0),
        "only each rank's first micro-batch": np.where(np.append(True, last[:-1]), right, 0),
        "micro-batch 1 of rank 0: 2 (all others 1)": right * np.where(np.arange(len(counts)) == 1, 2, 1),
    }


THREE = ([5, 3, 2, 1, 4, 1, 6], [0, 0, 0, 0, 1, 1, 2])


@pytest.mark.parametrize("alike", [0.0, 0.9, 0.9999])
@pytest.mark.parametrize("words", mistaken(target_of(*THREE)))
def test_a_known_mistake_is_named(words: str, alike: float) -> None:
    target = target_of(*THREE, alike=alike)
    assert words in cause_of(mistaken(target)[words], target)


@pytest.mark.parametrize("precision", TOLERANCES)
def test_rounding_hides_no_mistake(precision: str) -> None:
    """Wrong weights are named despite the noise that the tolerance allows."""
    tolerance, target = TOLERANCES[precision], target_of(*THREE)
    noise = np.random.default_rng(1).normal(size=SIZE) * tolerance / 3 / SIZE**0.5
    right = target.gradient + noise * np.linalg.norm(target.gradient)
    assert compare(right, target, tolerance).holds
    rank_means = mistaken(target)["every rank takes the mean over its own samples (no scale G*b_r/B)"] @ target.parts
    likeness = compare(rank_means + noise * np.linalg.norm(rank_means), target, tolerance)
    assert "every rank takes the mean over its own samples" in (likeness.cause or "")


@given(
    st.lists(st.tuples(st.integers(1, 9), st.integers(0, 3)), min_size=1, max_size=9),
    st.sampled_from([0.0, 0.5, 0.99, 1.0]),
    st.integers(0, 1000),
)
def test_the_right_weights_hold_and_others_do_not(given: list[tuple[int, int]], alike: float, seed: int) -> None:
    counts, ranks = zip(*sorted(given, key=lambda each: each[1]), strict=True)
    target = target_of(list(counts), list(ranks), seed, alike)
    right = np.full(len(counts), 1 / target.total)
    likeness = compare(right @ target.parts, target, 1e-12)
    assert likeness.holds
    assert likeness.cause is None
    assert likeness.weights == pytest.approx(right, rel=1e-6)
    assert compare(1.5 * right @ target.parts, target, 1e-12).best_scale == pytest.approx(1.5)
    alien = np.random.default_rng(seed + 1).normal(size=SIZE)
    assert "not a combination of these samples' gradients" in (compare(alien, target, 1e-12).cause or "")


@given(st.lists(st.integers(1, 9), min_size=2, max_size=4), st.integers(0, 1000), st.floats(0.1, 10))
def test_parallel_gradients_are_blamed_on_nothing_in_particular(counts: list[int], seed: int, factor: float) -> None:
    """Weights cannot be determined if all samples have the same gradient."""
    target = target_of(counts, list(range(len(counts))), seed, alike=1.0)
    gradient = factor * target.gradient
    if not compare(gradient, target, 1e-12).holds:
        assert cause_of_gradient(gradient, target).startswith("cannot tell, as the samples' gradients are alike")


def test_two_ranks_that_do_not_meet() -> None:
    target = target_of([3, 4], [0, 1])
    cause = cause_of(np.array([0, 1 / 7]), target)
    assert cause == "rank 0's samples are missing from the gradient; not synchronised: this is rank 1's own gradient"


def test_another_count() -> None:
    """Samples are weighted where label tokens count: each rank's mean, by its share of samples."""
    tokens, samples = [30, 12], np.array([4, 9])
    target = target_of(tokens, [0, 1], others={"samples": samples}, unit="tokens")
    cause = cause_of(samples / (13 * np.array(tokens)), target)
    assert "each rank's mean is weighted by its share of samples, not of what counts" in cause
    assert "(no scale G*n_r/N)" in cause_of(1 / (2 * np.array(tokens)), target)


def test_single_samples_are_named() -> None:
    target = target_of([1] * 4, [0, 0, 1, 1], names=tuple(f"sample {i}" for i in (7, 9, 4, 2)))
    cause = cause_of(np.array([1, 0, 2, 1]) / 4, target)
    assert "sample 9: 0, sample 4: 2 (all others 1)" in cause


def test_a_lower_precision_is_named() -> None:
    target = target_of(*THREE)
    cause = cause_of_gradient(target.gradient.astype(np.float32).astype(np.float64), target)
    assert "lower precision" in cause


def cause_of_gradient(gradient: np.ndarray, target: Target) -> str:
    return compare(gradient, target, 1e-12).cause or ""


def test_gradients_that_are_none() -> None:
    target = target_of([3, 4], [0, 1])
    assert "the gradient is zero" in cause_of_gradient(np.zeros(SIZE), target)
    with_nan = target.gradient.copy()
    with_nan[3] = np.nan
    likeness = compare(with_nan, target, 1e-12)
    assert not likeness.holds
    assert "NaN or infinity" in (likeness.cause or "")
    with pytest.raises(ValueError, match="cannot be compared"):
        compare(np.zeros(3), target, 1e-12)
    nothing = target_of([1], [0])
    nothing.gradient[:], nothing.parts[:] = 0, 0
    for gradient in (np.zeros(SIZE), np.ones(SIZE)):
        likeness = compare(gradient, nothing, 1e-12)
        assert not likeness.holds
        assert "the target itself is zero" in (likeness.cause or "")


def test_coordinates_are_drawn_by_the_generator_alone() -> None:
    first, second = (draw_coordinates(10**6, 5, most=1000) for _ in range(2))
    np.testing.assert_array_equal(first, second)
    assert len(np.unique(first)) == 1000
    assert (np.diff(first) > 0).all()
    assert draw_coordinates(7, 0).tolist() == list(range(7))


def test_a_sketch_is_enough() -> None:
    """Weights are read from a part of the coordinates as well as from all."""
    target = target_of(*THREE)
    seen = draw_coordinates(SIZE, 2, most=60)
    part = Target(target.gradient, target.parts[:, seen], seen, target.counts, target.ranks)
    weights = mistaken(target)["every micro-batch weighs the same"]
    likeness = compare(weights @ target.parts, part, 1e-12)
    assert "every micro-batch weighs the same" in (likeness.cause or "")
    assert likeness.residual < 1e-12
