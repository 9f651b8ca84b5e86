"""bucketed, overlap: gradients are collected in flat buckets, each reduced while backward fills the next."""

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial

import torch
from torch.autograd import Variable

from ddpsched.config import SyncConfig
from ddpsched.errors import RunError
from ddpsched.training.clock import Clock
from ddpsched.training.sync.synchroniser import Buffers, ParameterRegistry, Synchroniser


class Bucket:
    """A flat tensor: the gradients of its members end to end, then 1 for each member that has one on some rank.

    ``members``: indices of parameters; ``views[i]`` is the gradient of ``members[i]``.
    At least float32, whatever the parameters are: sums over micro-batches and ranks
    are not rounded to bfloat16.
    """

    def __init__(self, members: list[int], registry: ParameterRegistry) -> None:
        first, last = registry.names[members[0]], registry.names[members[-1]]
        self.label = first if first == last else f"{first} ... {last}"
        self.members = members
        parameters = [registry.parameters[member] for member in members]
        sizes = [*(p.numel() for p in parameters), len(members)]
        self.flat = torch.zeros(sum(sizes), dtype=_dtype(parameters[0]), device=parameters[0].device)
        *pieces, self.used = self.flat.split(sizes)
        self.views = [piece.view(p.shape) for piece, p in zip(pieces, parameters, strict=True)]
        self.missing = len(members)  # gradients that this backward has still to make


class BucketedSync(Synchroniser):
    """A bucket is reduced when its last gradient is there and those before it are under way.

    A parameter's ``grad`` is a view into its bucket, so nothing is copied back.
    Backward ends when all sums are in, as in DDP. Parameters that no rank used keep
    ``grad = None``, and those that some rank used count as zero on the others.
    """

    def __init__(self, module: torch.nn.Module, clock: Clock, config: SyncConfig) -> None:
        super().__init__(module, clock, config)
        self._registry, self._buffers = ParameterRegistry(module), Buffers(module)
        self._parameters = self._registry.parameters
        self._buckets = self._fill(round(config.bucket_mb * 2**20))
        self._place = {member: (bucket, i) for bucket in self._buckets for i, member in enumerate(bucket.members)}
        self._collected: set[int] = set()  # parameters whose gradient is in its bucket
        self._launched = 0  # buckets under way, always the first ones
        self._open = self._live = self._queued = False  # a step has begun; its last backward; its end is arranged
        for index, parameter in enumerate(self._parameters):
            parameter.register_post_accumulate_grad_hook(partial(self._collect, index))

    def _fill(self, capacity: int) -> list[Bucket]:
        """Return buckets of neighbours of one dtype, at most ``capacity`` bytes each; a larger parameter is alone."""
        groups: list[list[int]] = []
        room = 0
        for index, parameter in enumerate(self._parameters):
            needed = parameter.numel() * _dtype(parameter).itemsize
            if not groups or needed > room or _dtype(self._parameters[groups[-1][0]]) != _dtype(parameter):
                groups.append([])
                room = capacity
            groups[-1].append(index)
            room -= needed
        return [Bucket(group, self._registry) for group in groups]

    def _collect(self, index: int, parameter: torch.nn.Parameter) -> None:
        """Put a micro-batch's gradient of this parameter into its bucket."""
        if not self._open:  # a backward outside accumulate() and synchronise()
            return
        bucket, place = self._place[index]
        view, gradient = bucket.views[place], parameter.grad
        assert gradient is not None
        self._registry.check_gradient(index, gradient)
        if bucket.missing == 0 and self._live:
            raise RunError(
                f"parameter {self._registry.names[index]} got a gradient after it was reduced: one backward, the last "
                "of a step, runs in synchronise(), all others in accumulate(); and a checkpointed module runs once"
            )
        if parameter.dtype != view.dtype:  # autograd keeps its own dtype, so this rank's sum is kept here
            view.add_(gradient) if index in self._collected else view.copy_(gradient)
            parameter.grad = None
        elif gradient is not view:  # the first of a step; later ones are added in place
            view.copy_(gradient)
            parameter.grad = view
        self._collected.add(index)
        if self._live:
            if not self._queued:
                self._queued = True
                Variable._execution_engine.queue_callback(self._finish)
            bucket.missing -= 1
            self._launch(full_only=True)

    def _launch(self, full_only: bool) -> None:
        """Reduce the next buckets in their order, with zeros for gradients that are missing."""
        for bucket in self._buckets[self._launched :]:
            if full_only and bucket.missing:
                return
            bucket.used.fill_(1.0)
            for place, member in enumerate(bucket.members):
                if member not in self._collected:
                    bucket.views[place].zero_()
                    bucket.used[place] = 0.0
            bucket.missing = 0
            self._launched += 1
            if self._launched == len(self._buckets):
                self.ready = self._clock.mark()
            self.log.add(bucket.label, bucket.flat)

    def _finish(self) -> None:
        """Reduce the buckets that backward did not reach, and wait for all."""
        self._launch(full_only=False)
        self.log.wait()

    @contextmanager
    def _backward(self, last: bool) -> Iterator[None]:
        if not self._open:
            self._registry.check()
        self._open, self._live = True, last
        try:
            yield
        finally:
            self._live = False

    def wait(self) -> None:
        """Return when every bucket is reduced; where this rank ran no backward, its zeros are reduced here.

        Raises RunError where a gradient was made outside the two contexts.
        """
        for index, parameter in enumerate(self._parameters):
            bucket, place = self._place[index]
            stray = parameter.grad is not None and parameter.grad is not bucket.views[place]
            if stray and index not in self._collected:
                raise RunError(
                    f"parameter {self._registry.names[index]} has a gradient that was made outside accumulate() and "
                    "synchronise(); run every backward of a step in one of the two, and clear gradients between steps"
                )
        self._finish()
        for bucket in self._buckets:
            has = [member in self._collected for member in bucket.members]
            anywhere = has if all(has) else (bucket.used > 0).tolist()
            for member, view, is_used in zip(bucket.members, bucket.views, anywhere, strict=True):
                parameter = self._parameters[member]
                parameter.grad = view.to(parameter.dtype) if is_used else None
        self._end_step()

    def join(self) -> None:
        """Reduce zeros for the buckets that this rank's broken step did not reach."""
        self._collected.clear()
        self._finish()
        for parameter in self._parameters:
            parameter.grad = None
        self._end_step()

    def _end_step(self) -> None:
        self._launched, self._open, self._queued = 0, False, False
        self._collected.clear()
        for bucket in self._buckets:
            bucket.missing = len(bucket.members)
        self._buffers.share()


def _dtype(parameter: torch.nn.Parameter) -> torch.dtype:
    return torch.promote_types(parameter.dtype, torch.float32)


class OverlapSync(BucketedSync):
    """Buckets that hold one parameter each, reduced as soon as backward makes its gradient ready."""

    def __init__(self, module: torch.nn.Module, clock: Clock, config: SyncConfig) -> None:
        super().__init__(module, clock, config.model_copy(update={"bucket_mb": 0.0}))
