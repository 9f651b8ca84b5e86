"""The objects that iterate a batch sampler, read from the stack, as a sampler is not given them.

Two things that a sampler cannot see make a loop wrong without an error. A wrapper may divide this rank's lists over the
ranks once more, so that G - 1 of G are never run; and a loader may ask for lists ahead of those that it hands out, so
that the sampler's position is not the loop's.
"""

import sys
import warnings
from collections.abc import Iterator
from typing import Any
from weakref import ref

from ddpsched.errors import ConfigError

DEPTH = 8  # frames between a sampler's iter() and the loop: at most a loader, its iterator and two wrappers


def owners() -> Iterator[Any]:
    """Yield the objects whose methods are calling, nearest first; to be called by a sampler's ``__iter__``."""
    frame = sys._getframe(2)
    for _ in range(DEPTH):
        if frame is None:
            return
        for name in frame.f_code.co_varnames[: min(1, frame.f_code.co_argcount)]:  # of a method its object
            if frame.f_locals.get(name) is not None:
                yield frame.f_locals[name]
        frame = frame.f_back  # type: ignore[assignment] # None at the bottom


def refuse_dealing(sampler: Any, callers: list[Any]) -> None:
    """Raise ConfigError where a caller divides this sampler's lists, which are one rank's already, over ranks."""
    below = sampler
    for caller in callers:
        wraps = any(value is below for value in getattr(caller, "__dict__", {}).values())
        parts = max(_number(caller, "num_processes"), _number(caller, "num_replicas"))
        torch_data = sys.modules.get("torch.utils.data")
        if wraps and parts > 1 and torch_data is not None and isinstance(caller, torch_data.Sampler):
            what = f"{type(caller).__name__} gives each of {parts} processes every {parts}th list of it"
        elif is_accelerates(caller, "DataLoaderDispatcher") and caller.state.num_processes > 1:
            what = "DataLoaderDispatcher (dispatch_batches=True) has one process load for all"
        else:
            below = caller if wraps else below
            continue
        raise ConfigError(
            f"{type(sampler).__name__} divides the samples over ranks itself, but {what}, so the other lists would "
            "never run. Do not give its DataLoader to accelerator.prepare: prepare model and optimizer alone, and "
            "iterate `for batch, scale in ddpsched.scaled(DataLoader(data, batch_sampler=sampler))`. Under "
            "transformers' Trainer, return that DataLoader itself from an overridden get_train_dataloader"
        )


class InFlight:
    """The number of lists that a loader has asked for without handing out their batches, as its workers load them."""

    def __init__(self, callers: list[Any]) -> None:
        loaders = [each for each in callers if hasattr(each, "_index_sampler") and _number(each, "_num_workers") > 0]
        self._loader = ref(loaders[0]) if loaders else None  # strongly held, it would keep its workers alive
        self._tasks: dict[int, Any] = {}
        self.has_workers = bool(loaders)
        # accelerate's loaders hold a batch back, to know which is the last one
        self._holds_back = any(is_accelerates(each, "DataLoaderShard") for each in callers)
        self._held = 0

    def __reduce__(self) -> Any:
        """Reduce to a new one, as the copy of a sampler has handed out nothing."""
        return InFlight, ([],)

    def asked(self) -> None:
        """Note that a list is asked for. The loader's table of tasks may be another one in each iteration."""
        loader = self._loader() if self._loader is not None else None
        if loader is not None:
            self._tasks = loader._task_info
        self._held = int(self._holds_back)

    def ended(self) -> None:
        """Note that there are no more lists, so nothing is held back."""
        self._held = 0

    def __len__(self) -> int:
        """Return the number; once the loader is gone, of lists that it had asked for and never handed out."""
        return len(self._tasks) + self._held


def saved_by_torchdata() -> bool:
    """Return whether the caller's caller is torchdata's StatefulDataLoader, which keeps the states of its lists."""
    return str(sys._getframe(2).f_globals.get("__name__", "")).startswith("torchdata.")


def begun_anew(owner: str) -> ConfigError:
    """Return the error of a loop whose loader was iterated anew within the loop, which ends its batches."""
    return ConfigError(
        f"{owner}: the loader was iterated anew within this loop. With persistent_workers=True a DataLoader has one "
        "iterator, so the rest of this loop's batches is gone; take another loader for it, or leave persistent_workers "
        "out"
    )


def counted_by_accelerate() -> bool:
    """Return whether the epoch that is named is accelerate's count of the iterations of one of its loaders.

    That count begins with 0 in each process, whatever state a sampler has loaded, and whichever epoch was named to it.
    """
    caller = sys._getframe(2)
    owner = caller.f_locals.get("self")
    iterates = caller.f_back is not None and caller.f_back.f_code.co_name == "__iter__"
    return iterates and is_accelerates(owner, "DataLoaderShard")


def warn_of_accelerator() -> None:
    """Warn where an Accelerator is in use, which the loader that iterates was not prepared for."""
    state = sys.modules.get("accelerate.state")
    if state is not None and state.is_initialized():
        warnings.warn(
            "balanced: an Accelerator is in use, but this loader is not prepared for it, so its batches stay where "
            "they are and accelerator.save_state holds no position; iterate "
            "ddpsched.integrations.accelerate.prepare(accelerator, loader)",
            stacklevel=3,
        )


def is_accelerates(loader: Any, name: str) -> bool:
    """Return whether ``loader`` is of the class ``name`` of accelerate."""
    kind = type(loader)
    return kind.__name__ == name and kind.__module__.startswith("accelerate.")


def _number(owner: Any, name: str) -> int:
    value = getattr(owner, "__dict__", {}).get(name)
    return value if isinstance(value, int) else 0
