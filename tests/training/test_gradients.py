"""The gradient of every policy and executor is the sample mean over the global batch.

``pytest -rP tests/training/test_gradients.py`` prints the differences.
"""

import os
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from gradients import kept_gradients
from installed import needs_fsdp
from ranks import free_port, run_ranks

from ddpsched.config import RunConfig, parse
from ddpsched.exchange import LocalExchange
from ddpsched.planning.planner import plan_steps
from ddpsched.records import read_lines
from ddpsched.run_loop import run
from ddpsched.training.collate import Collator
from ddpsched.training.denominator import Denominator
from ddpsched.training.model import build_model

STEPS = 3
POLICIES: dict[str, dict[str, Any]] = {
    "static": {"kind": "static"},
    "minmax": {"kind": "minmax", "prefetch": 13},
    "balanced": {"kind": "balanced"},
    "packed": {"kind": "packed"},
    "token_budget": {"kind": "token_budget", "max_tokens_for_batch": 160, "batches_per_optimizer_step": 2},
    "token_budget, same shape": {
        "kind": "token_budget", "max_tokens_for_batch": 140, "same_shape": True, "batches_per_optimizer_step": 2,
    },
    "bins": {"kind": "bins", "median_batch": 16, "per_rank_bins": True},
    "pool": {"kind": "pool", "max_tokens_for_batch": 150, "pool_size": 40},
    "pool, packed": {"kind": "pool", "max_tokens_for_batch": 100, "pool_size": 9, "sequence_packing": True},
}  # fmt: skip
OF_ONE_SIZE = ("static", "minmax", "balanced", "packed")  # B samples in each step; the others' vary
HOW = (("float32", True), ("float64", True), ("float32", False))  # precision, and whether the scale is applied
EXACTLY, UNSCALED = HOW[1:2], HOW[1:]
TOLERANCE = {"float32": 1e-6, "float64": 1e-12}


def config_of(
    outputs: Path, policy: str, executor: str, world_size: int, precision: str, sync: str = "ddp"
) -> RunConfig:
    """Dropout off, no clipping, and a rate so small that all steps see the first weights.

    Micro-batches of fewer ranks are larger: gradients of few samples nearly cancel, and float32's rounding is left.
    """
    table = dict(POLICIES[policy])
    if "max_tokens_for_batch" in table:
        table["max_tokens_for_batch"] *= max(1, 4 // world_size)
    return parse(
        {
            "name": f"{policy.replace(', ', '-').replace(' ', '-')}-{executor}-{world_size}",
            "outputs": str(outputs),
            "steps": STEPS,
            # rates that follow the step's size change no gradient
            "lr": {"kind": "sqrt" if "token" in policy else "fixed"},
            "global_batch": 13,
            "world_size": world_size,
            "data": {"size": 160},
            "model": {"dropout": 0.0},
            "policy": table,
            "sync": {"kind": sync},
            "executor": {"kind": executor},
            "train": {"precision": precision, "learning_rate": 1e-30, "max_grad_norm": 1e9, "save_model": False},
        }
    )


def gradients(config: RunConfig, scaled: bool = True) -> list[np.ndarray]:
    """Run and keep the flat gradient of every step; else each sample weighs 1/(B // G) on its rank, as if all had that.

    A loop that knows the configured batch alone does so.
    """
    with kept_gradients() as kept, pytest.MonkeyPatch.context() as patch:
        if not scaled:
            share = config.global_batch // config.world_size
            patch.setattr(Denominator, "scale", lambda _: 1 / share / config.world_size)
        run(config, overwrite=True)
    return kept


def reference(config: RunConfig) -> list[np.ndarray]:
    """One process, the whole global batch at once, torch's own mean loss."""
    samples = config.load_samples()
    torch.manual_seed(config.seed)
    model = build_model(config.model, 2, samples.vocab_size, samples.pad_id)
    model.to(torch.float64 if config.train.precision == "float64" else torch.float32)
    collate = Collator(samples.train, samples.dataset.train.labels, samples.pad_id, torch.device("cpu"))
    found = []
    for plan in plan_steps(config.plan_spec(), samples.train, LocalExchange(config.world_size)):
        batch = collate(plan.ids)
        model.zero_grad()
        model(input_ids=batch.input_ids, attention_mask=batch.attention_mask, labels=batch.labels).loss.backward()
        found.append(torch.cat([p.grad.reshape(-1) for p in model.parameters()]).numpy())
    return found


def distance(found: list[np.ndarray], expected: list[np.ndarray]) -> float:
    """Largest relative L2 difference over the steps."""
    assert len(found) == len(expected) == STEPS
    return max(float(np.linalg.norm(f - e) / np.linalg.norm(e)) for f, e in zip(found, expected, strict=True))


@pytest.mark.parametrize("precision", [pytest.param("float32", marks=pytest.mark.slow), "float64"])
@pytest.mark.parametrize("policy", POLICIES)
def test_virtual_ranks(tmp_path: Path, policy: str, precision: str) -> None:
    config = config_of(tmp_path, policy, "virtual", 4, precision)
    expected = reference(config)
    error, unscaled = (distance(gradients(config, scaled), expected) for scaled in (True, False))
    print(f"{policy}, 4 virtual ranks, {precision}: {error:.1e} (without the scale {unscaled:.2f})")
    assert error <= TOLERANCE[precision]
    # 13 samples on 4 ranks are unequal counts in every policy: without the scale the gradient is another one
    assert unscaled > 1e-3


@pytest.mark.parametrize(
    ("world_size", "policies"),
    [
        (1, ("minmax", "pool")),
        (3, ("static", "token_budget")),
        (8, ("balanced", "pool, packed")),
        *(pytest.param(size, tuple(POLICIES), marks=pytest.mark.slow) for size in (1, 3, 8)),
    ],
)
def test_other_numbers_of_ranks(tmp_path: Path, world_size: int, policies: tuple[str, ...]) -> None:
    for policy in policies:
        config = config_of(tmp_path, policy, "virtual", world_size, "float64")
        error = distance(gradients(config), reference(config))
        print(f"{policy}, {world_size} virtual ranks, float64: {error:.1e}")
        assert error <= TOLERANCE["float64"], policy


def every_policy(
    outputs: Path, world_size: int, sync: str, runs: list[tuple[str, tuple[str, bool]]], ports: list[int]
) -> dict[Any, list[np.ndarray]]:
    """On one rank: gradients of these policies, precisions, and with the scale or without."""
    found = {}
    for port, (policy, (precision, scaled)) in zip(ports, runs, strict=True):
        os.environ["MASTER_PORT"] = str(port)  # a run's rendezvous is not used twice
        config = config_of(outputs, policy, "distributed", world_size, precision, sync)
        found[policy, precision, scaled] = gradients(config, scaled)
    return found


@pytest.mark.parametrize(
    ("world_size", "sync", "policies", "how"),
    [
        (2, "ddp", ("static", "minmax", "packed", "token_budget", "pool, packed"), EXACTLY),
        (4, "ddp", ("minmax",), EXACTLY),
        (2, "naive", ("balanced",), UNSCALED),
        (2, "bucketed", ("packed", "token_budget"), UNSCALED),
        pytest.param(2, "fsdp", ("static",), UNSCALED, marks=needs_fsdp),
        *(
            pytest.param(*case, HOW, marks=pytest.mark.slow)
            for case in (
                (2, "ddp", tuple(POLICIES)),
                (4, "ddp", (*OF_ONE_SIZE, "pool")),
                (2, "naive", OF_ONE_SIZE),
                (2, "bucketed", (*OF_ONE_SIZE, "token_budget")),
            )
        ),
        pytest.param(2, "fsdp", OF_ONE_SIZE, HOW, marks=(pytest.mark.slow, needs_fsdp)),
    ],
)
def test_gloo_ranks(
    tmp_path: Path, world_size: int, sync: str, policies: tuple[str, ...], how: tuple[tuple[str, bool], ...]
) -> None:
    runs = list(product(policies, how))
    ports = [free_port() for _ in runs]
    ranks = run_ranks(every_policy, world_size, tmp_path, world_size, sync, runs, ports)
    for (policy, precision, scaled), found in ranks[0].items():
        expected = reference(config_of(tmp_path, policy, "distributed", world_size, precision, sync))
        error = distance(found, expected)
        print(f"{policy}, {world_size} gloo ranks, {sync}, {precision}, scaled {scaled}: {error:.1e}")
        if scaled:
            assert error <= TOLERANCE[precision], (policy, precision, error)
        else:
            assert error > 1e-3, f"{policy}: the scale is missing, and the gradient does not show it"
        for other in ranks[1:]:
            np.testing.assert_array_equal(found[0], other[policy, precision, scaled][0])


def test_static_and_balanced_lose_alike(tmp_path: Path) -> None:
    """Same samples, same weights: the same loss at each of 50 steps."""
    losses = {}
    for policy in ("static", "balanced"):
        config = config_of(tmp_path, policy, "virtual", 4, "float32")
        config = config.model_copy(
            update={"steps": 50, "train": config.train.model_copy(update={"learning_rate": 3e-3, "max_grad_norm": 1.0})}
        )
        import pandas as pd

        rows = pd.read_parquet(run(config) / "records.parquet")
        rows["sum"] = rows["loss"].fillna(0) * rows["num_samples"]
        losses[policy] = (rows.groupby("step")["sum"].sum() / rows.groupby("step")["num_samples"].sum()).to_numpy()
    apart = float(np.abs(losses["static"] - losses["balanced"]).max())
    print(f"static and balanced, 50 steps: losses at most {apart:.1e} apart")
    assert apart <= 1e-4
    assert losses["static"][-10:].mean() < losses["static"][:10].mean() - 0.05, (
        "nothing was learnt, so nothing was compared"
    )


def few_samples(config: RunConfig) -> RunConfig:
    """Nine samples in steps of four: the last step has one sample, so one of two ranks has none.

    In float64: gradients of so few samples nearly cancel, and float32's rounding would be all that is left.
    """
    small = {"global_batch": 4, "data": config.data.model_copy(update={"size": 9})}
    return config.model_copy(update=small)


def with_few_samples(outputs: Path, policy: str, sync: str) -> list[np.ndarray]:
    return gradients(few_samples(config_of(outputs, policy, "distributed", 2, "float64", sync)))


@pytest.mark.parametrize(("policy", "sync"), [("minmax", "ddp"), ("balanced", "naive")])
def test_a_rank_without_samples_joins_with_nothing(tmp_path: Path, policy: str, sync: str) -> None:
    expected = reference(few_samples(config_of(tmp_path, policy, "distributed", 2, "float64", sync)))
    for found in run_ranks(with_few_samples, 2, tmp_path, policy, sync):
        assert distance(found, expected) <= TOLERANCE["float64"]
    virtual_ranks = few_samples(config_of(tmp_path, policy, "virtual", 2, "float64"))
    assert distance(gradients(virtual_ranks), expected) <= TOLERANCE["float64"]
    last = [row for row in read_lines(virtual_ranks.run_dir) if row["step"] == STEPS - 1]
    assert sorted((row["num_samples"], row["loss"] is None) for row in last) == [(0, True), (1, False)]
