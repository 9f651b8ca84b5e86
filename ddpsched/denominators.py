r"""The mean that a gradient is of: the number that each label token's loss is divided by.

Sample i of a step has n_i label tokens with losses l_it. Every mean here is a weighted sum,

    L = sum_i w_i sum_t l_it

and w_i follows from counts alone, so that it can be known before any loss is. Let B be the samples of a step, N their
label tokens, and p(i) the group of sample i, one of P groups, with N_p label tokens in the step:

    sample_mean           w_i = 1 / (B n_i)        mean of each sequence's mean: GRPO, GSPO
    token_mean            w_i = 1 / N              mean over all label tokens: language models, DAPO
    constant_length       w_i = 1 / (B L)          sum over tokens by a constant length L: Dr. GRPO
    group_mean            w_i = 1 / (P N_p(i))     mean of each prompt's mean over its answers' tokens
    window_token_mean     w_i = 1 / (B m_i)        DAPO where a step and a generation window are not the same

In the last one, m_i is the mean number of label tokens of the samples that were generated together with i, in this step
and in others. Where a step is a whole window it is token_mean, as B m = N.

B, N, P and N_p are of the *whole step*: all micro-batches of all ranks. Then sums over micro-batches and ranks are the
sum over the step, whichever rank runs a sample and in which micro-batch. `report/notes/denominators.md` derives each,
and names the factors that are found where a part's own count is taken instead.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal, get_args

import numpy as np
import numpy.typing as npt

from ddpsched.errors import ConfigError, DataError

Floats = npt.NDArray[np.float64]
Int = npt.NDArray[np.int64]

Target = Literal["sample_mean", "token_mean", "constant_length", "group_mean", "window_token_mean"]
TARGETS: tuple[Target, ...] = get_args(Target)
BY_GROUP = ("group_mean", "window_token_mean")  # need the group of each sample
OF_A_MODEL = "its denominator is a sum of what the model puts out, known after forward only"
REFUSED: Mapping[str, str] = {  # ratios of sums: the gradient of the denominator belongs to the gradient
    "self_normalised": OF_A_MODEL,
    "weighted_mean": "class or sample weights are summed over the batch; pass their sum to Balance.sum_scale",
    "batch_normalised": "its losses are divided by a deviation over the batch, " + OF_A_MODEL,
    "contrastive": "each sample's loss has all others of the batch in its denominator",
}


def check_target(target: Any, name: str = "target") -> str:
    """Return the target. Raises ConfigError for one that there is not, and says why for ratios of sums."""
    if target in TARGETS:
        return str(target)
    if target in REFUSED:
        raise ConfigError(
            f"{name} = {target!r} is a ratio of sums over the batch: {REFUSED[target]}; parts of a step cannot be "
            f"scaled to it. Use one of {', '.join(TARGETS)}"
        )
    raise ConfigError(f"{name} = {target!r} is none of {', '.join(TARGETS)}")


def token_weights(
    target: str,
    label_tokens: npt.ArrayLike,
    *,
    groups: npt.ArrayLike | None = None,
    length: npt.ArrayLike | None = None,
    world_size: int = 1,
) -> Floats:
    """Return the factor of each sample's label-token losses, (B,), for all samples of one optimizer step.

        weights = ddpsched.token_weights("group_mean", label_tokens, groups=prompt_ids, world_size=8)
        for rows in micro_batches:                               # of this rank: positions in the step
            (token_losses(model, rows) * weights[rows, None]).sum().backward()

    ``label_tokens``: (B,) integers, of the samples of all ranks and micro-batches. ``groups``: (B,), for group_mean:
    equal for answers to one prompt. ``length``: for constant_length L; for window_token_mean (B,), the mean label
    tokens of the samples generated together with each. ``world_size``: G, where gradients are averaged over ranks, as
    DDP and FSDP do; 1 where they are added. Raises ConfigError for a target that there is not, or that lacks what it
    needs, and DataError for counts that cannot be used.

    >>> token_weights("sample_mean", [2, 6]).tolist(), token_weights("token_mean", [2, 6]).tolist()
    ([0.25, 0.08333333333333333], [0.125, 0.125])
    >>> token_weights("group_mean", [2, 6, 8], groups=[7, 7, 9], world_size=2).tolist()
    [0.125, 0.125, 0.125]
    """
    check_target(target)
    counts = _counts(label_tokens)
    if world_size < 1:
        raise ConfigError(f"token_weights: world_size = {world_size}, needs an integer of 1 or more")
    needed = {"groups": target == "group_mean", "length": target in ("constant_length", "window_token_mean")}
    for name, value in (("groups", groups), ("length", length)):
        if needed[name] != (value is not None):
            fault = "needs" if needed[name] else "takes no"
            raise ConfigError(f"token_weights: target = {target!r} {fault} {name}")
    size, total = len(counts), int(counts.sum())
    if target == "sample_mean":
        weights = 1.0 / (size * np.maximum(counts, 1))
    elif target == "token_mean":
        weights = np.full(size, 1.0 / max(1, total))
    elif target == "group_mean":
        kinds, group = np.unique(_each("groups", groups, size), return_inverse=True)
        of_group = np.bincount(group, weights=counts)
        weights = 1.0 / (len(kinds) * np.maximum(of_group, 1)[group])
    else:
        lengths = _each("length", np.broadcast_to(np.asarray(_array(length)), (size,)), size).astype(np.float64)
        if wrong := np.flatnonzero(~(lengths > 0) | np.isinf(lengths)).tolist():
            raise DataError(f"token_weights: length {lengths[wrong[0]]} of sample {wrong[0]}, needs a number above 0")
        weights = 1.0 / (size * lengths)
    return world_size * weights


def _array(values: Any) -> npt.NDArray[Any]:
    return np.asarray(values.detach().cpu() if hasattr(values, "detach") else values)


def _each(name: str, values: Any, size: int) -> npt.NDArray[Any]:
    found = _array(values)
    if found.shape != (size,):
        raise DataError(f"token_weights: {name} of shape {found.shape}, needs ({size},), one for each sample")
    return found


def _counts(label_tokens: Any) -> Int:
    found = _array(label_tokens)
    if found.ndim != 1 or not len(found) or found.dtype.kind not in "iu":
        raise DataError(
            f"token_weights: label_tokens of shape {found.shape} and {found.dtype}; give one integer a sample, at "
            "least one, such as (labels[:, 1:] != -100).sum(1)"
        )
    if found.min() < 0:
        raise DataError(f"token_weights: sample {int(found.argmin())} has {found.min()} label tokens; 0 is the least")
    return found.astype(np.int64)
