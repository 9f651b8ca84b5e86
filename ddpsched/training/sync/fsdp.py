"""fsdp: torch's fully_shard; each rank keeps a share of weights, gradients and optimizer state."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, cast
from weakref import WeakSet

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard

from ddpsched.config import SyncConfig
from ddpsched.errors import ConfigError
from ddpsched.training.clock import Clock
from ddpsched.training.sync.synchroniser import Buffers, CollectiveLog, Synchroniser, broadcast_from_rank_0

_all_gather: Any = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor  # renamed in 2.13
_reduce_scatter: Any = getattr(dist, "reduce_scatter_single", None) or dist.reduce_scatter_tensor  # renamed in 2.13

_resharding = WeakSet[torch.nn.Module]()  # units whose weights each forward gathers anew


class FsdpSync(Synchroniser):
    """Weights are gathered at a step's first forward and stay whole until its last backward scatters the sums.

    So ranks may run different numbers of micro-batches, but each at least one, be it
    a synthetic one. With ``sync.reshard`` weights are gathered anew for each forward and
    each backward: it saves their memory, and every micro-batch is a meeting of all ranks,
    of which all need as many. Each entry of a ModuleList is a unit of its own. A rank whose
    step breaks off cannot tell which collectives the others are in, so it does not
    join them. A parameter that no rank used gets a gradient of zeros. Sums of
    bfloat16 parameters are kept in float32, and all ranks have to use the same ones.
    """

    needs_backward, joins = True, False

    def __init__(self, module: torch.nn.Module, clock: Clock, config: SyncConfig) -> None:
        if not hasattr(FSDPModule, "set_force_sum_reduction_for_comms"):
            raise ConfigError(
                f'sync.kind = "fsdp" needs a torch whose fully_shard can add gradients, and {torch.__version__} cannot '
                '(2.13 can); use "bucketed" or "ddp"'
            )
        super().__init__(module, clock, config)
        self.meets = config.reshard
        broadcast_from_rank_0(module)
        self._buffers = Buffers(module)
        first = next(module.parameters())
        mesh = init_device_mesh(first.device.type, (dist.get_world_size(),))
        narrow = first.dtype.itemsize < 4
        policy = MixedPrecisionPolicy(reduce_dtype=torch.float32 if narrow else None)
        lists = [parent for parent in module.modules() if isinstance(parent, torch.nn.ModuleList)]
        for unit in (*(unit for parent in lists for unit in parent), module):
            fully_shard(unit, mesh=mesh, reshard_after_forward=self.meets, mp_policy=policy)
        self._root = cast(Any, module)  # which fully_shard gives further methods
        for sharded in _units(module):
            sharded.set_gradient_divide_factor(1.0)
            sharded.set_force_sum_reduction_for_comms(True)
            sharded.set_custom_reduce_scatter(self)
            if self.meets:
                _resharding.add(sharded)
                sharded.set_custom_all_gather(_Gather(self.log))
        if hasattr(FSDPModule, "set_reduce_scatter_unused_params"):
            self._root.set_reduce_scatter_unused_params(not narrow)  # the zeros it adds have the parameters' dtype

    @contextmanager
    def _backward(self, last: bool) -> Iterator[None]:
        self.ready = None
        self._root.set_requires_gradient_sync(last)
        self._root.set_reshard_after_backward(last or self.meets)
        self._root.set_is_last_backward(last)
        yield

    def wait(self) -> None:
        """Share buffers; backward has waited for every unit's sums. A single rank reduces nothing."""
        if self.ready is None:
            self.ready = self._clock.mark()
        self._buffers.share()

    def allocate(self, size: Any, *, dtype: torch.dtype, device: torch.device) -> torch.Tensor:
        """Return the tensor that fully_shard asks for before it reduces."""
        return torch.empty(size, dtype=dtype, device=device)

    def __call__(
        self, output_tensor: torch.Tensor, input_tensor: torch.Tensor, group: Any, op: Any, async_op: bool = False
    ) -> Any:
        """Add one unit's gradients over ranks, for fully_shard; every rank gets the sums of its share."""
        self.ready = self._clock.mark()
        sent, received = self.log.cast(input_tensor), self.log.cast(output_tensor)
        collective = self.log.launched("unit", sent)
        work = _reduce_scatter(received, sent, op, group, async_op)
        if received is not output_tensor:
            output_tensor.copy_(received)
        self.log.finished(collective)
        return work


class _Gather:
    """Gathers a unit's weights for fully_shard, and notes when it began and when all ranks had come."""

    def __init__(self, log: CollectiveLog) -> None:
        self._log = log

    def allocate(self, size: Any, *, dtype: torch.dtype, device: torch.device) -> torch.Tensor:
        """Return the tensor that fully_shard asks for before it gathers."""
        return torch.empty(size, dtype=dtype, device=device)

    def __call__(
        self, output_tensor: torch.Tensor, input_tensor: torch.Tensor, group: Any, async_op: bool = False
    ) -> dist.Work | None:
        """Begin to gather; fully_shard waits for the work."""
        work: dist.Work = _all_gather(output_tensor, input_tensor, group=group, async_op=True)
        self._log.gathering("gather", input_tensor, work)
        if not async_op:
            work.wait()
        return work


@contextmanager
def whole(module: torch.nn.Module) -> Iterator[None]:
    """Gather the weights once, so that ranks may run forward any number of times; do nothing for an unsharded model."""
    units = _units(module)
    for unit in units:
        unit.set_reshard_after_forward(False, recurse=False)
        unit.unshard()
    yield
    for unit in units:
        unit.reshard()
        unit.set_reshard_after_forward(unit in _resharding, recurse=False)


def _units(module: torch.nn.Module) -> list[Any]:
    return [unit for unit in module.modules() if isinstance(unit, FSDPModule)]
