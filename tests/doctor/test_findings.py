"""The judgement of each check: measured values in, a finding out, and a remedy wherever something is not right."""

from collections.abc import Sequence
from dataclasses import replace

import pytest

from ddpsched.doctor.certificate import Verdict
from ddpsched.doctor.certificate import judge as judge_certificate
from ddpsched.doctor.clocks import Now, judge_offsets, judge_wall
from ddpsched.doctor.devices import GIB, Machine, Torch, judge_memory, judge_nccl, judge_processors, judge_torch
from ddpsched.doctor.disk import Disk
from ddpsched.doctor.disk import judge as judge_disk
from ddpsched.doctor.finding import Finding, failed
from ddpsched.doctor.launches import Launch, judge_failure, judge_restart, told
from ddpsched.doctor.pair import Rates
from ddpsched.doctor.ports import Ports
from ddpsched.doctor.ports import judge as judge_ports
from ddpsched.doctor.ranks import Alone, Met, _cost, _objected, judge_killed, judge_met
from ddpsched.doctor.slowdown import judge as judge_pair
from ddpsched.doctor.versions import judge as judge_versions
from ddpsched.local_ranks import Outcome


def assert_says(finding: Finding, state: str, says: str, remedy: str = "") -> None:
    assert finding.state == state, finding
    assert says in finding.says
    assert remedy in (finding.remedy or "")


def test_a_finding_has_a_remedy_unless_it_is_ok() -> None:
    assert Finding("a", "ok", "b").line == "ok    a                b"
    assert failed([Finding("a", "fail", "b", "c"), Finding("d", "warn", "b", "c")]) == ["a"]
    for state, remedy in (("fail", None), ("warn", None), ("ok", "do this")):
        with pytest.raises(AssertionError):
            Finding("a", state, "b", remedy)  # type: ignore[arg-type]
    assert Finding("a", "ok", "b", numbers={"x": float("nan")}).as_dict()["numbers"] == {"x": None}


VERSIONS = {"torch": "2.13.0+cpu", "tomli-w": "1.2", "numpy": "2.4.6"}
REQUIRED = ["torch>=2.6", "tomli_w>=1.0", 'colorama>=1; sys_platform == "win32"']


def test_versions() -> None:
    assert_says(judge_versions("3.11.7", ">=3.11", REQUIRED, VERSIONS), "ok", "Python 3.11.7, torch 2.13.0+cpu, numpy")
    old = judge_versions("3.10.1", ">=3.11", REQUIRED, VERSIONS)
    assert_says(old, "fail", "Python 3.10.1, required >=3.11", "virtual environment")
    old = judge_versions("3.12.0", ">=3.11", REQUIRED, {**VERSIONS, "torch": "2.5.1"})
    assert_says(old, "fail", "torch 2.5.1, required >=2.6", 'pip install "torch>=2.6"')
    lost = judge_versions("3.12.0", ">=3.11", ["pulp[highs]<5,>=3.3.2"], VERSIONS)
    assert_says(lost, "fail", "pulp is missing, required <5,>=3.3.2", 'pip install "pulp<5,>=3.3.2"')


MACHINE = Machine(processors=4, limit=None, free_bytes=8 * GIB, omp_threads=None)


def test_processors() -> None:
    assert_says(judge_processors(MACHINE), "ok", "4 processor(s) usable")
    assert_says(judge_processors(replace(MACHINE, processors=1)), "warn", "1 processor(s)", "executor.kind=virtual")
    limited = judge_processors(replace(MACHINE, limit=1.5))
    assert_says(limited, "warn", "container's limit allows 1.5: fewer than two", "--cpus=2")
    assert_says(judge_processors(replace(MACHINE, omp_threads="2")), "ok", "4 processor(s)")
    assert_says(judge_processors(replace(MACHINE, omp_threads="3")), "warn", "OMP_NUM_THREADS = 3", "unset OMP_NUM")


def test_memory() -> None:
    assert_says(judge_memory(MACHINE), "ok", "8.0 GiB free")
    assert_says(
        judge_memory(replace(MACHINE, free_bytes=GIB)), "warn", "1.0 GiB free: two ranks need 2 GiB", "end other"
    )
    assert_says(judge_memory(replace(MACHINE, free_bytes=None)), "skip", "does not show")


def test_gpus() -> None:
    (torch, gpus) = judge_torch(Torch(1, (), nccl=False))
    assert_says(torch, "ok", "1 thread(s) a rank")
    assert_says(gpus, "skip", "torch sees none")
    one = ("H100", 70 * GIB, 80 * GIB)
    assert_says(judge_torch(Torch(1, (one,), nccl=True))[-1], "ok", "H100: 70.0 of 80.0 GiB free")
    busy = judge_torch(Torch(1, (one, ("H100", 9 * GIB, 80 * GIB)), nccl=True))[-1]
    assert_says(busy, "warn", "9.0 of 80.0 GiB free: less than half", "GPU 1")
    assert_says(judge_torch(Torch(1, (one,), nccl=False))[-1], "fail", "no NCCL", "CUDA build")
    cudnn = judge_torch(Torch(1, (one,), nccl=True, cudnn=True))[-1]
    assert_says(cudnn, "warn", "a plan for each new shape", "enable_cudnn_sdp(False)")
    assert_says(judge_nccl([Outcome(0, "answered", 3.0), Outcome(1, "answered", 3.0)]), "ok", "2 GPU(s)")
    wrong = judge_nccl([Outcome(0, "answered", 3.0), Outcome(1, "answered", 2.0)])
    assert_says(wrong, "fail", "[3.0, 2.0], expected 3.0", "NCCL_P2P_DISABLE")
    raised = judge_nccl([Outcome(0, "raised", says="raised:\nRuntimeError: NCCL error")])
    assert_says(raised, "fail", "RuntimeError: NCCL error", "NCCL_DEBUG=INFO")


def test_ports() -> None:
    assert_says(judge_ports(Ports(20_001)), "ok", "port 20001")
    assert_says(judge_ports(Ports(20_001, wanted="29500")), "ok", "MASTER_PORT = 29500 is free")
    taken = judge_ports(Ports(20_001, wanted="29500", taken="Address already in use"))
    assert_says(taken, "fail", "MASTER_PORT = 29500: Address already in use", "export MASTER_PORT=20001")
    assert_says(judge_ports(Ports(None, "Connection refused")), "fail", "Connection refused", "firewall")


def test_disk(tmp_path: object) -> None:
    good = Disk(tmp_path, 0, 0.05, 9 * GIB)  # type: ignore[arg-type]
    assert_says(judge_disk(good), "ok", "in 50 ms, 9.0 GiB free, locks work")
    assert_says(judge_disk(replace(good, error=28)), "fail", "No space left", "free some space there, or give another")
    assert_says(judge_disk(replace(good, error=30)), "fail", "Read-only file system", "give another folder: outputs=")
    assert_says(judge_disk(replace(good, locked=None)), "warn", "no locks", "local disk")
    assert_says(judge_disk(replace(good, locked=False)), "warn", "does not keep a second process out", "local disk")
    assert_says(judge_disk(replace(good, free_bytes=1000)), "warn", "less than 1 GiB", "free some space")
    assert_says(judge_disk(replace(good, written_s=2.0)), "warn", "longer than 1 s", "faster disk")


def rates(pair: float, same: float = 1.01, share: float = 1.0) -> Rates:
    return Rates([2.0, 2.0], [2.0 * same] * 2, ([2 * pair] * 2, [2 * pair] * 2), [pair, pair], share)


def test_two_processes() -> None:
    assert_says(
        judge_pair(rates(1.0)), "ok", "1.00 times as fast as one alone (one alone twice: 1.010, 1.010 to 1.010)"
    )
    assert_says(judge_pair(rates(0.6)), "warn", "they slow each other", "executor.kind=virtual")
    assert_says(judge_pair(rates(0.9, same=1.2)), "warn", "less than 20% cannot be seen", "benchmarks.pair")
    assert_says(judge_pair(rates(0.6, share=0.7)), "warn", "one of two got 70% of a processor", "end other programs")


MET = Met([3, 30], [[_cost(0)] * 4, [_cost(1)] * 4], "", _objected(), 0.0002, [(0.0, 0.0), (1e-6, 5e-5)])


def test_two_ranks() -> None:
    assert "rank 1: loss or gradient is NaN" in _objected()
    assert_says(judge_met([MET, MET]), "ok", "a vote takes 0.20 ms")
    assert_says(judge_met([MET, replace(MET, vote_s=0.02)]), "warn", "20.00 ms, more than 10 ms", "fewer ranks")
    wrong = {
        "sums over ranks are [3, 31]": replace(MET, sums=[3, 31]),
        "offers are": replace(MET, offers=[[0] * 4, [_cost(1)] * 4]),
        "votes of ranks that agree say other": replace(MET, accord="other"),
        "votes with an objection of rank 1 say go on": replace(MET, objection=""),
    }
    for says, met in wrong.items():
        assert_says(judge_met([MET, met]), "fail", f"rank 1: {says}", "127.0.0.1")


def killed(alone: Alone | None, waited: bool = True, victim: int = 1) -> Sequence[Outcome]:
    """Return the outcomes of two ranks, of which one was killed; the other posts ``alone``."""
    other = Outcome(1 - victim, "raised", says="raised:\nRuntimeError: gloo", waited=waited)
    other.posts += [] if alone is None else [alone]
    dead = Outcome(victim, "died", says="died without an answer (killed by SIGKILL)")
    return sorted([other, dead], key=lambda each: each.rank)


def test_a_killed_rank() -> None:
    good = judge_killed(killed(Alone(0.04, "closed")))
    assert_says(good, "ok", "in 40 ms, and named: rank 1 died without an answer (killed by SIGKILL)")
    assert_says(judge_killed(killed(None)), "fail", "waited more than 5 s", "executor.timeout_s")
    assert_says(judge_killed(killed(Alone(6.0, "timed out"))), "fail", "waited more than 5 s", "executor.timeout_s")
    assert_says(judge_killed(killed(Alone(0.04, ""))), "fail", "succeeded without the rank")
    assert_says(judge_killed(killed(Alone(0.04, "x"), victim=0)), "fail", "rank 1 was killed, and rank(s) 0 named")
    assert_says(judge_killed(killed(Alone(0.04, "x"), waited=False)), "fail", "and rank(s) 0, 1 named")


def test_a_certificate() -> None:
    good = Verdict(True, "holds: all 7 checks", (), 3e-16)
    assert_says(judge_certificate(good), "ok", "holds: all 7 checks; relative error of the gradient 3e-16")
    bad = Verdict(False, "does not hold: 1 of 7 checks failed (gradient)", ("gradient: relative error 1.3",), 1.3)
    assert_says(judge_certificate(bad), "fail", "(gradient): gradient: relative error 1.3", "ddpsched certify")


def test_restarts() -> None:
    good = Launch(0, 12.0, (2, 2), "done")
    assert_says(judge_restart(good), "ok", "exit code 0, 12 s in all")
    never = judge_restart(replace(good, attempts=(0, 0), code=1, printed="RuntimeError: no route"))
    assert_says(
        never, "fail", "only 0 of 2 ranks under torchrun formed a group (RuntimeError: no route)", "GLOO_SOCKET"
    )
    assert_says(judge_restart(replace(good, attempts=(2, 0), code=1)), "fail", "0 of 2 ranks formed", "SHARE_RDZV")
    ended = judge_restart(replace(good, state="failed", reason="no space", code=1))
    assert_says(ended, "fail", "is failed: no space", "what the reason names")
    assert_says(judge_restart(replace(good, code=134)), "fail", "exit code 134, expected 0", "status.json")


def test_exit_codes() -> None:
    good = Launch(1, 5.0, (2,))
    assert_says(judge_failure(good), "ok", "1 where rank 1 raised, 5 s in all")
    assert_says(judge_failure(replace(good, code=0)), "fail", "exit code 0, expected another", "status.json")
    assert_says(judge_failure(replace(good, attempts=(1,))), "fail", "only 1 of 2 ranks", "GLOO_SOCKET_IFNAME")
    printed = "x\nValueError: first\n[rank1]: ddpsched.errors.RankFailure: last\n  time : 9\ntorch.ChildFailedError: \n"
    assert told(printed) == "ddpsched.errors.RankFailure: last"


def test_clocks() -> None:
    assert_says(judge_offsets([(0.0, 0.0), (2e-6, 3e-5)]), "ok", "+2 us from rank 0's, known to 30 us")
    assert_says(judge_offsets([(0.0, 0.0), (3e-6, 3e-5), (0.5, 3e-5)]), "warn", "+500000 us", "one container")
    assert_says(judge_offsets([(0.0, 0.0), (2e-6, 3e-3)]), "warn", "known to 3000 us", "quiet")
    begin = Now(1e9, 50.0)
    assert_says(judge_wall(begin, Now(1e9 + 40.01, 90.0)), "ok", "went +0.010 s beyond the 40 s")
    for jump in (0.2, -3600.0):
        assert_says(judge_wall(begin, Now(1e9 + 40 + jump, 90.0)), "warn", f"{jump:+.3f} s", "chrony or ntpd")
