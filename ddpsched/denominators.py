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
HALVES = ("torch.bfloat16", "torch.float16")  # the first of which numpy does not know
OF_A_MODEL = "its denominator is a sum of what the model puts out, known after forward only"
REFUSED: Mapping[str, str] = {  # ratios of sums: the gradient of the denominator belongs to the gradient
    "self_normalised": OF_A_MODEL,
    "weighted_mean": "class or sample weights are summed over the batch; pass their sum to Balance.sum_scale",
    "batch_normalised": "its losses are divided by a deviation over the batch, " + OF_A_MODEL,
    "contrastive": "each sample's loss has all others of the batch in its denominator",
}


def check_target(target: Any, name: str = "target") -> str:
    """Return the target. Raises ConfigError for one that there is not, and says why for ratios of sums."""
    if isinstance(target, str) and target in TARGETS:
        return str(target)
    if isinstance(target, str) and target in REFUSED:
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
        weights = torch.from_numpy(weights)
        for rows in ddpsched.micro_batches(ddp, parts.ranks[rank]):      # of ddpsched.balance: positions in the step
            (token_losses(ddp, rows) * weights[rows, None]).sum().backward()

    ``label_tokens``: (B,) integers, of the samples of all ranks and micro-batches. ``groups``: (B,), for group_mean:
    equal for answers to one prompt. ``length``: for constant_length L; for window_token_mean (B,), the mean label
    tokens of the samples generated together with each. ``world_size``: G, where gradients are averaged over ranks, as
    DDP and FSDP do; 1 where they are added. A micro-batch in ``Balance.stand_ins`` counts with weights of 0.

    Raises ConfigError for a target that there is not, or that lacks what it needs, and DataError for counts that cannot
    be used.

    >>> token_weights("sample_mean", [2, 6]).tolist(), token_weights("token_mean", [2, 6]).tolist()
    ([0.25, 0.08333333333333333], [0.125, 0.125])
    >>> token_weights("group_mean", [2, 6, 8], groups=[7, 7, 9], world_size=2).tolist()
    [0.125, 0.125, 0.125]
    """
    check_target(target, "token_weights: target")
    counts = _counts(label_tokens)
    if not isinstance(world_size, int | np.integer) or isinstance(world_size, bool) or not 1 <= world_size <= 2**40:
        raise ConfigError(f"token_weights: world_size = {world_size!r:.60}, needs an integer from 1 to 2**40")
    needed = {"groups": target == "group_mean", "length": target in ("constant_length", "window_token_mean")}
    for name, value in (("groups", groups), ("length", length)):
        if needed[name] != (value is not None):
            what = {"groups": "the group of each sample", "length": "the tokens that sums are divided by"}[name]
            fault = f"needs {name}, {what}" if needed[name] else f"takes no {name}; leave it out"
            raise ConfigError(f"token_weights: target = {target!r} {fault}")
    size, total = len(counts), int(counts.sum())
    if target == "sample_mean":
        weights = 1.0 / (size * np.maximum(counts, 1))
    elif target == "token_mean":
        weights = np.full(size, 1.0 / max(1, total))
    elif target == "group_mean":
        group, kinds = group_numbers(groups, size, "token_weights")
        of_group = np.bincount(group, weights=counts)
        weights = 1.0 / (len(kinds) * np.maximum(of_group, 1)[group])
    else:
        lengths = _lengths(length, size, target)
        if wrong := np.flatnonzero(~(lengths > 0) | np.isinf(lengths)).tolist():
            raise DataError(
                f"token_weights: length {lengths[wrong[0]]} of sample {wrong[0]}, needs a finite number above 0"
            )
        weights = 1.0 / (size * lengths)
    return world_size * weights


def as_numpy(values: Any) -> npt.NDArray[Any]:
    """Return the values of a list, an array or a tensor on any device, of any type."""
    if hasattr(values, "detach"):
        values = values.detach().cpu()
        values = values.float() if str(values.dtype) in HALVES else values
    return np.asarray(values)


def group_numbers(groups: Any, size: int, who: str) -> tuple[Int, list[Any]]:
    """Return the group of each of ``size`` samples, numbered from 0 as they first come, and the groups' names.

    Names may be of any type that can be compared, and are not made into another one: 1 and "1" are two groups. Raises
    DataError where there is not one for each sample, or one is missing (None, NaN).
    """
    names = as_numpy(groups).tolist() if hasattr(groups, "__array__") or hasattr(groups, "detach") else groups
    if isinstance(names, str | Mapping) or not hasattr(names, "__len__") or not hasattr(names, "__iter__"):
        raise DataError(f"{who}: groups = {names!r:.60}, needs a name for each of {size} samples")
    names = list(names)
    if len(names) != size:
        raise DataError(f"{who}: groups of {len(names)} samples, but there are {size}; give a name for each")
    numbers: dict[Any, int] = {}
    found = np.empty(size, dtype=np.int64)
    for place, name in enumerate(names):
        name = name.item() if getattr(name, "ndim", None) == 0 else name  # of a list of tensors
        try:
            missing = name is None or name != name
            found[place] = numbers.setdefault(name, len(numbers))
        except (TypeError, ValueError, RuntimeError):
            missing = True
        if missing:
            raise DataError(
                f"{who}: groups[{place}] = {name!r:.60} is no group; name each sample's by a number or a text, those "
                "that stand alone by one of their own"
            )
    return found, list(numbers)


def _lengths(length: Any, size: int, target: str) -> Floats:
    each = "a number" if target == "constant_length" else f"a number, or ({size},), one for each sample"
    try:
        found = as_numpy(length)
        if found.dtype.kind not in "iuf":
            raise TypeError
    except (TypeError, ValueError):
        raise DataError(f"token_weights: length = {length!r:.60}, needs {each}") from None
    if found.shape not in ((), (size,))[: 1 if target == "constant_length" else 2]:
        raise DataError(f"token_weights: target = {target!r}: length of shape {found.shape}, needs {each}")
    return np.broadcast_to(found.astype(np.float64), (size,))


def _counts(label_tokens: Any) -> Int:
    try:
        found = as_numpy(label_tokens)
    except (TypeError, ValueError):
        raise DataError("token_weights: label_tokens are lists of several; give one integer a sample") from None
    if found.ndim != 1 or not len(found) or found.dtype.kind not in "iu":
        raise DataError(
            f"token_weights: label_tokens of shape {found.shape} and {found.dtype}; give one integer a sample, at "
            "least one, such as (labels[:, 1:] != -100).sum(1)"
        )
    for wrong in (found < 0, found >= 2**53):
        if wrong.any():
            where = int(wrong.argmax())
            raise DataError(f"token_weights: sample {where} has {found[where]} label tokens, needs 0 to 2**53")
    return found.astype(np.int64)
