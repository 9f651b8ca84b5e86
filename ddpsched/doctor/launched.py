"""One rank of a launch that ``launches`` makes: ``python -m ddpsched.doctor.launched FOLDER restart CONFIG | failure``.

It joins the group and notes that in the folder. "restart": in the first attempt rank 1 is killed, in the second the
ranks run CONFIG. "failure": rank 1 raises, while rank 0 waits for it.
"""

import os
import signal
import sys
from pathlib import Path
from time import sleep

TIMEOUT_S = 30.0  # ranks may start far apart on a busy machine
VICTIM, LATE_S = 1, 1.0


def attempts(folder: Path, number: int) -> tuple[int, ...]:
    """Return how many ranks had formed a group in each of the first attempts."""
    return tuple(len(list(folder.glob(f"attempt{each}-rank*"))) for each in range(number))


def main(folder: Path, kind: str, config: str = "") -> int:
    """Run this rank; return its exit code."""
    import torch
    import torch.distributed as dist

    from ddpsched.training.group_exchange import start_group
    from ddpsched.world import World

    world, attempt = World.detect(), int(os.environ["TORCHELASTIC_RESTART_COUNT"])
    if attempt > 0 and world.rank == VICTIM:
        sleep(LATE_S)  # rank 0 looks for it first, and would find the address of the rank that was killed
    start_group(torch.device("cpu"), world, TIMEOUT_S)
    dist.barrier()
    (folder / f"attempt{attempt}-rank{world.rank}").touch()
    dist.barrier()
    if kind == "restart" and attempt > 0:
        from ddpsched.cli import run_config

        return run_config(config, [], overwrite=False)  # in the group that is there
    if world.rank == VICTIM:
        if kind == "failure":
            raise RuntimeError("planted by ddpsched doctor")
        os.kill(os.getpid(), signal.SIGKILL)
    dist.barrier()
    return 0


if __name__ == "__main__":
    from ddpsched.cli import leave

    leave(main(Path(sys.argv[1]), *sys.argv[2:]))
