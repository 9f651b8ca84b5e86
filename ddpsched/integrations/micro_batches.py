"""A data set whose items are whole steps: the micro-batches of one rank, loaded, padded and collated."""

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from torch.utils.data import Dataset, Sampler, default_collate

from ddpsched.data.lengths import Lengths
from ddpsched.plan import StepPlan

Key = tuple[tuple[list[int], int], ...]  # of each micro-batch: ids, and the length to pad to; 0 where rows are packed


def keys_of(
    plans: Callable[[], Iterator[StepPlan]], rank: int, lengths: Lengths, asked: deque[tuple[StepPlan, bool]]
) -> Iterator[Key]:
    """Yield the key that ``rank`` loads, plan by plan.

    A plan is noted in ``asked`` when its key is asked for, and whether it is the last, which planning one step ahead
    tells.
    """
    stream = plans()
    plan = next(stream, None)
    while plan is not None:
        after = next(stream, None)
        asked.append((plan, after is None))
        yield tuple(
            (micro.ids.tolist(), 0 if micro.packed else micro.padded_length(lengths.lengths(micro.ids)))
            for micro in plan.ranks[rank]
        )
        plan = after


class Keys(Sampler[Key]):
    """The sampler of keys. A DataLoader calls iter() twice before the first key, so a call uses nothing up."""

    make: Callable[[], Iterator[Key]]

    def __iter__(self) -> Iterator[Key]:
        return self.make()


class MicroBatches(Dataset[list[Any]]):
    """``[key]`` -> a list of batches, one for each micro-batch of the key; [] for ().

    What a worker process needs to know of a plan travels in the key, so any number of workers will do.
    ``sample_padding_fn(sample, length)``: the sample filled up to its micro-batch's length; None leaves it as it is.
    """

    def __init__(
        self,
        dataset: Any,
        collate_fn: Callable[[list[Any]], Any] | None,
        sample_padding_fn: Callable[[Any, int], Any] | None,
    ) -> None:
        self._dataset, self._pad = dataset, sample_padding_fn
        self._collate = default_collate if collate_fn is None else collate_fn

    def __getitem__(self, key: Key) -> list[Any]:
        return [self.micro_batch(ids, length) for ids, length in key]

    def micro_batch(self, ids: list[int], length: int) -> Any:
        """The samples of these ids as one batch."""
        samples = self._samples(ids)
        if self._pad is not None:
            samples = [self._pad(sample, length) for sample in samples]
        return self._collate(samples)

    def _samples(self, ids: list[int]) -> list[Any]:
        many: Callable[[list[int]], Sequence[Any]] | None = getattr(self._dataset, "__getitems__", None)
        return list(many(ids)) if many else [self._dataset[id] for id in ids]  # as torch's own fetcher does


def unchanged(batches: list[Any]) -> list[Any]:
    """The loader's collate_fn, as the data set has collated; a function of a module, so that workers can be sent it."""
    return batches
