"""Steps whose records are there of all ranks, from records that come file by file."""

from collections.abc import Iterable

from ddpsched.records import StepRecord


class WholeSteps:
    """A collection of records, from which each step is taken once those of all its ranks are there."""

    def __init__(self) -> None:
        self._waiting: dict[int, dict[int, StepRecord]] = {}

    def add(self, records: Iterable[StepRecord]) -> list[list[StepRecord]]:
        """Add records; return the steps that are whole now, in order, each by rank.

        A step before one of these lacks a record for good, as each rank writes in order, and is given up.
        """
        for record in records:
            self._waiting.setdefault(record.step, {})[record.rank] = record
        whole = [step for step, ranks in self._waiting.items() if len(ranks) == next(iter(ranks.values())).world_size]
        if not whole:
            return []
        found = [[self._waiting[step][rank] for rank in sorted(self._waiting[step])] for step in sorted(whole)]
        self._waiting = {step: ranks for step, ranks in self._waiting.items() if step > max(whole)}
        return found
