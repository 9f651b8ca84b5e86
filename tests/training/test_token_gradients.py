"""A language model's gradient under unequal prompts: the mean over all ranks' label tokens, or over their samples.

``pytest -rP tests/training/test_token_gradients.py`` prints the differences.
"""

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from gradients import kept_gradients
from installed import HAS_FSDP
from prompted import write_prompted
from ranks import free_port, run_ranks

from ddpsched.config import RunConfig, parse
from ddpsched.exchange import LocalExchange
from ddpsched.planning.planner import plan_steps
from ddpsched.run_loop import run
from ddpsched.step_plan import Microbatch
from ddpsched.training.learner import Learner
from ddpsched.training.model import build_model
from ddpsched.training.rank_step import RankStep

STEPS = 3
TARGETS = ("token_mean", "sample_mean")
POLICIES: dict[str, dict[str, Any]] = {
    "static": {"kind": "static"},
    "minmax": {"kind": "minmax", "prefetch": 13},
    "packed": {"kind": "packed"},
}
FILLING: dict[str, dict[str, Any]] = {  # the two budgets bound prompt and text
    "token_budget": {"kind": "token_budget", "max_tokens_for_batch": [190, 190], "batches_per_optimizer_step": 2},
    "bins": {"kind": "bins", "median_batch": 5, "per_rank_bins": True},
    "pool": {"kind": "pool", "max_tokens_for_batch": 260, "batches_per_optimizer_step": 2},
    "pool-packed": {"kind": "pool", "max_tokens_for_batch": 260, "sequence_packing": True},
}
TOLERANCE = {"float32": 1e-6, "float64": 1e-12}


def config_of(
    outputs: Path,
    policy: str,
    executor: str,
    world_size: int,
    precision: str,
    target: str = "token_mean",
    sync: str = "ddp",
    **data: Any,
) -> RunConfig:
    """Dropout off, no clipping, and a rate so small that all steps see the first weights."""
    return parse(
        {
            "name": f"{policy}-{executor}-{world_size}",
            "outputs": str(outputs),
            "steps": STEPS,
            "global_batch": 13,
            "world_size": world_size,
            "data": write_prompted(outputs / "data") | data,
            "model": {"task": "causal_lm", "dropout": 0.0},
            "policy": (POLICIES | FILLING)[policy],
            "sync": {"kind": sync},
            "executor": {"kind": executor},
            "train": {
                "precision": precision, "learning_rate": 1e-30, "max_grad_norm": 1e9, "target": target,
                "save_model": False,
            },
        }
    )  # fmt: skip


@contextmanager
def per_rank_means(config: RunConfig) -> Iterator[None]:
    """Every rank divides by what it counts itself, and ranks are averaged: a mean of means."""
    train, honest = config.load_samples().train, Learner.run

    def own_mean(
        self: Learner, micro: Sequence[Microbatch], scale: Callable[[], float], *rest: Any, **more: Any
    ) -> RankStep:
        ids = np.concatenate([each.ids for each in micro])
        own = len(ids) if config.target == "sample_mean" else int(train.num_targets(ids).sum())
        return honest(self, micro, lambda: 1 / (config.world_size * own), *rest, **more)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Learner, "run", own_mean)
        yield


def gradients(config: RunConfig, own_means: bool = False) -> list[np.ndarray]:
    """Run and keep the flat gradient of every step."""
    with kept_gradients() as kept:
        if own_means:
            with per_rank_means(config):
                run(config, overwrite=True)
        else:
            run(config, overwrite=True)
    return kept


def reference(config: RunConfig) -> list[np.ndarray]:
    """One process, the whole global batch at once, torch's own mean loss; prompts are recognised by their [SEP]."""
    samples = config.load_samples()
    torch.manual_seed(config.seed)
    model = build_model(config.model, 2, samples.vocab_size, samples.pad_id)
    model.to(torch.float64 if config.train.precision == "float64" else torch.float32)
    found = []
    for plan in plan_steps(config.plan_spec(), samples.train, LocalExchange(config.world_size)):
        rows = [torch.from_numpy(samples.train.row(int(i)).astype(np.int64)) for i in plan.ids]
        tokens = torch.nn.utils.rnn.pad_sequence(rows, batch_first=True)
        separator = 3
        firsts = [1 + int((row == separator).nonzero()[0]) for row in rows]  # of each text
        learnt = torch.zeros_like(tokens, dtype=torch.bool)
        for i, (row, first) in enumerate(zip(rows, firsts, strict=True)):
            learnt[i, first : len(row)] = True
        # padding lies behind what looks to the left
        logits = model(input_ids=tokens, attention_mask=torch.ones_like(tokens)).logits
        if config.target == "token_mean":
            loss = F.cross_entropy(logits[:, :-1][learnt[:, 1:]], tokens[learnt])
        else:
            means = [
                F.cross_entropy(logits[i, first - 1 : len(row) - 1], row[first:])
                for i, (row, first) in enumerate(zip(rows, firsts, strict=True))
            ]
            loss = torch.stack(means).mean()
        model.zero_grad()
        loss.backward()
        found.append(torch.cat([p.grad.reshape(-1) for p in model.parameters()]).numpy())
    return found


def distance(found: list[np.ndarray], expected: list[np.ndarray]) -> float:
    """Largest relative L2 difference over the steps."""
    assert len(found) == len(expected) == STEPS
    return max(float(np.linalg.norm(f - e) / np.linalg.norm(e)) for f, e in zip(found, expected, strict=True))


@pytest.mark.parametrize("precision", [pytest.param("float32", marks=pytest.mark.slow), "float64"])
@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("policy", POLICIES)
def test_virtual_ranks(tmp_path: Path, policy: str, target: str, precision: str) -> None:
    config = config_of(tmp_path, policy, "virtual", 4, precision, target)
    expected = reference(config)
    error, own = distance(gradients(config), expected), distance(gradients(config, own_means=True), expected)
    print(f"{policy}, 4 virtual ranks, {target}, {precision}: {error:.1e} (mean of ranks' means {own:.2f})")
    assert error <= TOLERANCE[precision]
    assert own > 1e-2


@pytest.mark.parametrize("world_size", [pytest.param(1, marks=pytest.mark.slow), 4])
@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("policy", FILLING)
def test_steps_that_vary(tmp_path: Path, policy: str, target: str, world_size: int) -> None:
    """N and B are of each step, whatever it holds, over all its micro-batches."""
    config = config_of(tmp_path, policy, "virtual", world_size, "float64", target)
    error = distance(gradients(config), reference(config))
    print(f"{policy}, {world_size} virtual ranks, {target}, float64: {error:.1e}")
    assert error <= TOLERANCE["float64"]


def test_the_two_targets_are_two() -> None:
    """Else half of the tests above would say nothing."""
    import tempfile

    with tempfile.TemporaryDirectory() as folder:
        config = [config_of(Path(folder), "static", "virtual", 2, "float64", target) for target in TARGETS]
        assert distance(reference(config[0]), reference(config[1])) > 1e-2


SYNCS = ("ddp", "naive", "bucketed", *["fsdp"] * HAS_FSDP)
CASES = [
    *[
        ("ddp", policy, target, precision, False)
        for policy in POLICIES
        for target in TARGETS
        for precision in TOLERANCE
    ],
    *[("ddp", policy, target, "float64", True) for policy in POLICIES for target in TARGETS],
    *[(sync, "minmax", "token_mean", "float64", False) for sync in SYNCS[1:]],
]
FEW = [
    ("ddp", "static", "sample_mean", "float64", False),
    ("ddp", "packed", "token_mean", "float64", False),
    ("ddp", "minmax", "token_mean", "float64", True),
    *CASES[1 - len(SYNCS) :],
]


def every_case(outputs: Path, cases: list[Any], ports: list[int]) -> list[list[np.ndarray]]:
    """On one rank: the gradients of these cases."""
    found = []
    for port, (sync, policy, target, precision, own_means) in zip(ports, cases, strict=True):
        os.environ["MASTER_PORT"] = str(port)  # a rendezvous is not used twice
        found.append(gradients(config_of(outputs, policy, "distributed", 2, precision, target, sync), own_means))
    return found


@pytest.mark.parametrize("cases", [FEW, pytest.param(CASES, marks=pytest.mark.slow)], ids=["few", "all"])
def test_gloo_ranks(tmp_path: Path, cases: list[Any]) -> None:
    write_prompted(tmp_path / "data")
    ranks = run_ranks(every_case, 2, tmp_path, cases, [free_port() for _ in cases], timeout_s=240)
    for (sync, policy, target, precision, own_means), found, other in zip(cases, *ranks, strict=True):
        error = distance(found, reference(config_of(tmp_path, policy, "distributed", 2, precision, target, sync)))
        print(f"{policy}, 2 gloo ranks, {sync}, {target}, {precision}, own means {own_means}: {error:.1e}")
        if own_means:
            assert error > 1e-2, "the test cannot tell a mean of means"
        else:
            assert error <= TOLERANCE[precision]
        np.testing.assert_array_equal(found[0], other[0])


def test_lengths_learnt_online(tmp_path: Path) -> None:
    """No rank knows another's label tokens: N is a sum of what each has seen."""
    ports = [free_port()]
    found, _ = run_ranks(online, 2, tmp_path, ports)
    expected = reference(config_of(tmp_path, "minmax", "distributed", 2, "float64"))
    assert distance(found, expected) <= TOLERANCE["float64"]


def online(outputs: Path, ports: list[int]) -> list[np.ndarray]:
    os.environ["MASTER_PORT"] = str(ports[0])
    return gradients(config_of(outputs, "minmax", "distributed", 2, "float64", lengths="online"))
