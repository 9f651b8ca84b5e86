"""The base of policies that are given the next B samples of the order and only assign them to ranks."""

from abc import abstractmethod
from collections.abc import Iterator
from typing import ClassVar, Literal

from ddpsched.planning.assignment import Assignment
from ddpsched.planning.policy import Policy
from ddpsched.planning.steps.batches import GlobalBatch, batches
from ddpsched.planning.steps.context import Context


class BatchPolicy(Policy):
    """A policy that assigns one batch at a time, whatever came before; so an epoch can resume at any step."""

    takes: ClassVar[Literal["batches", "windows", "epoch"]] = "batches"

    def __call__(self, context: Context) -> Iterator[Assignment]:
        return map(self.assign, batches(context))

    @abstractmethod
    def assign(self, batch: GlobalBatch) -> Assignment:
        """Return who runs which samples of the batch."""
