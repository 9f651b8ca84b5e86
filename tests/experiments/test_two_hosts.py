"""Two network namespaces as two hosts: their link has its rate, they vanish, and ranks train over it."""

import subprocess
import sys
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ddpsched.config import parse
from ddpsched.errors import ConfigError, RunError
from ddpsched.run_folder import read_status
from experiments.benchmarks import namespaces, two_hosts
from experiments.benchmarks.namespaces import LINK, bits_per_s, missing
from experiments.benchmarks.two_hosts import Times, arms, main, report, rows

NONE_HERE = missing()
# namespaces need root, Linux and tc, which not every machine has
needs_namespaces = pytest.mark.skipif(NONE_HERE is not None, reason=f"two hosts: {NONE_HERE}")
SENT = 2_000_000  # bytes
RECEIVE = """
import socket
server = socket.create_server((%r, 5000))
print("ready", flush=True)
peer, _ = server.accept()
while peer.recv(65536): pass
peer.send(b"all")
"""
SEND = """
import socket, time
peer = socket.create_connection((%r, 5000))
begin = time.perf_counter()
peer.sendall(bytes(%d))
peer.shutdown(socket.SHUT_WR)
peer.recv(3)
print(time.perf_counter() - begin)
"""


def seconds_to_send(hosts: Any) -> float:
    receiver = subprocess.Popen(
        [*hosts.enter(1), sys.executable, "-c", RECEIVE % hosts.address(1)], stdout=subprocess.PIPE
    )
    assert receiver.stdout is not None
    receiver.stdout.readline()
    send = SEND % (hosts.address(1), SENT)
    found = subprocess.run([*hosts.enter(0), sys.executable, "-c", send], check=True, capture_output=True, text=True)
    receiver.wait(10)
    receiver.stdout.close()
    return float(found.stdout)


@needs_namespaces
def test_the_link_has_its_rate_and_goes_with_the_block() -> None:
    with namespaces.two_hosts("unshaped") as hosts:
        free_s = seconds_to_send(hosts)
    with ExitStack() as stack:
        stack.enter_context(pytest.raises(KeyboardInterrupt))
        hosts = stack.enter_context(namespaces.two_hosts("20mbit"))
        shaped_s = seconds_to_send(hosts)
        raise KeyboardInterrupt
    assert 0.9 * SENT * 8 / 20e6 - 0.1 < shaped_s < 30, "all but the first bucket comes at the rate"
    assert free_s < shaped_s / 2
    assert all(not Path(f"/proc/{holder}").exists() for holder in hosts.holders)
    links = subprocess.run(["ip", "-o", "link"], check=True, capture_output=True, text=True).stdout
    assert LINK not in links


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
    found = {row["arm"]: row for row in rows([launch, launch, launch])}
    assert found["naive, static"]["ratio"]["ratio"] == pytest.approx(2.0, rel=0.01)
    assert found["naive, static"]["verdict"] == "slower"
    assert found["naive, static"]["exposed_share"] == pytest.approx(0.05)
    assert found["ddp, static"]["ratio"] is None
    assert report("1gbit", list(found.values())).row_count == 3


@needs_namespaces
@pytest.mark.slow
def test_ranks_on_two_hosts_train_and_a_launch_that_fails_says_why(tmp_path: Path, capsys: Any) -> None:
    assert main(["rate=50mbit", "steps=6", f"outputs={tmp_path}", "--launches", "1"]) == 0
    said = capsys.readouterr().out
    assert "bucketed, balanced" in said
    assert read_status(tmp_path / "two-hosts-50mbit" / "naive-balanced-0")["state"] == "done"
    assert not list((tmp_path / "two-hosts-50mbit").glob(".*")), "no file is left beside the runs"
    config = parse({"world_size": 2, "executor": {"kind": "distributed"}, "outputs": str(tmp_path), "steps": 5})
    absent = config.data.model_copy(update={"path": "/none.tsv"})
    runs = [run.model_copy(update={"data": absent}) for run in arms(config, "unshaped", 0)]
    begin = time.monotonic()
    with namespaces.two_hosts("unshaped") as hosts, pytest.raises(RunError, match=r"/none\.tsv"):
        two_hosts.run_on(hosts, runs)
    assert time.monotonic() - begin < 90
