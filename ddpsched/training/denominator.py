"""The denominator of a step's losses: counts that ranks add up, and the weights that follow from them."""

from collections.abc import Callable, Sequence

import numpy as np
import numpy.typing as npt

from ddpsched.config import RunConfig
from ddpsched.data.samples import Samples
from ddpsched.denominators import BY_GROUP
from ddpsched.step_plan import Ids, StepPlan
from ddpsched.training.loss import Counts

Floats = npt.NDArray[np.float64]


class Denominator:
    """The weights of one step after another, by the rules of :mod:`ddpsched.denominators`.

    A label token of sample i weighs ``weigh(i) * scale()``. Counts of the plan are known to all ranks; label tokens are
    known to the rank that runs their samples, and are added up over ranks while forward runs.
    """

    def __init__(self, config: RunConfig, samples: Samples) -> None:
        self._target, self._length = config.target, config.train.length
        self._is_lm, self._train = config.model.task == "causal_lm", samples.train
        self._groups = samples.dataset.train.numbered_groups if config.target in BY_GROUP else None
        self._window_means = None
        if config.target == "window_token_mean":
            assert self._groups is not None
            tokens = self._train.num_targets(np.arange(len(self._train))).astype(np.float64)
            sizes = np.bincount(self._groups)
            # where a window has no label token, any weight will do, but none that is infinite
            self._window_means = np.maximum(np.bincount(self._groups, tokens), 1) / np.maximum(sizes, 1)
        self._kinds = np.zeros(0, dtype=np.int64)  # groups of the step, rising
        self._size = 1
        self._sums: Callable[[], Sequence[int]] = lambda: (1, 1, 1)

    @property
    def weighs(self) -> bool:
        """Whether samples have weights of their own beside the step's scale."""
        return self._is_lm and self._target in ("sample_mean", "group_mean", "window_token_mean")

    def step_counts(self, plan: StepPlan, counts: Counts, ids: Ids) -> list[int]:
        """Return what a rank adds to the step's sums: ``counts``, and the label tokens of each group of the step."""
        if self._target != "group_mean":
            return list(counts)
        assert self._groups is not None
        kinds = np.unique(self._groups[plan.ids])
        places = np.searchsorted(kinds, self._groups[ids])
        tokens = np.bincount(places, self._train.num_targets(ids), minlength=len(kinds))
        return [*counts, *tokens.astype(np.int64).tolist()]

    def begin(self, plan: StepPlan, sums: Callable[[], Sequence[int]]) -> None:
        """Begin a step. ``sums()``: the ``step_counts`` of all ranks, added up; may wait for them."""
        self._size, self._sums = plan.global_batch, sums
        if self._target == "group_mean":
            assert self._groups is not None
            self._kinds = np.unique(self._groups[plan.ids])

    def weigh(self, ids: Ids, label_tokens: npt.NDArray[np.int64]) -> Floats:
        """Return the weight of each sample's label tokens, (n,), up to the step's scale."""
        if self._target == "sample_mean":
            return 1.0 / np.maximum(label_tokens, 1)
        assert self._groups is not None
        if self._target == "window_token_mean":
            assert self._window_means is not None
            return 1.0 / self._window_means[self._groups[ids]]
        of_group = np.array(self._sums()[3:])[np.searchsorted(self._kinds, self._groups[ids])]
        return 1.0 / np.maximum(of_group, 1)

    def scale(self) -> float:
        """Return the factor of the step's weighted losses, where gradients of ranks are added."""
        if self._target == "token_mean":
            return 1.0 / max(1, self._sums()[2])
        if self._target == "group_mean":
            return 1.0 / max(1, len(self._kinds))
        return 1.0 / (self._size * (self._length or 1.0))

    def count(self, counts: Counts) -> float:
        """Return what a rank's weighted loss is divided by, so that its mean is of the rank's samples, or tokens."""
        if self._target == "token_mean":
            return counts.targets
        return counts.samples / (self._size * self.scale())
