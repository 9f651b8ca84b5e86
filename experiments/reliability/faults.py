"""Whether each fault of one rank ends the run in time, with the right exit code and the right rank named.

``python -m experiments.reliability.faults [--kind SIGKILL ...] [--phase forward ...] [--freeze]``: 12 kinds of faults
in 3 phases of a step, on the first and on the last of 3 ranks under torchrun. Running out of memory in forward or
backward must not end the run: the step is repeated, and the run is done with every sample trained once. Every other
fault must end it with exit code 1, "failed" in status.json with the rank in its reason, and no process left.
"""

import itertools
import re
import statistics
import tempfile
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated

import typer

from ddpsched.processes import Process
from ddpsched.recovery.audit import audit
from ddpsched.run_folder import read_status
from experiments.reliability.findings import Finding, Freeze, report
from experiments.reliability.real_runs import ended, ranks_of, start, still_there, write_config

KINDS = (
    "SIGKILL", "SIGSTOP", "SIGTERM", "SIGINT", "segfault", "abort", "exit 0", "exception", "out of memory", "NaN",
    "slow rank", "full disk",
)  # fmt: skip
PHASES = ("forward", "backward", "optimizer")
RANKS = 3
TIMEOUT_S = 15.0
IN_TIME_S = TIMEOUT_S + 15.0  # from the fault to the launcher's end: it waits up to 30 s for ranks that do not end
LIMIT_S, LEFT_S = 180.0, 5.0
app = typer.Typer(add_completion=False, rich_markup_mode=None, pretty_exceptions_enable=False)


@dataclass
class Case:
    """A fault, and how its run ended. ``seconds``: from the fault to the end; None where it did not strike."""

    kind: str
    phase: str
    rank: int
    state: str = ""
    reason: str = ""
    blamed: int | None = None
    code: int | None = None
    seconds: float | None = None
    left: int = 0
    faults: int = 0  # of the audit

    @property
    def recovers(self) -> bool:
        """Whether the run has to go on."""
        return self.kind == "out of memory" and self.phase != "optimizer"

    @property
    def is_right(self) -> bool:
        """Whether all is as it must be."""
        if self.seconds is None or self.left:
            return False
        if self.recovers:
            return (self.state, self.code, self.faults) == ("done", 0, 0)
        in_time = self.seconds <= IN_TIME_S
        return in_time and (self.state, self.code, self.blamed) == ("failed", 1, self.rank)

    def __str__(self) -> str:
        seconds = "did not strike" if self.seconds is None else f"{self.seconds:.1f} s"
        verdict = "right" if self.is_right else "WRONG"
        ending = f"{self.state}, exit code {self.code}, {self.left} left, {seconds}"
        return f"{verdict}: {self.kind}, {self.phase}, rank {self.rank}: {ending}: {self.reason}"


def run_case(case: Case, folder: Path) -> Case:
    """Run it, and fill in how it ended."""
    folder.mkdir()
    config, struck = write_config(folder, RANKS, steps=8, timeout_s=TIMEOUT_S), folder / "struck"
    env = {"DDPSCHED_FAULT": f"{case.kind}|{case.phase}|{case.rank}|{struck}"}
    launcher = start(config, "run", RANKS, module="experiments.reliability.faulty", env=env)
    seen, deadline = dict[int, Process](), time.monotonic() + LIMIT_S
    while launcher.poll() is None and len(seen) < RANKS and time.monotonic() < deadline:
        seen |= {rank: Process.of(pid) for rank, pid in ranks_of(launcher.pid).items()}
        time.sleep(0.1)
    case.code = ended(launcher, max(0.0, deadline - time.monotonic()))
    if struck.exists():
        case.seconds = round(time.time() - float(struck.read_text()), 2)
    status = read_status(folder / "runs" / "run")
    case.state, case.reason = status["state"], status.get("reason") or ""
    named = re.search(r"rank (\d+)", case.reason)
    case.blamed = None if named is None else int(named[1])
    case.left = len(still_there(list(seen.values()), LEFT_S))
    case.faults = len(audit(folder / "runs" / "run").faults) if case.recovers else 0
    return case


def detection(cases: list[Case]) -> dict[str, dict[str, float]]:
    """Return the median and the largest seconds from a fault to the end of the run, by kind."""
    found = {}
    for kind in dict.fromkeys(case.kind for case in cases):
        seconds = [case.seconds for case in cases if case.kind == kind and case.seconds is not None]
        if seconds:
            found[kind] = {"median_s": round(statistics.median(seconds), 2), "max_s": max(seconds)}
    return found


@app.command()
def main(
    kind: Annotated[list[str] | None, typer.Option(help=" | ".join(KINDS))] = None,
    phase: Annotated[list[str] | None, typer.Option(help=" | ".join(PHASES))] = None,
    rank: Annotated[list[int] | None, typer.Option(min=0, max=RANKS - 1)] = None,
    freeze: Freeze = False,
) -> None:
    """Plant each fault, and see how the run ends."""
    for given, known in ((kind or (), KINDS), (phase or (), PHASES)):
        if unknown := [each for each in given if each not in known]:
            raise typer.BadParameter(f"{unknown[0]!r}: give one of {', '.join(known)}")
    cases = [Case(*each) for each in itertools.product(kind or KINDS, phase or PHASES, rank or (0, RANKS - 1))]
    for number, case in enumerate(cases, start=1):
        with tempfile.TemporaryDirectory(prefix="ddpsched-faults-") as folder:
            run_case(case, Path(folder, "case"))
        print(f"{number} of {len(cases)}: {case}", flush=True)
    right = sum(case.is_right for case in cases)
    finding = Finding(
        "faults",
        "Faults of one rank: kinds, phases of a step, first and last rank",
        "all end in time with the right exit code and the right rank named",
        f"{right} of {len(cases)}",
        right == len(cases),
        "python -m experiments.reliability.faults",
        {"cases": [asdict(case) for case in cases], "detection": detection(cases)},
    )
    raise typer.Exit(report(finding, freeze))


if __name__ == "__main__":
    app()
