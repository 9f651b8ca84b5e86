"""The weight of each sample's label tokens by each rule, in the plain way, for target gradients and for causes.

It does not call ``ddpsched.denominators``, which training uses: what certifies must not rest on what it certifies.
"""

from collections.abc import Mapping, Sequence

import numpy as np

from ddpsched.certify.target import Floats, Ints
from ddpsched.errors import ConfigError

SUMMED = ("constant_length", "group_mean", "window_token_mean")  # targets of each sample's loss summed over its tokens
WORDS = {
    "sample_mean": "each sample's loss is the mean over its label tokens, whatever its group, length or window",
    "token_mean": "every label token weighs the same, whatever its sample, group or window",
    "group_mean": "each group of samples weighs the same",
    "window": "label tokens are divided by those of the whole generation window, though a step is another share of it",
}


class LabelWeights:
    """The weights of a step's samples, by each rule that can be computed.

    ``label_tokens``: (B,), of all samples of the step. ``groups``: (B,). ``length``: the constant, or (B,) the mean
    label tokens of each sample's window. ``window_tokens``: (B,), all label tokens of each sample's window.
    """

    def __init__(
        self, label_tokens: Sequence[int], groups: Sequence[int] | None = None, length: float | Floats | None = None,
        window_tokens: Floats | None = None,
    ) -> None:  # fmt: skip
        self._tokens, self._groups = [max(1, int(count)) for count in label_tokens], groups
        self._length, self._window_tokens = length, window_tokens
        self._total = max(1, sum(map(int, label_tokens)))

    def of(self, target: str) -> Floats:
        """Return the weight of each sample's label tokens, (B,). Raises ConfigError where something is missing."""
        size = len(self._tokens)
        if target == "sample_mean":
            return np.array([1 / size / count for count in self._tokens])
        if target == "token_mean":
            return np.full(size, 1 / self._total)
        if target == "group_mean":
            if self._groups is None:
                raise ConfigError(
                    "target = 'group_mean' needs batch['group_ids'], the number of each row's group, (count,)"
                )
            of_group = dict[int, int]()
            for group, count in zip(self._groups, self._tokens, strict=True):
                of_group[int(group)] = of_group.get(int(group), 0) + count
            return np.array([1 / len(of_group) / of_group[int(group)] for group in self._groups])
        if self._length is None:
            raise ConfigError(f"target = {target!r} needs length")
        return np.broadcast_to(1 / size / np.asarray(self._length, dtype=np.float64), (size,))

    def others(self, target: str) -> dict[str, Floats]:
        """Return by cause how many times the right weight of ``target`` each sample has by another rule, (B,)."""
        right = self.of(target)
        names = ["sample_mean", "token_mean", *([] if self._groups is None else ["group_mean"])]
        found: dict[str, Floats] = {WORDS[name]: self.of(name) / right for name in names if name != target}
        if self._window_tokens is not None:
            found[WORDS["window"]] = 1 / self._window_tokens / right
        return found


def by_part(rules: Mapping[str, Floats], parts: Ints, count: int) -> dict[str, Floats]:
    """Return each rule's factor of each part, (count,); without those that differ within a part.

    ``parts``: (B,), the part of each sample.
    """
    found = dict[str, Floats]()
    for words, times in rules.items():
        of_part = np.ones(count)
        of_part[parts] = times
        if np.allclose(of_part[parts], times, rtol=1e-9, atol=0):
            found[words] = of_part
    return found
