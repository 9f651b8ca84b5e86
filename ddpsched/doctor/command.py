"""``ddpsched doctor``: make all checks, and print the finding of each as soon as it is made."""

import json
import os
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

from ddpsched.command_exit import terminable
from ddpsched.doctor import certificate, devices, disk, launches, ports, ranks, slowdown, versions
from ddpsched.doctor.clocks import Now, judge_wall
from ddpsched.doctor.finding import Finding, Setting, failed
from ddpsched.doctor.isolation import Probe, examine
from ddpsched.errors import ConfigError
from ddpsched.terminal import plain_console
from ddpsched.world import World

WITHIN_S = 57.0  # all checks, so that ending them and this process takes no longer than a minute
GLOO = "let processes connect to 127.0.0.1 (firewall, container), end other programs, and run this again"
TORCHRUN = "end other programs and run this again; where ranks wait for each other, export GLOO_SOCKET_IFNAME=lo"
PROBES = (
    Probe("versions", versions.check, 10.0, versions.INSTALL),
    Probe("processors", devices.check, 10.0, "see that /proc and /sys can be read"),
    Probe("ports", ports.check, 15.0, "let processes connect to 127.0.0.1 (firewall, container)"),
    Probe("disk", disk.check, 15.0, "give another folder: outputs=DIR of runs, --outputs DIR here"),
    Probe("torch", devices.check_gpus, 25.0, devices.TORCH),
    Probe("two processes", slowdown.check, 25.0, "free some memory, end other programs, and run this again"),
    Probe("two ranks", ranks.check, 20.0, GLOO),
    Probe("gradient", certificate.check, 25.0, certificate.REMEDY),
    Probe("restart", launches.check, 40.0, TORCHRUN),
)
STYLES = {"ok": "green", "warn": "yellow", "fail": "red", "skip": "dim"}


@dataclass(frozen=True)
class Request:
    """The options of ``ddpsched doctor``."""

    outputs: Path
    json: bool = False


def answer(request: Request, probes: Sequence[Probe] = PROBES, within_s: float = WITHIN_S) -> bool:
    """Make the checks, print the findings, and return whether none failed. Raises ConfigError under a launcher."""
    if World.launched():
        size = os.environ["WORLD_SIZE"]
        raise ConfigError(f"WORLD_SIZE = {size}: doctor starts ranks itself; run it as one process, not under torchrun")
    begin, findings, out = time.monotonic(), list[Finding](), plain_console()
    with terminable():
        for finding in findings_of(request.outputs, probes, begin + within_s):
            findings.append(finding)
            if not request.json:
                out.print(finding.line, style=STYLES[finding.state], soft_wrap=True)
    bad, took_s = failed(findings), time.monotonic() - begin
    if request.json:
        values = {"holds": not bad, "took_s": took_s, "findings": [each.as_dict() for each in findings]}
        print(json.dumps(values, indent=2))
    else:
        warned = sum(each.state == "warn" for each in findings)
        verdict = f"{len(bad)} failed: {', '.join(bad)}" if bad else "none failed"
        out.print(f"{len(findings)} checks in {took_s:.1f} s: {verdict}, {warned} warned", soft_wrap=True)
    return not bad


def findings_of(outputs: Path, probes: Sequence[Probe], deadline: float) -> Iterator[Finding]:
    """Yield each finding as soon as it is made. ``deadline``: by ``time.monotonic``."""
    began = Now.read()
    with TemporaryDirectory(prefix="ddpsched-doctor-") as scratch:
        for findings in examine(probes, Setting(outputs.absolute(), Path(scratch)), deadline):
            yield from findings
    yield judge_wall(began, Now.read())
