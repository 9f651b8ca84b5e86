"""The gradient of two ranks that train a tiny model, certified as ``ddpsched certify`` does it.

The ranks' gradients travel as bytes and are judged in a rank's process too: the process of the checks has no torch.
"""

import pickle
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ddpsched.doctor.finding import Finding, Setting, one_line, why_failed
from ddpsched.local_ranks import Outcome, answers, run_ranks

if TYPE_CHECKING:
    from ddpsched.config import RunConfig

NAME, RANKS, LIMIT_S = "gradient", 2, 20.0
REMEDY = "ddpsched certify --policy balanced --world-size 2 shows all checks; install the versions of constraints.txt"


@dataclass(frozen=True)
class Verdict:
    """The result of a certificate: its verdict, and the checks that fail, with their causes."""

    holds: bool
    verdict: str
    failed: tuple[str, ...]
    error: float


def check(setting: Setting) -> list[Finding]:
    """Return the finding on the gradient."""
    return [certify(setting)]


def certify(setting: Setting, fault: str | None = None) -> Finding:
    """Return the finding on the gradient. ``fault``: planted, as by ``ddpsched certify --plant``."""
    outcomes = run_ranks(_train, RANKS, fault, setting.scratch, timeout_s=LIMIT_S, limit_s=LIMIT_S)
    if any(each.ended != "answered" for each in outcomes):
        return Finding(NAME, "fail", why_failed(outcomes), REMEDY)
    (verdict,) = answers(run_ranks(_judge, 1, outcomes, limit_s=LIMIT_S))
    return judge(verdict)


def judge(verdict: Verdict) -> Finding:
    """Return the finding on a certificate."""
    what = f"{RANKS} ranks, a tiny model, policy balanced"
    if not verdict.holds:
        return Finding(NAME, "fail", one_line(f"{what}: {verdict.verdict}: {'; '.join(verdict.failed)}", 480), REMEDY)
    says = f"{what}: {verdict.verdict}; relative error of the gradient {verdict.error:.1g}"
    return Finding(NAME, "ok", says, numbers={"relative_error": verdict.error})


def _config() -> "RunConfig":
    from ddpsched.certify.certify_run import certified
    from ddpsched.certify.command import SMALL
    from ddpsched.config import parse

    values: dict[str, Any] = {**SMALL, "data": {"size": 60}, "world_size": RANKS, "policy": {"kind": "balanced"}}
    return certified(parse(values, source="doctor"))


def _train(fault: str | None, folder: Path) -> bytes:
    """Run the steps on one rank; return what it reports."""
    from ddpsched.certify.certify_run import work
    from ddpsched.certify.faults import named_fault

    config, reports = _config(), list[Any]()
    samples = config.load_samples()
    work(config, named_fault(fault, config, len(samples.train)), folder, samples, reports.append)
    return pickle.dumps(reports)


def _judge(outcomes: Sequence[Outcome]) -> Verdict:
    """Judge what ranks reported, in a process with torch."""
    from ddpsched.certify.certify_run import judge as judge_run

    config = _config()
    reported = [replace(each, posts=[*each.posts, *pickle.loads(each.value)], value=None) for each in outcomes]
    certificate = judge_run(config, config.load_samples(), reported)
    failed = tuple(
        f"{each.name}: {each.says}{f' (likely cause: {each.cause})' * bool(each.cause)}"
        for each in certificate.checks
        if not each.holds
    )
    error = max((each.numbers.get("relative_error", 0.0) for each in certificate.checks), default=0.0)
    return Verdict(certificate.holds, certificate.verdict, failed, error)
