"""Micro-batches as Trainer iterates them: ``gradient_accumulation_steps`` items in each optimizer step."""

from collections.abc import Iterator
from typing import Any

from ddpsched.errors import ConfigError
from ddpsched.integrations.step_loader import StepLoader


class Microbatches:
    """The micro-batches of a StepLoader one by one, ``per_step`` of them in each optimizer step, on every rank.

    Where a rank has fewer, the step begins with items that hold nothing, ``{}``; its last one is always a batch, as
    DDP's ranks meet in the backward pass of that. A rank without samples gets the ``stand_in``.
    """

    def __init__(self, steps: StepLoader, dataset: Any, per_step: int) -> None:
        self.steps, self.dataset, self.per_step = steps, dataset, per_step
        self._is_loaded = False

    def __len__(self) -> int:
        return len(self.steps) * self.per_step

    def __iter__(self) -> Iterator[Any]:
        self._is_loaded = False
        for batches in self.steps:
            plan = self.steps.plan
            assert plan is not None
            most = max(map(len, plan.ranks))
            if most > self.per_step:  # on all ranks alike
                raise ConfigError(
                    f"step {plan.step} has {most} micro-batches on one rank, but gradient_accumulation_steps = "
                    f"{self.per_step}; raise it to {most}, or lower memory's demands"
                )
            real = batches or [self.steps.stand_in()]
            yield from [{} for _ in range(self.per_step - len(real))]
            yield from real

    @property
    def ids(self) -> list[list[int]]:
        """The samples of each of this rank's micro-batches in the step that is iterated; none for a stand-in."""
        plan = self.steps.plan
        assert plan is not None
        return [micro.ids.tolist() for micro in plan.ranks[self.steps.plan_source.world.rank]]

    @property
    def counts(self) -> list[int]:
        """Their numbers."""
        return list(map(len, self.ids))

    def num_steps(self, epoch: int) -> int:
        """Return the optimizer steps of an epoch, of which there may be more in one than in another."""
        return self.steps.plan_source.num_steps(epoch)

    def set_epoch(self, epoch: int) -> None:
        """Let the next iteration begin with this epoch, or where a loaded state of it stands."""
        self.steps.set_epoch(epoch)

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue where ``state``, of the StepLoader, was taken."""
        self.steps.load_state_dict(state)
        self._is_loaded = True

    def skip(self, count: int) -> "Microbatches":
        """Leave out the first ``count`` items of the next iteration, which Trainer has trained before.

        After ``load_state_dict`` they are left out already.
        """
        if not self._is_loaded:
            self.steps.skip_batches(count // self.per_step)
        return self
