"""Training over a link between two hosts: what of its communication is exposed, by synchroniser, policy and rate.

    python -m experiments.benchmarks.two_hosts [CONFIG] [key=value ...] [rate=100mbit ...] [--launches 5]
        [--output FILE]

The hosts are two network namespaces of this machine, the link is a pair of virtual devices, which the kernel shapes to
each rate. For each rate and launch, torchrun starts one gloo rank on either host, as on two machines, and all arms take
turns step by step; the first arm runs twice (A/A), and ratios are to it. Times are from the runs' records: a step is
forward, backward and synchronisation; *exposed* is its time after the last rank has its gradients ready, *waiting* the
mean over ranks of the time from a rank's gradients to the last rank's. The runs stay in outputs/two-hosts-RATE, for
``ddpsched timeline``. Processors are shared by both hosts, and the link has no delay of its own. After a pause
some KiB cross it at once, at any rate; the last line says how many times that a step's gradients are.
"""

import argparse
import os
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from rich import box
from rich.table import Table

from analysis.waits import load_timeline
from ddpsched.cli import guarded
from ddpsched.config import RunConfig, apply_overrides, dump, load, parse
from ddpsched.environment import describe
from ddpsched.errors import ConfigError, RunError
from ddpsched.processes import ends_with_its_parent
from ddpsched.records import write_json
from ddpsched.run_folder import read_environment, read_status
from ddpsched.terminal import plain_console
from experiments.benchmarks.bench import AA, LEFT_OUT, add_launches, rounded, with_ratios
from experiments.benchmarks.namespaces import BUCKET, LINK, Hosts, bits_per_s, missing, two_hosts
from experiments.benchmarks.syncs import ratio_text
from experiments.launches import Launch
from experiments.launching import Node, command, not_met
from experiments.study import Compare

RATES = ("unshaped", "1gbit", "100mbit")
KINDS, POLICIES = ("ddp", "naive", "overlap", "bucketed"), ("static", "balanced")
PORT = 29_500  # in a namespace of its own, so that it is free
LEAST_BUCKETS = 20  # that a step's gradients fill: with fewer, too much of them crosses a link whatever its rate
GRACE_S = 20.0  # for one host's ranks to end when the other's have failed
DEFAULT: dict[str, Any] = {"steps": 63, "global_batch": 32, "sync": {"bucket_mb": 0.25}}


@dataclass(frozen=True)
class Times:
    """The times of one run, a value for each step that counts, in seconds."""

    step_s: Any
    compute_s: Any
    waiting_s: Any
    exposed_s: Any


def arms(config: RunConfig, rate: str, seed: int) -> list[RunConfig]:
    """Return the runs of a launch: every synchroniser with every policy, the first one twice."""
    made: list[tuple[str, dict[str, Any], bool]] = []
    for policy in POLICIES:
        for kind in KINDS:
            name = f"{kind}-{policy}-{seed}"
            own: dict[str, Any] = {
                "sync": {**config.sync.model_dump(), "kind": kind, "barrier": False},
                "policy": {"kind": policy},
            }
            own |= {"study": f"two-hosts-{rate}", "seed": config.seed + seed}
            made += [(name, own, False)] + [(f"{name}-aa", own, True)] * (not made)
    return [parse({**config.model_dump(), **own, "name": name, "aa": aa}, source=name) for name, own, aa in made]


def run_on(hosts: Hosts, runs: Sequence[RunConfig]) -> None:
    """Start a rank on each host, and wait for both. Raises RunError where a run is not done, ConfigError as they do."""
    launch = Launch(tuple(runs), "interleaved", tuple(run.name for run in runs), Compare(baseline=POLICIES[0]))
    runs[0].run_dir.parent.mkdir(parents=True, exist_ok=True)
    key = f"two-hosts-{os.getpid()}"
    nodes = [Node(host, 2, f"{hosts.address(0)}:{PORT}", key) for host in range(2)]
    environ = {**os.environ, "GLOO_SOCKET_IFNAME": LINK, "OMP_NUM_THREADS": str(runs[0].executor.threads)}
    files = [run.run_dir.with_name(f".{run.name}.{key}.toml") for run in runs]
    logs = [runs[0].run_dir.with_name(f".{key}.{host}.log") for host in range(2)]
    with ExitStack() as stack:
        for run, file in zip(runs, files, strict=True):
            file.write_text(dump(run), encoding="utf-8")
        for path in (*files, *logs):
            stack.callback(path.unlink, missing_ok=True)
        processes = []
        for host, (node, log) in enumerate(zip(nodes, logs, strict=True)):
            words = [*hosts.enter(host), *command(launch, files, ["--overwrite"], node)]
            output = stack.enter_context(log.open("wb"))
            process = subprocess.Popen(
                words, stdout=output, stderr=subprocess.STDOUT, env=environ, preexec_fn=ends_with_its_parent()
            )
            stack.callback(_end, process)
            processes.append(process)
        _wait(processes)
        printed = "\n".join(log.read_text(encoding="utf-8", errors="replace") for log in logs)
        if any(process.returncode for process in processes) or not all(_is_done(run) for run in runs):
            raise RunError(_fault(runs, nodes[0], printed))


def _is_done(run: RunConfig) -> bool:
    return bool(read_status(run.run_dir)["state"] == "done")


def _wait(processes: Sequence["subprocess.Popen[bytes]"]) -> None:
    """Wait for both hosts; where one has failed, only a while for the other."""
    deadline = float("inf")
    while any(process.poll() is None for process in processes) and time.monotonic() < deadline:
        if deadline == float("inf") and any(process.poll() for process in processes):
            deadline = time.monotonic() + GRACE_S
        time.sleep(0.1)


def _end(process: "subprocess.Popen[bytes]") -> None:
    if process.poll() is None:
        process.terminate()  # torchrun ends its ranks
        try:
            process.wait(GRACE_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _fault(runs: Sequence[RunConfig], node: Node, printed: str) -> str:
    """Return why a launch failed: the ranks' own words, else that the hosts did not meet, else the last line."""
    errors = [line.removeprefix("error: ") for line in printed.splitlines() if line.startswith("error: ")]
    states = [(run, read_status(run.run_dir)) for run in runs]
    reasons = [f"{run.run_dir}: {status['reason']}" for run, status in states if status.get("reason")]
    last = (printed.strip().splitlines() or ["nothing was printed"])[-1]
    return next(iter([*errors, *reasons]), not_met(printed, node) or f"the ranks ended without a reason: {last}")


def times_of(run: RunConfig) -> Times:
    """Return the times of a finished run, without the first steps."""
    table = load_timeline(run.run_dir).table
    steps = table.groupby("step")
    frame = steps.agg(
        began=("began_at_s", "min"), ready=("ready_at_s", "max"), done=("done_at_s", "max"),
        compute=("compute_s", "max"), waiting=("straggler_wait_s", "mean"),
    ).iloc[LEFT_OUT:]  # fmt: skip
    step, exposed = frame["done"] - frame["began"], frame["done"] - frame["ready"]
    return Times(*(each.to_numpy() for each in (step, frame["compute"], frame["waiting"], exposed)))


def step_bytes(run: RunConfig) -> int:
    """Return the bytes of gradients that a finished run's ranks send each other in a step, either way."""
    width = {"float32": 4, "bfloat16": 2, "float16": 2}[run.sync.precision]
    return int(read_environment(run.run_dir)["num_parameters"]) * width


def about_buckets(num_bytes: int) -> str:
    """Return how a step's gradients compare with what crosses a link at once, and what to do where they are too few."""
    said = f"a step's gradients are {num_bytes:,} bytes, {num_bytes / BUCKET:.0f} times what crosses a link at once"
    if num_bytes >= LEAST_BUCKETS * BUCKET:
        return said
    return f"{said}, less than {LEAST_BUCKETS} times: what is exposed at a rate is too little here; use a larger model"


def rows(launches: Sequence[Mapping[str, Times]]) -> list[dict[str, Any]]:
    """Return a row for each arm, in seconds; ``launches``: of each the times by arm."""
    made = []
    for arm in launches[0]:
        parts = {
            part: float(np.concatenate([getattr(launch[arm], part) for launch in launches]).mean())
            for part in ("step_s", "compute_s", "waiting_s", "exposed_s")
        }
        seconds = [rounded(launch[arm].step_s) for launch in launches]
        made.append({"arm": arm, "launches_s": seconds, **parts, "exposed_share": parts["exposed_s"] / parts["step_s"]})
    return made


def measure(config: RunConfig, rate: str, launches: int) -> list[dict[str, Any]]:
    """Return the rows at a rate, from so many launches."""
    found = []
    with two_hosts(rate) as hosts:
        for seed in range(launches):
            runs = arms(config, rate, seed)
            run_on(hosts, runs)
            names = [AA if run.aa else f"{run.sync.kind}, {run.policy.kind}" for run in runs]
            found.append({name: times_of(run) for name, run in zip(names, runs, strict=True)})
            print(f"launch {seed + 1} of {launches} at {rate}: {runs[0].run_dir} and {len(runs) - 1} more", flush=True)
    return rows(found)


def report(rate: str, found: Sequence[Mapping[str, Any]]) -> Table:
    """Return the rows of a rate as a table for the terminal."""
    table = Table(title=f"link: {rate}", title_justify="left", box=box.SIMPLE_HEAD, pad_edge=False)
    table.add_column("arm", no_wrap=True)
    for head in ("step\nms", f"/ {found[0]['arm']}\n(95 %)", "compute\nms", "waiting\nms", "exposed\nms", "of step"):
        table.add_column(head, justify="right", no_wrap=True)
    table.add_column("step is", min_width=24)
    for row in found:
        times = [f"{row[name] * 1e3:.1f}" for name in ("step_s", "compute_s", "waiting_s", "exposed_s")]
        share = f"{row['exposed_share']:.0%}"
        table.add_row(row["arm"], times[0], ratio_text(row["ratio"]), *times[1:], share, row["verdict"])
    return table


def main(words: Sequence[str]) -> int:
    """Measure, print a table for each rate, and write them where --output is given; return the exit code."""
    parser = argparse.ArgumentParser(
        prog="python -m experiments.benchmarks.two_hosts",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("words", nargs="*", metavar="CONFIG, key=value or rate=RATE")
    parser.add_argument("--output", type=Path)
    add_launches(parser)
    options = parser.parse_intermixed_args(words)

    def body() -> int:
        files = [word for word in options.words if "=" not in word]
        rates = [word.removeprefix("rate=") for word in options.words if word.startswith("rate=")] or list(RATES)
        given = [word for word in options.words if "=" in word and not word.startswith("rate=")]
        if len(files) > 1:
            raise ConfigError(f"{', '.join(files)}: give one config at most")
        for rate in rates:
            bits_per_s(rate)
        always = ["executor.kind=distributed", "world_size=2"]
        config = load(files[0], [*given, *always]) if files else _default([*given, *always])
        if (reason := missing()) is not None:
            print(f"skipped: two hosts: {reason}", file=sys.stderr)
            return 1
        about: dict[str, Any] = {"model": config.model.name, "num_steps": (config.steps or 0) - LEFT_OUT}
        about |= {"num_launches": options.launches, "global_batch": config.global_batch}
        about |= {"bucket_mb": config.sync.bucket_mb, "device": describe()["cpu"], "link_bucket_bytes": BUCKET}
        links: list[dict[str, Any]] = []
        for rate in rates:
            links.append({"rate": rate, "rows": measure(config, rate, options.launches)})
            plain_console(at_least=118).print(report(rate, with_ratios(links[-1]["rows"])))
            about["step_bytes"] = step_bytes(arms(config, rate, 0)[0])
            if options.output is not None:  # after each rate: the next may fail
                write_json(options.output, {**about, "links": links})
        shape = f"{about['model']}, B = {about['global_batch']}; {about['num_steps']} steps in turn"
        print(f"{shape} in launches: {options.launches}; {about_buckets(about['step_bytes'])}")
        if options.output is not None:
            print(f"written to {options.output}")
        return 0

    return guarded(body)


def _default(words: Sequence[str]) -> RunConfig:
    return parse(apply_overrides(DEFAULT, words), source="two hosts")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
