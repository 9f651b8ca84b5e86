"""Keys of a rank's micro-batches, plan by plan, and the data set that collates them."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from typing import Any

from torch.utils.data import Dataset, Sampler, default_collate

from ddpsched.data.lengths import Lengths
from ddpsched.integrations.plan_source import and_last
from ddpsched.step_plan import StepPlan

Key = tuple[tuple[list[int], int], ...]  # of each micro-batch: ids, and the length to pad to; 0 where rows are packed
Asked = deque[tuple[StepPlan, bool]]  # plans whose keys are asked for, and whether each is the last


def keys_of(plans: Callable[[], Iterator[StepPlan]], rank: int, lengths: Lengths, asked: Asked) -> Iterator[Key]:
    """Yield the key that ``rank`` loads, plan by plan; a plan is noted in ``asked`` when its key is asked for."""
    for plan, is_last in and_last(plans()):
        asked.append((plan, is_last))
        yield tuple(
            (micro.ids.tolist(), 0 if micro.packed else micro.padded_length(lengths.lengths(micro.ids)))
            for micro in plan.ranks[rank]
        )


class Keys(Sampler[Key]):
    """The sampler of keys. A DataLoader calls iter() twice before the first key, so a call uses nothing up."""

    make: Callable[[], Iterator[Key]]

    def __iter__(self) -> Iterator[Key]:
        return self.make()


class MicroBatches(Dataset[list[Any]]):
    """``[key]`` -> a list of batches, one for each micro-batch of the key; [] for ().

    Whatever a worker process needs of a plan is in the key, so any number of workers will do.
    ``sample_padding_fn(sample, length)``: the sample filled up to its micro-batch's length; None leaves it as it is.
    """

    def __init__(
        self,
        dataset: Any,
        collate_fn: Callable[[list[Any]], Any] | None,
        sample_padding_fn: Callable[[Any, int], Any] | None,
    ) -> None:
        self.dataset, self._pad, self._collate = dataset, sample_padding_fn, collate_fn or default_collate

    def __getitem__(self, key: Key) -> list[Any]:
        return [self.micro_batch(ids, length) for ids, length in key]

    def micro_batch(self, ids: list[int], length: int) -> Any:
        """Return the samples of these ids as one batch, padded to ``length``."""
        many = getattr(self.dataset, "__getitems__", None)  # as torch's fetcher looks for it
        samples = many(ids) if many else [self.dataset[id] for id in ids]
        return self._collate([self._pad(sample, length) for sample in samples] if self._pad else list(samples))
