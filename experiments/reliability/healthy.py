"""Whether healthy runs exit with 0. ``python -m experiments.reliability.healthy [--count 100] [--load 0] [--freeze]``.

Runs of two real ranks under torchrun follow one another, beside ``--load`` processes that only compute. Each must end
with exit code 0, "done" in status.json, and no process left.
"""

import multiprocessing
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Annotated

import typer

from ddpsched.processes import Process
from ddpsched.run_folder import read_status
from experiments.reliability.findings import Finding, Freeze, report
from experiments.reliability.real_runs import ended, ranks_of, start, still_there, write_config

LIMIT_S, LEFT_S = 180.0, 5.0
GOOD = "done, exit code 0, 0 processes left"
app = typer.Typer(add_completion=False, rich_markup_mode=None, pretty_exceptions_enable=False)


def ending(config: Path, name: str) -> str:
    """Run one run of the config; return how it ended."""
    launcher, seen = start(config, name, 2), dict[int, Process]()
    deadline = time.monotonic() + LIMIT_S
    while launcher.poll() is None and len(seen) < 2 and time.monotonic() < deadline:
        seen |= {rank: Process.of(pid) for rank, pid in ranks_of(launcher.pid).items()}
        time.sleep(0.1)
    code = ended(launcher, deadline - time.monotonic())
    status = read_status(config.parent / "runs" / name)
    reason = "" if status.get("reason") is None else f" ({status['reason']})"
    left = len(still_there(list(seen.values()), LEFT_S))
    how = f"no exit within {LIMIT_S:.0f} s" if code is None else f"exit code {code}"
    return f"{status['state']}{reason}, {how}, {left} processes left"


def _compute() -> None:
    while True:
        sum(range(10_000))


@app.command()
def main(
    count: Annotated[int, typer.Option(min=1, help="number of runs")] = 100,
    load: Annotated[int, typer.Option(min=0, help="processes that compute beside the runs")] = 0,
    freeze: Freeze = False,
) -> None:
    """Run healthy runs, and count how they end."""
    beside = [multiprocessing.Process(target=_compute, daemon=True) for _ in range(load)]
    for process in beside:
        process.start()
    endings: Counter[str] = Counter()
    with tempfile.TemporaryDirectory(prefix="ddpsched-healthy-") as folder:
        config = write_config(Path(folder), ranks=2, steps=3)
        for number in range(count):
            begin = time.monotonic()
            result = ending(config, f"run-{number}")
            endings[result] += 1
            print(f"{number + 1} of {count}: {result}, {time.monotonic() - begin:.1f} s", flush=True)
    for process in beside:
        process.kill()
    good = endings[GOOD]
    finding = Finding(
        "healthy", "Healthy runs that exit with 0", "100 of 100", f"{good} of {count}", good == count,
        f"python -m experiments.reliability.healthy --count {count}" + f" --load {load}" * bool(load), dict(endings),
    )  # fmt: skip
    raise typer.Exit(report(finding, freeze))


if __name__ == "__main__":
    app()
