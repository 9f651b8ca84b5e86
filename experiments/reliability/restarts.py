"""Whether runs that torchrun starts again go on, with as many ranks or with others.

``python -m experiments.reliability.restarts [--count 50] [--seed 0] [--freeze]``

Two forms alternate. A rank is killed, once or twice, and torchrun's agent starts all 2 to 4 again (``--max-restarts``).
Or two elastic agents meet on this machine, and the world forms again with another number of ranks: one agent is killed,
or it joins late. A late one may come when the run has just ended, and then has nothing to do; so more runs follow, in
which an agent is killed, until half of all went on with another number of ranks.

Each run must end "done", each launcher that was left alone with exit code 0, and the ledger must be exact.
"""

import os
import random
import secrets
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated

import typer

from ddpsched.errors import DataError
from ddpsched.local_ranks import free_port
from ddpsched.recovery.audit import audit
from ddpsched.recovery.ledger import LEDGER
from ddpsched.run_folder import read_status
from experiments.reliability.findings import Finding, Freeze, report
from experiments.reliability.real_runs import TRAIN, ended, ranks_of

CONFIG = """
outputs = "{outputs}"
steps = {steps}
global_batch = 12
world_size = {ranks}
seed = {seed}
executor = {{ kind = "distributed", timeout_s = 15.0, elastic = {elastic} }}
data = {{ size = 300, held_out = 0.02 }}
train.checkpoint_every = {every}
[policy]
{policy}
"""
POLICIES = (
    'kind = "balanced"',
    'kind = "minmax"\nprefetch = 12',
    'kind = "packed"',
    'kind = "pool"\nmax_tokens_for_batch = 150\npool_size = 16',
)
STEPS = {"restart": 80, "leave": 120, "join": 400}  # a joining agent takes seconds to start, a step milliseconds
# without the second, the agents of torch look in vain for a store where one joins or is lost
ENVIRON = {"OMP_NUM_THREADS": "1", "TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"}
MAX_RESTARTS, LIMIT_S = 3, 180.0
SHOWN = 3000  # characters of what the launchers of a run with a fault printed
app = typer.Typer(add_completion=False, rich_markup_mode=None, pretty_exceptions_enable=False)


@dataclass
class Case:
    """A run in ``folder``, its draws, and the launchers that it has started."""

    folder: Path
    form: str
    number: int
    draw: random.Random = field(init=False)
    launchers: list["subprocess.Popen[bytes]"] = field(default_factory=list)
    killed: list["subprocess.Popen[bytes]"] = field(default_factory=list)  # those of them that were killed

    def __post_init__(self) -> None:
        self.draw = random.Random(self.number)

    @property
    def run(self) -> Path:
        """Return the run's folder."""
        return self.folder / "runs" / "run"

    @property
    def log(self) -> Path:
        """Return the file of all that is printed."""
        return self.folder / "launchers.log"

    @property
    def steps(self) -> int:
        """Return how many steps were committed so far."""
        path = self.run / LEDGER
        return path.read_bytes().count(b"\n") if path.exists() else 0

    def launch(self, ranks: int, *words: str) -> "subprocess.Popen[bytes]":
        """Start a torchrun of so many ranks, in a process group of its own."""
        config = self.folder / "config.toml"
        if not config.exists():
            values = {"policy": self.draw.choice(POLICIES), "every": self.draw.randint(2, 6), "seed": self.number}
            elastic = "false" if self.form == "restart" else "true"
            text = CONFIG.format(outputs=self.folder, steps=STEPS[self.form], ranks=ranks, elastic=elastic, **values)
            config.write_text(text, encoding="utf-8")
        torchrun = ["-m", "torch.distributed.run", *words, "--nproc-per-node", str(ranks), "--max-restarts"]
        with self.log.open("ab") as log:
            self.launchers.append(
                subprocess.Popen(
                    [sys.executable, *torchrun, str(MAX_RESTARTS), "-m", TRAIN, str(config)],
                    stdout=log, stderr=log, start_new_session=True,
                    env={**os.environ, **ENVIRON},
                )
            )  # fmt: skip
        return self.launchers[-1]

    def reach(self, steps: int) -> None:
        """Return when so many steps are committed."""
        self.wait_for(f"no {steps} steps", lambda: self.steps >= steps)

    def await_restart(self, launcher: "subprocess.Popen[bytes]", gone: set[int]) -> None:
        """Return when the launcher has other ranks than these, or none."""
        self.wait_for("ranks were not started again", lambda: not gone & set(ranks_of(launcher.pid).values()))

    def wait_for(self, what: str, holds: Callable[[], bool]) -> None:
        """Return as soon as it holds, or a launcher has ended. Raises TimeoutError after ``LIMIT_S``."""
        deadline = time.monotonic() + LIMIT_S
        while not holds() and all(each.poll() is None for each in self.launchers):
            if time.monotonic() > deadline:
                raise TimeoutError(f"{what} within {LIMIT_S:.0f} s")
            time.sleep(0.02)

    def faults(self, ranks: list[int] | None) -> list[str]:
        """Return what is wrong with the end of the run; ``ranks``: of each start, where they are known."""
        found = []
        for number, each in enumerate(self.launchers):
            code = ended(each, LIMIT_S)
            if each not in self.killed and code != 0:
                found.append(f"launcher {number} ended with exit code {code}")
        status = read_status(self.run)
        if status["state"] != "done":
            return [*found, f"{status['state']}: {status.get('reason')}"]
        audited = audit(self.run)
        starts = [start["world_size"] for start in audited.starts]
        if ranks is not None and starts != ranks:
            found.append(f"began with {starts} ranks, expected {ranks}")
        if audited.num_steps != STEPS[self.form]:
            found.append(f"{audited.num_steps} steps, expected {STEPS[self.form]}")
        return [*found, *audited.faults]

    def end(self) -> None:
        """Kill all that is left of it."""
        for each in self.launchers:
            if each.poll() is None:
                kill_all(each)


def kill_all(launcher: "subprocess.Popen[bytes]") -> None:
    """Kill a launcher and its ranks, which are no longer its children once it is gone."""
    ranks = ranks_of(launcher.pid).values()
    for pid in (launcher.pid, *ranks):
        try:
            os.kill(pid, signal.SIGKILL)
        except ProcessLookupError:
            continue
    launcher.wait()


def restart(case: Case) -> list[str]:
    """Kill a rank, once or twice, each time after some more steps; the agent starts all ranks again."""
    ranks, kills, starts = case.draw.randint(2, 4), case.draw.randint(1, 2), 1
    launcher = case.launch(ranks, "--standalone")
    for _ in range(kills):
        case.reach(case.steps + case.draw.randint(12, 30))  # a checkpoint is there by then
        alive = ranks_of(launcher.pid)
        if not alive or case.steps >= STEPS["restart"]:
            break
        os.kill(alive[case.draw.choice(sorted(alive))], signal.SIGKILL)
        starts += 1
        case.await_restart(launcher, set(alive.values()))
    return case.faults([ranks] * starts)


def leave(case: Case) -> list[str]:
    """Kill one of two agents, with its ranks or alone, so that they must see it; the other's go on."""
    sizes, words = [case.draw.randint(1, 2) for _ in range(2)], meeting()
    case.launch(sizes[0], *words)
    time.sleep(1.0)  # the first holds the store in which they meet
    second = case.launch(sizes[1], *words)
    case.reach(case.draw.randint(12, 60))
    case.killed.append(second)
    if case.draw.random() < 0.5:
        kill_all(second)
    else:
        second.kill()
    return case.faults([sum(sizes), sizes[0]])


def join(case: Case) -> list[str]:
    """Start the second agent while the run goes on, one in four times as soon as it is done."""
    words, late = meeting(), case.draw.random() < 0.25
    sizes = [case.draw.randint(1, 2) for _ in range(2)]
    case.launch(sizes[0], *words)
    case.reach(STEPS["join"] if late else case.draw.randint(5, 200))
    case.launch(sizes[1], *words)
    return case.faults(None)


def meeting() -> list[str]:
    """Return the words by which agents find one another."""
    where = ["--rdzv-backend", "c10d", "--rdzv-endpoint", f"127.0.0.1:{free_port()}", "--rdzv-id", secrets.token_hex(4)]
    return ["--nnodes", "1:2", *where, "--rdzv-conf", "last_call_timeout=3"]


FORMS = {"leave": leave, "restart": restart, "join": join}
ORDER = ("leave", "restart", "join", "restart")


def one_run(number: int, form: str) -> tuple[list[str], list[int]]:
    """Return the faults of one run, and the ranks of each of its starts."""
    with tempfile.TemporaryDirectory(prefix="ddpsched-restarts-") as folder:
        case = Case(Path(folder), form, number)
        try:
            faults = FORMS[form](case)
            starts = [start["world_size"] for start in audit(case.run).starts]
        except (TimeoutError, DataError) as error:
            faults, starts = [str(error)], []
        finally:
            case.end()
        if faults:
            print(case.log.read_text(encoding="utf-8")[-SHOWN:], flush=True)
        return faults, starts


@app.command()
def main(
    count: Annotated[int, typer.Option(min=1, help="number of runs")] = 50,
    seed: Annotated[int, typer.Option(min=0, help="number of the first run")] = 0,
    freeze: Freeze = False,
) -> None:
    """Let torchrun start runs again, and see whether they go on."""
    wrong, resized, restarts, runs, begin = [], 0, 0, 0, time.monotonic()
    while runs < count or (runs > 2 * resized and runs < 2 * count):
        number, form = seed + runs, ORDER[(seed + runs) % len(ORDER)] if runs < count else "leave"
        began, runs = time.monotonic(), runs + 1
        faults, starts = one_run(number, form)
        wrong += [f"run {number} ({form}): {'; '.join(faults)}"] if faults else []
        resized, restarts = resized + (len(set(starts)) > 1), restarts + max(0, len(starts) - 1)
        words = "; ".join(faults) or "exact"
        print(f"run {number} ({form}): {starts} ranks, {words}, {time.monotonic() - began:.1f} s", flush=True)
    finding = Finding(
        "restarts",
        "Runs that torchrun starts again, with as many ranks or others",
        "all done, exit code 0, ledger exact; half of them with another number of ranks",
        f"{runs - len(wrong)} of {runs}, {resized} of them with another number of ranks",
        not wrong and 2 * resized >= runs,
        f"python -m experiments.reliability.restarts --count {count} --seed {seed}",
        {"faults": wrong, "restarts": restarts, "resized": resized, "seconds": round(time.monotonic() - begin)},
    )
    raise typer.Exit(report(finding, freeze))


if __name__ == "__main__":
    app()
