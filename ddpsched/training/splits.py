"""The parts into which DDP's graph optimizer cuts a compiled model: a bucket travels while backward goes on."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from torch._dynamo.backends.distributed import DDPOptimizer


@contextmanager
def recorded_splits() -> Iterator[list[int]]:
    """Yield a list that gets the bytes of parameters of each part that graphs are cut into here, in forward's order.

    It stays empty where nothing is cut: without DDP, or with ``compile.split = false``.
    """
    compile_fn, splits = DDPOptimizer.compile_fn, list[int]()

    def recorded(self: Any, *args: Any, **options: Any) -> Any:
        compiled = compile_fn(self, *args, **options)
        splits.extend(bucket.size for bucket in self.buckets)
        return compiled

    DDPOptimizer.compile_fn = recorded  # type: ignore[method-assign]
    try:
        yield splits
    finally:
        DDPOptimizer.compile_fn = compile_fn  # type: ignore[method-assign]
