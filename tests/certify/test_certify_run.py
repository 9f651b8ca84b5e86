"""Certificates of runs: correct runs hold, and each planted fault is results by the right check, with its cause."""

import json
import os
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from installed import HAS_FSDP
from typer.testing import CliRunner

from ddpsched.certify.certificate import Certificate, Check
from ddpsched.certify.certify_run import Planned, Ran, Weights, certified, certify_run, judge, work
from ddpsched.certify.command import SMALL, Request, certify
from ddpsched.certify.faults import FAULTS, Fault
from ddpsched.cli import app
from ddpsched.config import RunConfig, parse
from ddpsched.errors import ConfigError
from ddpsched.local_ranks import Outcome, free_port, post, run_ranks
from ddpsched.step_plan import Microbatch
from ddpsched.training.learner import Learner
from ddpsched.training.optimise import Optimiser
from ddpsched.training.rank_step import RankStep

Case = tuple[RunConfig, Fault | None]
POLICIES: dict[str, dict[str, Any]] = {
    "static": {"kind": "static"},
    "minmax": {"kind": "minmax", "prefetch": 13},
    "balanced": {"kind": "balanced"},
    "balanced, M = 4": {"kind": "balanced", "max_microbatches": 4},
    "packed": {"kind": "packed"},
    "token_budget": {"kind": "token_budget", "max_tokens_for_batch": 128, "batches_per_optimizer_step": 2},
    "bins": {"kind": "bins", "median_batch": 5},
    "pool": {"kind": "pool", "max_tokens_for_batch": 128},
}


def run_of(arm: str, world_size: int = 2, sync: str = "ddp", **values: Any) -> RunConfig:
    cost = {"kind": "padded_tokens", "alpha": 10.0}  # so that not every sample gets its own micro-batch
    return parse(
        {
            **SMALL,
            "world_size": world_size,
            "data": {"size": 70},
            "policy": POLICIES[arm],
            "cost": cost,
            "sync": {"kind": sync},
            **values,
        }
    )


def work_through(cases: list[Case], folders: list[Path], ports: list[int]) -> None:
    """One case after another on the same ranks."""
    for number, ((config, fault), folder, port) in enumerate(zip(cases, folders, ports, strict=True)):
        os.environ["MASTER_PORT"] = str(port)  # a rendezvous is not used twice
        post(("case", number))
        work(certified(config), fault, folder)


def outcomes_of(cases: list[Case], tmp_path: Path) -> list[list[Outcome]]:
    """Return each case's outcomes, from ranks that are started once; the last case may end them."""
    folders = [tmp_path / str(number) for number in range(len(cases))]
    for folder in folders:
        folder.mkdir()
    world_size = cases[0][0].world_size
    timeout_s = cases[-1][0].executor.timeout_s
    ranks = run_ranks(work_through, world_size, cases, folders, [free_port() for _ in cases], timeout_s=timeout_s)
    results = []
    for number in range(len(cases)):
        last = number == len(cases) - 1
        assert all(("case", number) in rank.posts for rank in ranks), [rank.says for rank in ranks]
        results.append(
            [
                replace(rank if last else Outcome(rank.rank, "answered"), posts=posts_of(rank.posts, number))
                for rank in ranks
            ]
        )
    return results


def judged(config: RunConfig, outcomes: list[Outcome]) -> Certificate:
    return judge(config, certified(config).load_samples(), outcomes)


def certificates(cases: list[Case], tmp_path: Path) -> list[Certificate]:
    """Return the certificates that ``certify_run`` would give."""
    results = outcomes_of(cases, tmp_path)
    return [judged(config, outcomes) for (config, _), outcomes in zip(cases, results, strict=True)]


def posts_of(posts: list[Any], number: int) -> list[Any]:
    begin = posts.index(("case", number)) + 1
    end = posts.index(("case", number + 1)) if ("case", number + 1) in posts else len(posts)
    return posts[begin:end]


def checks_of(certificate: Certificate) -> dict[str, Check]:
    return {check.name: check for check in certificate.checks}


def failed(certificate: Certificate) -> set[str]:
    return {check.name for check in certificate.checks if not check.holds}


# every check but the gradient's can fail: what rank 1 reports instead, and words of the check
LIES: dict[str, tuple[Callable[[Any], Any], str]] = {
    "same gradient on all ranks": (
        lambda sent: (
            replace(sent, gradient=replace(sent.gradient, digest="other", sketch=-sent.gradient.sketch))
            if isinstance(sent, Ran)
            else sent
        ),
        "differs from rank 0's by 2 of its size",
    ),
    "same weights": (
        lambda sent: replace(sent, digest="other") if isinstance(sent, Weights) else sent,
        "rank 1 began with other weights than one process",
    ),
    "resumption": (
        lambda sent: (
            replace(sent, resumed=[(at, [sent.whole[0], *rest[1:]]) for at, rest in sent.resumed])
            if isinstance(sent, Planned)
            else sent
        ),
        "rank 1: resumed after step",
    ),
    "one plan": (
        lambda sent: replace(sent, digests=[[5, *sent.digests[0][1:]]]) if isinstance(sent, Planned) else sent,
        "step 0: rank 0 and rank 1 hold different plans",
    ),
    "every sample once": (
        lambda sent: (
            replace(sent, streams=[[[sent.streams[0][0][0][1:], *sent.streams[0][0][1:]], *sent.streams[0][1:]]])
            if isinstance(sent, Planned)
            else sent
        ),
        "1 never ran",
    ),
    "same collectives": (
        lambda sent: (*sent[:2], sent[2] + 1) if isinstance(sent, tuple) and sent[1] == "step 0" else sent,
        "step 0: rank 0 did ",
    ),
}


def test_every_policy_on_two_ranks_and_every_check_can_fail(tmp_path: Path) -> None:
    cases: list[Case] = [(run_of(policy), None) for policy in POLICIES]
    cases.append((run_of("balanced", sync="naive"), None))
    results = outcomes_of(cases, tmp_path)
    for (config, _), outcomes in zip(cases, results, strict=True):
        certificate = judged(config, outcomes)
        assert certificate.holds, certificate.text()
        assert set(checks_of(certificate)) == {"gradient", *LIES}
        assert "<= 1e-12" in checks_of(certificate)["gradient"].says
        assert config.policy.kind in certificate.subject
    for name, (lie, words) in LIES.items():
        lying = replace(results[0][1], posts=[lie(sent) for sent in results[0][1].posts])
        certificate = judged(cases[0][0], [results[0][0], lying])
        assert failed(certificate) == {name}, certificate.text()
        assert words in checks_of(certificate)[name].says


@pytest.mark.parametrize("world_size", [1, 4])
def test_one_rank_and_four(tmp_path: Path, world_size: int) -> None:
    (certificate,) = certificates([(run_of("balanced, M = 4", world_size), None)], tmp_path)
    assert certificate.holds, certificate.text()


@pytest.mark.slow
@pytest.mark.parametrize("world_size", [1, 2, 4])
def test_every_policy_and_synchroniser(tmp_path: Path, world_size: int) -> None:
    syncs = ("naive", "overlap", "bucketed", "ddp", *["fsdp"] * HAS_FSDP)
    cases: list[Case] = [(run_of(policy, world_size, sync), None) for policy in POLICIES for sync in syncs]
    for certificate in certificates(cases, tmp_path):
        assert certificate.holds, certificate.text()


# which checks a fault fails, and the words that must stand in a check
FOUND: dict[Fault, tuple[set[str], list[tuple[str, str]]]] = {
    "no_scale": (
        {"gradient"},
        [("gradient", "every rank takes the mean over its own samples (no scale G*b_r/B)")],
    ),
    "repeated_id": ({"every sample once"}, [("every sample once", "1 ran more than once")]),
    "missing_id": ({"every sample once"}, [("every sample once", "1 never ran")]),
    "stale_plan": (
        {"gradient", "same gradient on all ranks", "every sample once", "one plan"},
        [
            ("one plan", "rank 1 holds a stale plan: that of step 0"),
            ("gradient", "the ranks refused step 1 before the optimizer"),
            ("every sample once", "rank 1 runs in step 1 what it had run in step 0"),
        ],
    ),
    "missing_collective": (
        {"gradient", "same gradient on all ranks", "same collectives"},
        [
            ("same collectives", "rank 1 is short of one; rank 0 waited in vain"),
            ("gradient", "waited in vain in a collective"),
        ],
    ),
}


def assert_found(fault: Fault, certificate: Certificate) -> None:
    fails, words = FOUND[fault]
    assert failed(certificate) == fails, certificate.text()
    for name, expected in words:
        check = checks_of(certificate)[name]
        assert expected in f"{check.says} {check.cause}", certificate.text()


def test_planted_faults_are_found_and_blamed(tmp_path: Path) -> None:
    # three steps, so that the middle one carries the fault; a missing collective comes last, as no rank survives it
    config = run_of("balanced", data={"size": 30}, executor={"kind": "distributed", "timeout_s": 5.0})
    cases: list[Case] = [(config, fault) for fault in FAULTS]
    assert FAULTS[-1] == "missing_collective"
    for (_, fault), certificate in zip(cases, certificates(cases, tmp_path), strict=True):
        assert fault is not None
        assert_found(fault, certificate)


@cache
def virtual(policy: str, plant: str | None = None) -> Certificate:
    words = ("executor.kind=virtual", "data.size=70", "world_size=3")
    (certificate,) = certify(Request(words=words, policy=policy, plant=plant))
    return certificate


def test_all_ranks_in_one_process() -> None:
    assert virtual("balanced").holds, virtual("balanced").text()
    assert "one process" in virtual("balanced").facts[-1]
    results = virtual("minmax", "missing_id")
    assert failed(results) == {"every sample once"}
    assert results.facts[0] == "planted on purpose: missing_id"


def test_what_was_changed_is_told(tmp_path: Path) -> None:
    config = run_of("static", 3, executor={"kind": "virtual"}, outputs=str(tmp_path / "outputs"), steps=5, epochs=None)
    certificate = certify_run(config)
    assert certificate.holds, certificate.text()
    assert "dropout (up to 0.2) was switched off: with it on, a gradient is a random draw" in certificate.facts
    assert not (tmp_path / "outputs").exists()
    float32 = config.model_copy(update={"train": config.train.model_copy(update={"precision": "float32"})})
    assert "<= 1e-06" in checks_of(certify_run(float32))["gradient"].says


def test_a_sample_that_runs_in_place_of_another_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """The plan is right, what is run is not: micro-batches do not explain the gradient, single samples do."""
    run, swapped = Learner.run, []

    def other(self: Learner, microbatches: list[Microbatch], *rest: Any, **more: Any) -> RankStep:
        (micro,) = microbatches
        swapped.append((micro.ids[0], micro.ids[1]))
        return run(self, [Microbatch(np.append(micro.ids[1], micro.ids[1:]))], *rest, **more)

    monkeypatch.setattr(Learner, "run", other)
    certificate = certify_run(run_of("static", 1, executor={"kind": "virtual"}, data={"size": 39}))
    assert failed(certificate) == {"gradient"}
    check = checks_of(certificate)["gradient"]
    assert any(
        f"sample {lost}: 0, sample {twice}: 2 (all others 1)" in (check.cause or "") for lost, twice in swapped
    ), check.cause
    assert check.numbers["relative_error"] > 0.01


def in_one_process(**train: Any) -> Certificate:
    values: dict[str, Any] = {"executor": {"kind": "virtual"}, "data": {"size": 39}, "train": train}
    return certify_run(run_of("static", 1, **values))


def test_a_gradient_that_is_not_cleared_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Optimiser, "clear", lambda self: None)
    monkeypatch.setattr(Optimiser, "_allocate", lambda self: None)
    certificate = in_one_process()
    assert failed(certificate) == {"gradient"}
    assert "the gradient of the step that ran before is still in it" in (checks_of(certificate)["gradient"].cause or "")


def test_clipping_is_certified_as_configured(monkeypatch: pytest.MonkeyPatch) -> None:
    certificate = in_one_process(max_grad_norm=1e-3, weight_decay=0.5)
    assert certificate.holds, certificate.text()
    assert any("clipped to 0.001" in fact for fact in certificate.facts)
    monkeypatch.setattr(Optimiser, "gradient_norm", lambda self: torch.tensor(1.0))
    certificate = in_one_process(max_grad_norm=1e-3)
    assert failed(certificate) == {"gradient"}
    assert "too large: clipping" in (checks_of(certificate)["gradient"].cause or "")


def test_a_check_that_cannot_be_made_does_not_hold() -> None:
    policy = {"kind": "peer", "peer": "karmarkar_karp"}  # reimplemented here, needs no package
    certificate = certify_run(run_of("static", 2, executor={"kind": "virtual"}, policy=policy))
    assert failed(certificate) == {"resumption"}
    assert "could not be checked" in checks_of(certificate)["resumption"].says


@pytest.mark.parametrize(
    ("request_", "words"),
    [
        (Request(words=()), "give exactly one of CONFIG, --policy, --trainer, --loader; got none"),
        (Request(words=("a.toml",), policy="static"), "got CONFIG and --policy"),
        (Request(words=("seed=1",), loader="a:b"), "belong to CONFIG and --policy"),
        (Request(words=(), loader="a:b", plant="no_scale"), "--plant belongs to"),
        (Request(words=(), policy="static", loss="mean"), "--loss belongs to --trainer"),
        (Request(words=("a.toml",), world_size=2), "write world_size=2"),
        (Request(words=(), trainer="lightning"), "give 'transformers', or module:function"),
        (Request(words=("executor.kind=simulated",), policy="static"), "computes no gradient"),
        (Request(words=(), policy="static", plant="bad_luck"), "there are: no_scale, repeated_id"),
        (Request(words=("executor.kind=virtual",), policy="static", plant="stale_plan"), "makes ranks differ"),
        (Request(words=("data.size=13",), policy="static", plant="missing_id"), "needs an earlier step"),
        (Request(words=(), policy="fair"), "'static', 'minmax', 'balanced', 'packed'"),
    ],
)
def test_options_that_cannot_be_met(request_: Request, words: str) -> None:
    with pytest.raises(ConfigError, match=words.replace("(", r"\(")):
        certify(request_)


def test_exit_codes() -> None:
    def run(*words: str) -> tuple[int, str]:
        result = CliRunner().invoke(app, ["certify", *words])
        return result.exit_code, result.output

    small = ("--policy", "static", "executor.kind=virtual", "data.size=40", "--world-size", "2")
    code, text = run(*small)
    assert (code, "verdict: holds" in text) == (0, True)
    code, text = run(*small, "--plant", "repeated_id", "--json")
    answer = json.loads(text)
    assert (code, answer["holds"]) == (1, False)
    assert [check["name"] for check in answer["checks"] if not check["holds"]] == ["every sample once"]
    assert run("--policy", "static", "--loader", "a:b")[0] == 1
