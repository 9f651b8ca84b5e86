"""Steps of packed rows: gradients on virtual and gloo ranks, evaluation, simulated seconds.

``pytest -rP tests/training/test_packed_steps.py`` prints the differences.
"""

import os
from contextlib import closing
from typing import Any

import numpy as np
import pytest
import torch
from gradients import kept_gradients
from packing import whole_row
from ranks import free_port, run_ranks

from ddpsched.config import RunConfig, parse
from ddpsched.simulated import SimulatedExecutor
from ddpsched.step_plan import Microbatch, StepPlan
from ddpsched.training import packed
from ddpsched.training.collate import Collator
from ddpsched.training.distributed import DistributedExecutor
from ddpsched.training.learner import Learner
from ddpsched.training.model import build_model
from ddpsched.training.virtual import VirtualExecutor
from ddpsched.world import World

CPU = torch.device("cpu")


def config_of(executor: str, precision: str, world_size: int, sync: str = "ddp", **clock: Any) -> RunConfig:
    return parse(
        {
            "steps": 1,
            "global_batch": 13,
            "world_size": world_size,
            "data": {"size": 64},
            "model": {"dropout": 0.0},
            "policy": {"kind": "packed"},
            "sync": {"kind": sync},
            "executor": {"kind": executor, **clock},
            "train": {"precision": precision, "max_grad_norm": 1e9},
        }
    )


def plan_of(world_size: int) -> StepPlan:
    """Return a plan with unequal shares of 13 samples; rank 0's are in two rows."""
    ids = np.random.default_rng(3).permutation(64)[:13]
    first, *others = np.split(ids, np.linspace(0, 13, world_size + 1).astype(int)[1:-1] + 1)
    rank_0 = (Microbatch(first[:3], packed=True), Microbatch(first[3:], packed=True))
    return StepPlan(0, 0, (rank_0, *((Microbatch(part, packed=True),) for part in others)))


def gradient_of_step(executor: Any, plan: StepPlan) -> np.ndarray:
    with kept_gradients() as kept:
        executor.execute(plan)
    return kept[0]


def expected_gradient(config: RunConfig, plan: StepPlan) -> np.ndarray:
    """Return the gradient of one process with all samples padded and torch's mean loss."""
    samples = config.load_samples()
    torch.manual_seed(config.seed)
    model = build_model(config.model, 2, samples.vocab_size, samples.pad_id).to(getattr(torch, config.train.precision))
    batch = Collator(samples.train, samples.dataset.train.labels, samples.pad_id, CPU)(plan.ids)
    model(**batch.inputs, labels=batch.labels).loss.backward()
    return torch.cat([p.grad.reshape(-1) for p in model.parameters()]).numpy()


def mix(patch: pytest.MonkeyPatch) -> None:
    """Let samples attend to each other, and remove the check that would refuse such a model."""
    patch.setattr(packed, "_each_to_itself", whole_row)
    patch.setattr(packed, "gap", lambda found, expected: 0.0)


def relative(found: np.ndarray, expected: np.ndarray) -> float:
    return float(np.linalg.norm(found - expected) / np.linalg.norm(expected))


@pytest.mark.parametrize(("precision", "within"), [("float32", 1e-6), ("float64", 1e-12)])
def test_virtual_ranks(precision: str, within: float) -> None:
    config, plan = config_of("virtual", precision, 4), plan_of(4)
    expected = expected_gradient(config, plan)
    error = relative(gradient_of_step(VirtualExecutor(config, config.load_samples()), plan), expected)
    with pytest.MonkeyPatch.context() as patch:
        mix(patch)
        mixed = relative(gradient_of_step(VirtualExecutor(config, config.load_samples()), plan), expected)
    print(f"packed, 4 virtual ranks, {precision}: {error:.1e} (samples attending to each other {mixed:.1e})")
    assert error <= within
    assert mixed > 1e-3


CASES = [("float32", "ddp", False), ("float64", "ddp", False), ("float64", "naive", False), ("float32", "ddp", True)]


def every_case(ports: list[int]) -> list[np.ndarray]:
    """Return one rank's gradients for all precisions and synchronisers, and for samples that attend to each other."""
    found = []
    for port, (precision, sync, mixed) in zip(ports, CASES, strict=True):
        os.environ["MASTER_PORT"] = str(port)  # a rendezvous is not used twice
        config = config_of("distributed", precision, 2, sync)
        with pytest.MonkeyPatch.context() as patch:
            if mixed:
                mix(patch)
            with closing(DistributedExecutor(config, config.load_samples(), World.detect())) as executor:
                found.append(gradient_of_step(executor, plan_of(2)))
    return found


def test_gloo_ranks() -> None:
    ranks = run_ranks(every_case, 2, [free_port() for _ in CASES])
    for (precision, sync, mixed), first, second in zip(CASES, *ranks, strict=True):
        error = relative(first, expected_gradient(config_of("distributed", precision, 2, sync), plan_of(2)))
        print(f"packed, 2 gloo ranks, {sync}, {precision}, samples attending to each other {mixed}: {error:.1e}")
        np.testing.assert_array_equal(first, second)
        if mixed:
            assert error > 1e-3, "the test cannot tell samples that attend to each other"
        else:
            assert error <= {"float32": 1e-6, "float64": 1e-12}[precision]


def test_evaluation_stays_padded() -> None:
    found = []
    for kind in ("packed", "balanced"):
        config = config_of("virtual", "float32", 2)
        config = config.model_copy(update={"policy": config.policy.model_copy(update={"kind": kind})})
        found.append(Learner(config, config.load_samples(), CPU).evaluate())
    assert found[0] is not None
    assert found[0] == found[1]


def test_simulated_seconds_of_packed_rows() -> None:
    config = config_of("simulated", "float32", 2, alpha_s=0.5, beta_s=0.01, gamma_s=0.001, slowness=[1.0, 3.0])
    samples, plan = config.load_samples(), plan_of(2)
    for rank, record in enumerate(SimulatedExecutor(config, samples.train).execute(plan)):
        lengths = samples.train.lengths(plan.rank_ids(rank))
        seconds = 0.5 * len(plan.ranks[rank]) + (0.01 * lengths + 0.001 * lengths**2).sum()
        assert record.compute_s == pytest.approx(config.executor.slowness[rank] * seconds)
