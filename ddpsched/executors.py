"""Executors of plans: what they have in common, and which one a config names."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from ddpsched.config import RunConfig
from ddpsched.costs.memory_cap import Cap
from ddpsched.data.samples import Samples
from ddpsched.exchange import Exchange, Flag
from ddpsched.heartbeat import Heartbeat
from ddpsched.planning.shapes.choose import Menu
from ddpsched.records import StepRecord
from ddpsched.recovery.keeper import Snapshot
from ddpsched.simulated import SimulatedExecutor
from ddpsched.step_plan import StepPlan
from ddpsched.world import World

if TYPE_CHECKING:
    from ddpsched.training.learner import Evaluation


class Executor(Protocol):
    """The executor of plans: it sets which ranks this process runs, and where the seconds come from."""

    @property
    def exchange(self) -> Exchange: ...

    @property
    def caps(self) -> list[int] | None: ...  # of every rank, what its memory allows; None for no limit

    @property
    def facts(self) -> Mapping[str, Any]: ...  # for environment.json: device, num_parameters, clocks

    @property
    def timeline(self) -> dict[str, Any] | None: ...  # of the last step, where it is kept

    @property
    def packs(self) -> bool: ...  # whether the model runs packed rows

    cap: Cap  # by which votes tell what a micro-batch needs

    def use(self, config: RunConfig, menu: Menu) -> None: ...  # the policy and cost of this config, on a menu of shapes

    def expect(self, total_steps: int, done: int = 0) -> None: ...  # over which the learning rate falls

    def execute(self, plan: StepPlan) -> list[StepRecord]: ...

    @property
    def repeats(self) -> bool: ...  # whether a step that broke off can be run again

    def recover(self) -> None: ...  # make ready for that, on all ranks

    @property
    def needs(self) -> Sequence[int]: ...  # of each rank's largest micro-batch in the last step, in the unit of ``cap``

    def object(self, flag: Flag) -> bool: ...  # vote so in the next step; False where there are no other ranks

    def evaluate(self) -> "Evaluation | None": ...

    def snapshot(self) -> Snapshot | None: ...  # for checkpoints; None where nothing is trained

    def restore(self, folder: Path) -> None: ...  # of a checkpoint

    def save_model(self, path: Path) -> None: ...  # as transformers reads it

    def beat_into(self, heart: Heartbeat) -> None: ...  # write phases of steps there, where other ranks may read them

    def close(self) -> None: ...


def executor_of(config: RunConfig, samples: Samples, world: World, force: bool) -> Executor:
    """Return the executor that a config names; ``force``: with calibrations of another model or device."""
    if config.executor.kind == "simulated":
        return SimulatedExecutor(config, samples.train, force)
    if config.executor.kind == "virtual":
        from ddpsched.training.virtual import VirtualExecutor

        return VirtualExecutor(config, samples, force)
    from ddpsched.training.distributed import DistributedExecutor

    return DistributedExecutor(config, samples, world, force)


@contextmanager
def met(config: RunConfig, world: World) -> Iterator[None]:
    """Let ranks wait for each other in this block before there are collectives; see ``training.meeting``."""
    if config.executor.kind != "distributed":
        yield
        return
    from ddpsched.training.meeting import meeting

    with meeting(world, config.executor.timeout_s):
        yield
