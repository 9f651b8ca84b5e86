"""Two network namespaces as two hosts: their link has its rate, they vanish, and ranks train over it."""

import json
import subprocess
import sys
import time
from contextlib import ExitStack, nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ddpsched.config import parse
from ddpsched.errors import ConfigError, RunError
from ddpsched.records import write_json
from ddpsched.run_folder import read_status
from experiments.benchmarks import namespaces, two_hosts
from experiments.benchmarks.bench import with_ratios
from experiments.benchmarks.namespaces import BUCKET, LINK, bits_per_s, missing
from experiments.benchmarks.two_hosts import Times, about_buckets, arms, main, report, rows, step_bytes

SENT = 2_000_000  # bytes
RECEIVE = """
import socket
address, size, turns = %r
server = socket.create_server((address, 5000))
print("ready", flush=True)
peer, _ = server.accept()
for _ in range(turns):
    left = size
    while left and (part := peer.recv(min(left, 65536))): left -= len(part)
    peer.send(b".")
"""
SEND = """
import socket, time
address, size, turns = %r
peer = socket.create_connection((address, 5000))
content = bytes(size)
for _ in range(turns):
    time.sleep(0.02)
    begin = time.perf_counter()
    peer.sendall(content)
    peer.recv(1)
    print(time.perf_counter() - begin)
"""


@pytest.fixture(scope="module")
def hosts_here() -> None:
    """Skip where there can be no namespaces: they need root, Linux and tc, which not every machine has."""
    if (reason := missing()) is not None:
        pytest.skip(f"two hosts: {reason}")  # the reason names what this machine lacks, and what to do


def seconds_to_send(hosts: Any, size: int, turns: int = 1) -> list[float]:
    """Return how long each of ``turns`` sends of ``size`` bytes took, every one after a pause."""
    words = (hosts.address(1), size, turns)
    receiver = subprocess.Popen([*hosts.enter(1), sys.executable, "-c", RECEIVE % (words,)], stdout=subprocess.PIPE)
    assert receiver.stdout is not None
    receiver.stdout.readline()
    sender = [*hosts.enter(0), sys.executable, "-c", SEND % (words,)]
    found = subprocess.run(sender, check=True, capture_output=True, text=True)
    receiver.wait(10)
    receiver.stdout.close()
    return [float(line) for line in found.stdout.split()]


@pytest.mark.usefixtures("hosts_here")
def test_the_link_has_its_rate_and_goes_with_the_block() -> None:
    with namespaces.two_hosts("unshaped") as hosts:
        (free_s,) = seconds_to_send(hosts, SENT)
    with ExitStack() as stack:
        stack.enter_context(pytest.raises(KeyboardInterrupt))
        hosts = stack.enter_context(namespaces.two_hosts("20mbit"))
        (shaped_s,) = seconds_to_send(hosts, SENT)
        raise KeyboardInterrupt
    assert 0.9 * SENT * 8 / 20e6 - 0.1 < shaped_s < 30, "all but the first bucket comes at the rate"
    assert free_s < shaped_s / 2
    assert all(not Path(f"/proc/{holder}").exists() for holder in hosts.holders)
    links = subprocess.run(["ip", "-o", "link"], check=True, capture_output=True, text=True).stdout
    assert LINK not in links


@pytest.mark.usefixtures("hosts_here")
def test_after_a_pause_a_fast_link_has_its_rate_too() -> None:
    """The gradients of a small model, whose steps leave the link idle in between: a large bucket lets them through."""
    size = 600_000
    with namespaces.two_hosts("1gbit") as hosts:
        found = seconds_to_send(hosts, size, turns=10)
    least_s = (size - BUCKET) * 8 / 1e9
    assert least_s < min(found) < 5 * least_s


def test_where_namespaces_are_not_permitted_the_reason_is_printed(monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    def refused(*words: Any, **options: Any) -> Any:
        return subprocess.CompletedProcess(words, 1, "", "unshare: unshare failed: Operation not permitted\n")

    monkeypatch.setattr(namespaces.shutil, "which", lambda tool: f"/bin/{tool}")
    monkeypatch.setattr(namespaces.subprocess, "run", refused)
    reason = missing()
    assert reason is not None
    assert "Operation not permitted); run it as root" in reason
    assert main(["rate=1gbit"]) == 1
    assert f"skipped: two hosts: {reason}" in capsys.readouterr().err
    with pytest.raises(ConfigError, match="Operation not permitted"), namespaces.two_hosts("1gbit"):
        pass
    monkeypatch.setattr(namespaces.shutil, "which", lambda tool: None if tool in ("ip", "tc") else tool)
    assert missing() == "ip, tc not found on PATH; install iproute2"


def test_a_kernel_without_tbf_is_named_in_its_own_words(monkeypatch: pytest.MonkeyPatch) -> None:
    def without_tbf(words: Any, **options: Any) -> Any:
        said = "Error: Specified qdisc kind is unknown.\n" if "tbf" in words else ""
        return subprocess.CompletedProcess(words, 2 if said else 0, "", said)

    monkeypatch.setattr(namespaces.shutil, "which", lambda tool: f"/bin/{tool}")
    monkeypatch.setattr(namespaces.subprocess, "run", without_tbf)
    monkeypatch.setattr(namespaces, "_namespace", lambda: nullcontext(1))
    reason = missing()
    assert reason is not None
    assert "Specified qdisc kind is unknown.; use a machine whose kernel has veth links and tbf" in reason


def test_the_rates_before_one_that_fails_are_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def measured(config: Any, rate: str, launches: int) -> Any:
        if rate == "2gbit":
            raise RunError("the link broke")
        row = {"launches_s": [[1.0] * 9] * 2, "exposed_share": 0.5}
        row |= dict.fromkeys(("step_s", "compute_s", "waiting_s", "exposed_s"), 1.0)
        return [{"arm": arm, **row} for arm in ("ddp, static", "A/A")]

    monkeypatch.setattr(two_hosts, "missing", lambda: None)
    monkeypatch.setattr(two_hosts, "measure", measured)
    monkeypatch.setattr(two_hosts, "step_bytes", lambda run: 600_000)
    output = tmp_path / "found.json"
    assert main(["rate=1gbit", "rate=2gbit", "--output", str(output)]) == 1
    written = json.loads(output.read_text())
    assert [link["rate"] for link in written["links"]] == ["1gbit"]
    assert (written["step_bytes"], written["link_bucket_bytes"]) == (600_000, BUCKET)


def test_a_step_too_small_for_the_links_bucket_is_named(tmp_path: Path) -> None:
    run = parse({**two_hosts.DEFAULT, "outputs": str(tmp_path), "sync": {"precision": "bfloat16"}})
    run.run_dir.mkdir(parents=True)
    write_json(run.run_dir / "environment.json", {"num_parameters": 150_000})
    assert step_bytes(run) == 300_000
    assert "18 times what crosses a link at once, less than 20 times: what is exposed" in about_buckets(300_000)
    assert about_buckets(600_000) == "a step's gradients are 600,000 bytes, 37 times what crosses a link at once"


@pytest.mark.parametrize("rate", ["fast", "0mbit", "10", "1e9mbit", ""])
def test_rates_that_are_none(rate: str) -> None:
    with pytest.raises(ConfigError, match="give a whole number and kbit, mbit or gbit"):
        bits_per_s(rate)


def test_arms_differ_in_synchroniser_and_policy_alone_and_the_first_is_there_twice() -> None:
    runs = arms(parse({"steps": 5, "world_size": 2, "executor": {"kind": "distributed"}}), "1gbit", 1)
    assert [run.name for run in runs if run.aa] == ["ddp-static-1-aa"]
    assert len({(run.sync.kind, run.policy.kind) for run in runs}) == len(runs) - 1 == 8
    assert {run.study for run in runs} == {"two-hosts-1gbit"}
    assert {run.seed for run in runs} == {1}


def test_rows_are_means_over_launches_and_ratios_to_the_first_arm() -> None:
    def times(step: float) -> Times:
        noise = np.linspace(0.99, 1.01, 12)
        return Times(step * noise, 0.5 * noise, 0.0 * noise, 0.1 * noise)

    launch = {"ddp, static": times(1.0), "A/A": times(1.0), "naive, static": times(2.0)}
    found = {row["arm"]: row for row in with_ratios(rows([launch, launch, launch]))}
    assert found["naive, static"]["ratio"]["ratio"] == pytest.approx(2.0, rel=0.01)
    assert found["naive, static"]["verdict"] == "slower"
    assert found["naive, static"]["exposed_share"] == pytest.approx(0.05)
    assert found["ddp, static"]["ratio"] is None
    assert report("1gbit", list(found.values())).row_count == 3


@pytest.mark.slow
@pytest.mark.usefixtures("hosts_here")
def test_ranks_on_two_hosts_train_and_a_launch_that_fails_says_why(tmp_path: Path, capsys: Any) -> None:
    assert main(["rate=50mbit", "steps=6", f"outputs={tmp_path}", "--launches", "1"]) == 0
    said = capsys.readouterr().out
    assert "bucketed, balanced" in said
    assert "37 times what crosses a link at once\n" in said
    assert read_status(tmp_path / "two-hosts-50mbit" / "naive-balanced-0")["state"] == "done"
    assert not list((tmp_path / "two-hosts-50mbit").glob(".*")), "no file is left beside the runs"
    config = parse({"world_size": 2, "executor": {"kind": "distributed"}, "outputs": str(tmp_path), "steps": 5})
    absent = config.data.model_copy(update={"path": "/none.tsv"})
    runs = [run.model_copy(update={"data": absent}) for run in arms(config, "unshaped", 0)]
    begin = time.monotonic()
    with namespaces.two_hosts("unshaped") as hosts, pytest.raises(RunError, match=r"/none\.tsv"):
        two_hosts.run_on(hosts, runs)
    assert time.monotonic() - begin < 90
