"""bucketed: gradients gather in flat buckets, each reduced while backward fills the next."""

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import torch
from torch.autograd import Variable

from ddpsched.config import SyncConfig
from ddpsched.errors import RunError
from ddpsched.training.clock import Clock
from ddpsched.training.sync.collective_log import Traffic, wire_dtype
from ddpsched.training.sync.parameter_registry import Buffers, Roster


class Bucket:
    """A flat tensor: the gradients of its members end to end, then 1 for each member that has one on some rank.

    At least float32, whatever the parameters are: sums over micro-batches and
    ranks are not rounded to bfloat16. ``views[i]`` is the gradient of ``members[i]``.
    """

    def __init__(self, label: str, members: list[int], parameters: list[torch.nn.Parameter]) -> None:
        self.label, self.members = label, members
        own = [parameters[member] for member in members]
        sizes = [p.numel() for p in own]
        self.flat = torch.zeros(sum(sizes) + len(own), dtype=_dtype(own[0]), device=own[0].device)
        *pieces, self.used = self.flat.split([*sizes, len(own)])
        self.views = [piece.view(p.shape) for piece, p in zip(pieces, own, strict=True)]
        self.missing = len(members)  # gradients that this backward has still to make


class BucketedSync:
    """A bucket is reduced when its last gradient is there and those before it are under way.

    A parameter's ``grad`` is a view into its bucket, so nothing is copied back.
    Backward ends when all sums are in, as in DDP. Parameters that no rank used keep
    ``grad = None``, and those that some rank used count as zero on the others.
    """

    needs_backward, joins, barrier = False, True, None

    def __init__(self, module: torch.nn.Module, clock: Clock, config: SyncConfig) -> None:
        self.module = module
        self.ready: Any = None
        self.traffic = Traffic(clock, wire_dtype(config))
        self._clock = clock
        self._roster, self._buffers = Roster(module), Buffers(module)
        self._parameters = self._roster.parameters
        self._buckets = self._fill(round(config.bucket_mb * 2**20))
        self._place = {member: (bucket, i) for bucket in self._buckets for i, member in enumerate(bucket.members)}
        self._collected: set[int] = set()  # parameters whose gradient is in its bucket
        self._launched = 0  # buckets under way, always the first ones
        self._open = self._live = self._queued = False  # a step has begun; its last backward; its end is arranged
        for index, parameter in enumerate(self._parameters):
            parameter.register_post_accumulate_grad_hook(self._hook(index))

    def _fill(self, capacity: int) -> list[Bucket]:
        """Neighbours share a bucket of at most ``capacity`` bytes and one dtype; a larger parameter has its own."""
        groups: list[list[int]] = []
        room = 0
        for index, parameter in enumerate(self._parameters):
            needed = parameter.numel() * _dtype(parameter).itemsize
            alike = groups and _dtype(self._parameters[groups[-1][0]]) == _dtype(parameter)
            if needed > room or not alike:
                groups.append([])
                room = capacity
            groups[-1].append(index)
            room -= needed
        return [Bucket(self._label(group), group, self._parameters) for group in groups]

    def _label(self, group: list[int]) -> str:
        first, last = (self._roster.names[index] for index in (group[0], group[-1]))
        return first if first == last else f"{first} ... {last}"

    def _hook(self, index: int) -> Any:
        def collected(parameter: torch.nn.Parameter) -> None:
            self._collect(index, parameter)

        return collected

    def _collect(self, index: int, parameter: torch.nn.Parameter) -> None:
        """A micro-batch's gradient of this parameter is there: into the bucket with it."""
        if not self._open:  # a backward of somebody else's
            return
        bucket, place = self._place[index]
        view, gradient = bucket.views[place], parameter.grad
        assert gradient is not None
        self._roster.check_gradient(index, gradient)
        if bucket.missing == 0 and self._live:
            raise RunError(
                f"parameter {self._roster.names[index]} got a gradient after it was reduced: one backward, the last of "
                "a step, runs in synchronise(), all others in accumulate(); and a checkpointed module runs once"
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
            self._launch_full()

    def _launch_full(self) -> None:
        while self._launched < len(self._buckets) and self._buckets[self._launched].missing == 0:
            self._launch()

    def _launch(self) -> None:
        bucket = self._buckets[self._launched]
        bucket.used.fill_(1.0)
        for place, member in enumerate(bucket.members):
            if member not in self._collected:
                bucket.views[place].zero_()
                bucket.used[place] = 0.0
        bucket.missing = 0
        self._launched += 1
        if self._launched == len(self._buckets):
            self.ready = self._clock.mark()
        self.traffic.add(bucket.label, bucket.flat)

    @contextmanager
    def _backward(self, last: bool) -> Iterator[None]:
        if not self._open:
            self._roster.check()
        self._open, self._live = True, last
        try:
            yield
        finally:
            self._live = False

    def accumulate(self) -> AbstractContextManager[Any]:
        """Backward adds to the buckets."""
        return self._backward(last=False)

    def synchronise(self) -> AbstractContextManager[Any]:
        """The one backward in it reduces."""
        return self._backward(last=True)

    def wait(self) -> None:
        """Where there was no backward at all, this rank's zeros are reduced here."""
        for index, parameter in enumerate(self._parameters):
            bucket, place = self._place[index]
            stray = parameter.grad is not None and parameter.grad is not bucket.views[place]
            if stray and index not in self._collected:
                raise RunError(
                    f"parameter {self._roster.names[index]} has a gradient that was made outside accumulate() and "
                    "synchronise(); run every backward of a step in one of the two, and clear gradients between steps"
                )
        self._finish()
        for bucket in self._buckets:
            has = [member in self._collected for member in bucket.members]
            anywhere = has if all(has) else (bucket.used > 0).tolist()
            for member, view, somewhere in zip(bucket.members, bucket.views, anywhere, strict=True):
                parameter = self._parameters[member]
                if not somewhere:
                    parameter.grad = None
                elif parameter.dtype == view.dtype:
                    parameter.grad = view
                else:
                    parameter.grad = view.to(parameter.dtype)
        self._reset()
        self._buffers.share()

    def join(self) -> None:
        self._collected.clear()
        self._finish()
        for parameter in self._parameters:
            parameter.grad = None
        self._reset()
        self._buffers.share()

    def _finish(self) -> None:
        """Reduce what backward did not reach, and wait."""
        while self._launched < len(self._buckets):
            self._launch()
        self.traffic.wait()

    def _reset(self) -> None:
        self._launched, self._open, self._queued = 0, False, False
        self._collected.clear()
        for bucket in self._buckets:
            bucket.missing = len(bucket.members)


def _dtype(parameter: torch.nn.Parameter) -> torch.dtype:
    return torch.promote_types(parameter.dtype, torch.float32)
