"""token_weights: the weighted sum of token losses is the mean that its name says, and what it refuses."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import ddpsched
from ddpsched.denominators import REFUSED, TARGETS
from ddpsched.errors import ConfigError, DataError

SAMPLES = st.lists(st.tuples(st.integers(1, 9), st.integers(0, 3)), min_size=1, max_size=12)


def plain(target: str, losses: list[np.ndarray], groups: list[int], windows: dict[int, float]) -> float:
    """The mean by its definition, over the losses of each sample's label tokens."""
    if target == "sample_mean":
        return float(np.mean([each.mean() for each in losses]))
    if target == "token_mean":
        return float(np.concatenate(losses).mean())
    if target == "constant_length":
        return float(np.mean([each.sum() / 100 for each in losses]))
    if target == "group_mean":
        of_group = [np.concatenate([e for e, g in zip(losses, groups, strict=True) if g == kind]) for kind in {*groups}]
        return float(np.mean([each.mean() for each in of_group]))
    return float(np.mean([each.sum() / windows[group] for each, group in zip(losses, groups, strict=True)]))


@pytest.mark.parametrize("target", TARGETS)
@given(samples=SAMPLES, seed=st.integers(0, 99), size=st.integers(1, 9))
def test_the_mean_that_it_is_named_for(target: str, samples: list[tuple[int, int]], seed: int, size: int) -> None:
    rng = np.random.default_rng(seed)
    losses, groups = [rng.normal(size=count) for count, _ in samples], [group for _, group in samples]
    windows = {group: 2.5 + group for group in range(4)}
    given: dict[str, Any] = {"constant_length": {"length": 100}, "group_mean": {"groups": groups}}.get(target, {})
    if target == "window_token_mean":
        given = {"length": [windows[group] for group in groups]}
    weights = ddpsched.token_weights(target, [count for count, _ in samples], world_size=size, **given)
    found = sum(weight * each.sum() for weight, each in zip(weights, losses, strict=True)) / size
    assert found == pytest.approx(plain(target, losses, groups, windows), rel=1e-12, abs=1e-12)


def test_a_window_that_is_the_step_is_the_token_mean() -> None:
    counts = [3, 9, 4, 4]
    mean = np.full(4, np.mean(counts))
    assert ddpsched.token_weights("window_token_mean", counts, length=mean) == pytest.approx(
        ddpsched.token_weights("token_mean", counts), rel=1e-15
    )


def test_samples_without_label_tokens_count_where_samples_do() -> None:
    """Adding a token for each, so that nothing is divided by 0, would make all others weigh less."""
    assert ddpsched.token_weights("token_mean", [4, 0]).tolist() == [0.25, 0.25]
    assert ddpsched.token_weights("sample_mean", [4, 0]).tolist() == [0.125, 0.5]
    assert ddpsched.token_weights("group_mean", [4, 0], groups=["a", "b"]).tolist() == [0.125, 0.5]
    assert ddpsched.token_weights("token_mean", [0, 0]).tolist() == [1, 1]


def test_tensors() -> None:
    import torch

    counts, groups = torch.tensor([2, 6]), torch.tensor([1, 1])
    assert ddpsched.token_weights("group_mean", counts, groups=groups).tolist() == [0.125, 0.125]


@pytest.mark.parametrize("target", REFUSED)
def test_ratios_of_sums_are_refused_by_name(target: str) -> None:
    with pytest.raises(ConfigError, match=f"'{target}' is a ratio of sums over the batch: .*Use one of sample"):
        ddpsched.token_weights(target, [1])


@pytest.mark.parametrize(
    ("target", "counts", "more", "named"),
    [
        ("mean", [1], {}, "target = 'mean' is none of sample_mean, token_mean"),
        ("token_mean", [], {}, r"label_tokens of shape \(0,\)"),
        ("token_mean", [1.5], {}, "float64; give one integer a sample"),
        ("token_mean", [[1]], {}, r"shape \(1, 1\)"),
        ("token_mean", [2, -1], {}, "sample 1 has -1 label tokens"),
        ("token_mean", [2], {"groups": [1]}, "'token_mean' takes no groups"),
        ("group_mean", [2], {}, "'group_mean' needs groups"),
        ("group_mean", [2], {"groups": [1, 2]}, r"groups of 2 samples, but there are 1"),
        ("constant_length", [2], {}, "'constant_length' needs length"),
        ("constant_length", [2, 1], {"length": 0}, "length 0.0 of sample 0, needs a finite number above 0"),
        ("window_token_mean", [2, 1], {"length": [3, float("nan")]}, "length nan of sample 1"),
        ("token_mean", [2], {"world_size": 0}, "world_size = 0"),
        ("constant_length", [2, 6], {"length": [2, 6]}, r"length of shape \(2,\), needs a number"),
        ("constant_length", [2, 6], {"length": True}, "length = True, needs a number"),
        ("token_mean", [[1], [2, 3]], {}, "lists of several"),
    ],
)
def test_refused(target: str, counts: Any, more: dict[str, Any], named: str) -> None:
    with pytest.raises((ConfigError, DataError), match=named):
        ddpsched.token_weights(target, counts, **more)
