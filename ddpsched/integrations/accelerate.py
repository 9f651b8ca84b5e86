"""accelerate's loop: batches on its device with their scales, and a position that its checkpoints hold."""

from collections.abc import Callable, Iterator, Mapping
from typing import Any, overload

from ddpsched.errors import ConfigError
from ddpsched.integrations.balanced_loader import BalancedLoader
from ddpsched.integrations.scaled import Scaled, scaled
from ddpsched.integrations.step_share import StepShare
from ddpsched.integrations.tested_versions import warn_of_version

OTHERS = ("DEEPSPEED", "MEGATRON_LM")  # whose backward passes divide gradients in a way of their own


@overload
def prepare(accelerator: Any, loader: BalancedLoader) -> BalancedLoader: ...


@overload
def prepare(accelerator: Any, loader: Any, count: Callable[[Any], Any] | None = None) -> "PreparedSteps": ...


def prepare(
    accelerator: Any, loader: Any, count: Callable[[Any], Any] | None = None
) -> "BalancedLoader | PreparedSteps":
    """Return the batches of ``loader`` on the accelerator's device, in place of ``accelerator.prepare(loader)``.

        model, optimizer = accelerator.prepare(model, optimizer)
        loader = ddpsched.integrations.accelerate.prepare(accelerator, ddpsched.balanced(loader))
        for batch in loader:
            accelerator.backward(loader.scale * summed_loss(model, batch))
            optimizer.step()
            optimizer.zero_grad()

    ``loader``: what ``ddpsched.balanced`` returned; or any that ``ddpsched.scaled`` takes, with its ``count``, and then
    the iteration yields ``(batch, scale)``. Of a StepLoader the batch is a list, for ``ddpsched.micro_batches(model,
    batch)``. ``accelerator.save_state`` and ``load_state`` hold the position of loaders whose state is the same on
    every rank, for another number of ranks too, if the global batch stays; each rank saves that of a stream itself.

    Raises ConfigError where accelerate would divide losses or gradients once more.
    """
    from accelerate.utils import send_to_device

    warn_of_version("accelerate")
    if not hasattr(accelerator, "gradient_accumulation_steps"):
        raise ConfigError(f"prepare: {type(accelerator).__name__} is no Accelerator; give prepare(accelerator, loader)")
    accumulation = accelerator.gradient_accumulation_steps
    if accumulation != 1:
        raise ConfigError(
            f"Accelerator(gradient_accumulation_steps={accumulation}): accelerator.backward would divide each loss by "
            "it, but a scale is exact already; leave it out, and give a StepLoader, whose policy may have several "
            "micro-batches: for batch in ddpsched.micro_batches(model, batches)"
        )
    kind = accelerator.distributed_type.name
    if kind in OTHERS:
        raise ConfigError(f"accelerate's {kind} divides gradients in its own way; use DDP or FSDP")

    def place(batch: Any) -> Any:
        return send_to_device(batch, accelerator.device, non_blocking=True)

    if isinstance(loader, BalancedLoader):
        loader.move(place)
        accelerator.register_for_checkpointing(loader)
        return loader
    steps = PreparedSteps(scaled(loader, count), place)
    if steps.scaled.has_plans:
        accelerator.register_for_checkpointing(steps)
    return steps


class PreparedSteps:
    """An iterable of ``(batch, scale)``, as :func:`prepare` returns it for a loader of another kind."""

    def __init__(self, steps: Scaled, place: Callable[[Any], Any]) -> None:
        self.scaled, self._place = steps, place

    @property
    def step(self) -> StepShare | None:
        """The :class:`StepShare` of the batch yielded last."""
        return self.scaled.step

    @property
    def epoch(self) -> int:
        """The epoch in which the next iteration begins or continues."""
        return self.scaled.epoch

    def __len__(self) -> int:
        return len(self.scaled)

    def __iter__(self) -> Iterator[tuple[Any, float]]:
        for batch, scale in self.scaled:
            yield self._place(batch), scale

    def set_epoch(self, epoch: int) -> None:
        """Name the epoch of the next iteration."""
        self.scaled.set_epoch(epoch)

    def state_dict(self) -> dict[str, Any]:
        """Return the state after the batch yielded last."""
        return self.scaled.state_dict()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue after the batch of ``state``, with another number of ranks too. Raises ConfigError as ``scaled``."""
        self.scaled.go_on(state)
