"""One rank of a run with trouble planted in it, as ``experiments.train`` is one without.

``DDPSCHED_PLANT="1 kill ddpsched.run_loop:compact"``: rank 1 kills itself as it comes to ``compact``. ``stop``
suspends it, a number lets it wait so many seconds, ``start`` is a place before everything. Several are parted by ``;``.
``DDPSCHED_SUSPENDED_S``: how long a rank may be suspended, for tests that cannot wait.
"""

import functools
import os
import signal
import sys
import time
from importlib import import_module
from typing import Any

from experiments import train


def plant(spec: str) -> None:
    """Put the trouble before its place, on its rank."""
    rank, action, place = spec.split()
    if os.environ["RANK"] != rank:
        return
    if place == "start":
        _act(action)
        return
    module, _, path = place.partition(":")
    *owners, name = path.split(".")
    owner: Any = functools.reduce(getattr, owners, import_module(module))
    honest = getattr(owner, name)

    @functools.wraps(honest)
    def troubled(*args: Any, **more: Any) -> Any:
        _act(action)
        return honest(*args, **more)

    setattr(owner, name, troubled)


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
