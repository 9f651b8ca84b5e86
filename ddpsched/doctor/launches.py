"""Launches by torchrun: one that starts again after a rank has died, then trains; and one in which a rank raises."""

import os
import re
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import ddpsched
from ddpsched.doctor import launched
from ddpsched.doctor.finding import Finding, Setting, one_line
from ddpsched.run_folder import read_status

RANKS = 2
CONFIG = """
outputs = "{outputs}"
name = "doctor"
steps = 2
global_batch = 8
world_size = 2
data.size = 40
executor = {{ kind = "distributed", timeout_s = {timeout_s} }}
"""
INTERFACE = "where the ranks cannot reach each other, export GLOO_SOCKET_IFNAME=lo (one machine)"
ERROR = re.compile(r"(?:\[rank\d+\]: )?([A-Za-z_][\w.]*: \S.*)")  # the last line of a traceback
UNSET = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")


@dataclass(frozen=True)
class Launch:
    """The result of a launch.

    ``code``: of torchrun. ``state``: of the run that the second attempt makes, and ``reason``, if that failed.
    ``attempts``: how many ranks had formed a group in each attempt. ``printed``: the end of what ranks printed.
    """

    code: int
    took_s: float
    attempts: tuple[int, ...]
    state: str = "absent"
    reason: str = ""
    printed: str = ""


def check(setting: Setting) -> list[Finding]:
    """Return the findings on a launch in which rank 1 is killed once, and on one in which it raises, made at once."""
    config = setting.scratch / "restarted.toml"
    config.write_text(CONFIG.format(outputs=setting.scratch, timeout_s=launched.TIMEOUT_S), encoding="utf-8")
    with ThreadPoolExecutor(2) as pool:
        restarted = pool.submit(launch, setting.scratch / "restart", "restart", str(config), restarts=1)
        raised = pool.submit(launch, setting.scratch / "failure", "failure")
        return [judge_restart(restarted.result()), judge_failure(raised.result())]


def launch(folder: Path, *words: str, restarts: int = 0) -> Launch:
    """Run two ranks of ``launched`` by torchrun, with these words."""
    folder.mkdir()
    environ = {name: value for name, value in os.environ.items() if name not in UNSET}
    environ["PYTHONPATH"] = os.pathsep.join(
        [str(Path(ddpsched.__file__).parents[1]), *filter(None, [environ.get("PYTHONPATH")])]
    )
    environ["OMP_NUM_THREADS"] = "1"
    torchrun = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(RANKS)]
    command = [sys.executable, *torchrun, "--max-restarts", str(restarts), "-m", launched.__name__, str(folder), *words]
    begin = time.monotonic()
    process = subprocess.run(command, env=environ, stdin=subprocess.DEVNULL, capture_output=True, text=True)
    status = read_status(folder.parent / "runs" / "doctor")
    return Launch(
        process.returncode, time.monotonic() - begin, launched.attempts(folder, restarts + 1), status["state"],
        str(status.get("reason") or ""), told(process.stderr),
    )  # fmt: skip


def told(stderr: str) -> str:
    """Return the last error that a rank printed, not that of the launcher.

    >>> told("[rank1]: ValueError: 3\\n  time : 9\\ntorch.errors.ChildFailedError: \\n")
    'ValueError: 3'
    """
    found = (ERROR.match(line) for line in stderr.splitlines())
    errors = [match[1] for match in found if match]
    return errors[-1] if errors else ""


def judge_restart(launch: Launch) -> Finding:
    """Return the finding on the launch in which rank 1 is killed in the first attempt."""
    name, printed = "restart", f" ({launch.printed})" if launch.printed else ""
    first, second = launch.attempts
    if first < RANKS:
        says = f"only {first} of {RANKS} ranks under torchrun formed a group{printed}"
        return Finding(name, "fail", one_line(says, 480), f"run torchrun --standalone by hand; {INTERFACE}")
    if second < RANKS:
        says = f"after a rank had been killed, {second} of {RANKS} ranks formed a group again{printed}"
        remedy = "export TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1 for launches with --max-restarts"
        return Finding(name, "fail", one_line(says, 480), remedy)
    if launch.state != "done":
        says = f"the run after the restart is {launch.state}: {launch.reason}{printed}"
        return Finding(name, "fail", one_line(says, 480), "correct what the reason names; the run's model is tiny")
    if launch.code != 0:
        says = f"a run that is done left torchrun with exit code {launch.code}, expected 0{printed}"
        return Finding(name, "fail", one_line(says, 480), "judge runs by status.json and not by the exit code")
    numbers = {"took_s": launch.took_s}
    says = "torchrun started two ranks again after one was killed; the tiny run that they then made is done"
    return Finding(name, "ok", f"{says}, exit code 0, {launch.took_s:.0f} s in all", numbers=numbers)


def judge_failure(launch: Launch) -> Finding:
    """Return the finding on the launch in which rank 1 raises."""
    name, printed = "exit code", f" ({launch.printed})" if launch.printed else ""
    if launch.attempts[0] < RANKS:
        says = f"only {launch.attempts[0]} of {RANKS} ranks under torchrun formed a group{printed}"
        return Finding(name, "fail", one_line(says, 480), f"run torchrun --standalone by hand; {INTERFACE}")
    if launch.code == 0:
        says = "a launch in which rank 1 raised left torchrun with exit code 0, expected another"
        return Finding(
            name, "fail", says, "judge runs by status.json and not by the exit code; report it with this line"
        )
    says = f"{launch.code} where rank 1 raised, {launch.took_s:.0f} s in all"
    return Finding(name, "ok", says, numbers={"code": float(launch.code), "took_s": launch.took_s})
