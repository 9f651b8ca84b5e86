"""One rank of a run with a planted fault, else as ``experiments.train``.

``DDPSCHED_PLANT="1 kill ddpsched.run_loop:compact"``: rank 1 kills itself before it calls ``compact``. ``stop``
suspends it, and a number makes it sleep for so many seconds. The place ``start`` is before everything. A number behind
the place counts its calls: ``2`` is before the second one alone. Several faults are separated by ``;``.
``DDPSCHED_SUSPENDED_S``: seconds that a rank may be suspended, for tests that cannot wait.
"""

import functools
import itertools
import os
import signal
import sys
import time
from importlib import import_module
from typing import Any

from experiments import train


def plant(spec: str) -> None:
    """Plant the fault ``spec``, "RANK ACTION PLACE [CALL]", where this process is its rank."""
    rank, action, place, *call = spec.split()
    if os.environ["RANK"] != rank:
        return
    if place == "start":
        _act(action)
        return
    module, _, path = place.partition(":")
    *owners, name = path.split(".")
    owner: Any = functools.reduce(getattr, owners, import_module(module))
    original, calls = getattr(owner, name), itertools.count(1)

    @functools.wraps(original)
    def faulty(*args: Any, **more: Any) -> Any:
        if not call or next(calls) == int(call[0]):
            _act(action)
        return original(*args, **more)

    setattr(owner, name, faulty)


def _act(action: str) -> None:
    if action == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    elif action == "stop":
        os.kill(os.getpid(), signal.SIGSTOP)
    else:
        time.sleep(float(action))


if __name__ == "__main__":
    for each in filter(None, os.environ.get("DDPSCHED_PLANT", "").split(";")):
        plant(each)
    if patience := os.environ.get("DDPSCHED_SUSPENDED_S"):
        import_module("ddpsched.watch").Watch.SUSPENDED_S = float(patience)
    code = train.main(sys.argv[1:])
    import_module("ddpsched.cli").leave(code)
