"""fsdp that gathers weights anew for each micro-batch: lockstep plans run without a hang, with the exact gradient."""

import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gradients import kept_gradients
from installed import needs_fsdp
from ranks import free_port, run_ranks

from ddpsched.config import RunConfig, parse
from ddpsched.errors import ConfigError
from ddpsched.planning.policies.lockstep import in_lockstep
from ddpsched.planning.policies.packed import Packed
from ddpsched.run_loop import run
from ddpsched.step_plan import Microbatch, StepPlan
from ddpsched.training.distributed import meetings_of

POLICIES: dict[str, dict[str, Any]] = {
    "packed": {"kind": "packed", "lockstep": True, "max_tokens": 64},
    "balanced": {"kind": "balanced", "lockstep": True, "max_microbatches": 3},
    "static": {"kind": "static"},
}


def config_of(outputs: Path, policy: dict[str, Any], executor: str = "distributed", size: int = 27) -> RunConfig:
    return parse(
        {
            "name": f"{policy['kind']}-{executor}", "outputs": str(outputs), "epochs": 1, "global_batch": 13,
            "world_size": 2, "data": {"size": size}, "model": {"dropout": 0.0}, "policy": policy,
            "sync": {"kind": "fsdp", "reshard": True} if executor == "distributed" else {},
            "executor": {"kind": executor} | ({"timeline": True} if executor == "distributed" else {}),
            "train": {"precision": "float64", "learning_rate": 1e-30, "max_grad_norm": 1e9},
        }
    )  # fmt: skip


def gradients(config: RunConfig) -> list[np.ndarray]:
    with kept_gradients() as kept:
        run(config, overwrite=True)
    return kept


def on_rank(outputs: Path, ports: list[int]) -> list[list[np.ndarray]]:
    found = []
    for port, policy in zip(ports, POLICIES.values(), strict=True):
        os.environ["MASTER_PORT"] = str(port)  # a rendezvous is not used twice
        found.append(gradients(config_of(outputs, policy)))
    return found


@needs_fsdp
def test_the_gradient_is_exact_to_the_end_of_the_epoch(tmp_path: Path) -> None:
    """Its last step has one sample for two ranks, so one of them runs a stand-in."""
    ranks = run_ranks(on_rank, 2, tmp_path, [free_port() for _ in POLICIES], timeout_s=60)
    for policy, *found in zip(POLICIES.values(), *ranks, strict=True):
        expected = gradients(config_of(tmp_path, policy, "virtual"))
        assert len(expected) == 3
        for rank in found:
            errors = [float(np.linalg.norm(f - e) / np.linalg.norm(e)) for f, e in zip(rank, expected, strict=True)]
            assert max(errors) <= 1e-12
    lines = (tmp_path / "runs" / "packed-distributed" / "timeline-rank1.jsonl").read_text().splitlines()
    step = json.loads(lines[0])
    gathers = [launched for label, _, launched, _ in step["collectives"] if label == "gather"]
    assert len(step["microbatches"]) > 1
    assert len(gathers) >= 2 * len(step["microbatches"]), "weights come back for each forward and backward"


def of_sizes(*sizes: tuple[int, ...]) -> StepPlan:
    ids = iter(range(99))
    return StepPlan(0, 0, tuple(tuple(Microbatch([next(ids) for _ in range(n)]) for n in rank) for rank in sizes))


def test_a_plan_with_other_numbers_is_refused_before_it_hangs() -> None:
    assert meetings_of(of_sizes((3, 2), (4, 1))) == 2
    assert meetings_of(of_sizes((1, 1), (1,))) == 2, "too few samples: one rank runs a stand-in"
    assert meetings_of(of_sizes((5,), ())) == 1, "as one of all"
    with pytest.raises(ConfigError, match=r"rank 1 has 1 micro-batches and rank 0 has 2.*set policy\.lockstep = true"):
        meetings_of(of_sizes((2, 1), (3,)))


def unequal(outputs: Path) -> str:
    """Take rank 0's second row from every plan of two rows and more, as a policy without lockstep might."""

    def assign(self: Packed, batch: Any) -> Any:
        chosen = in_lockstep(batch, 64, None, True)
        first = chosen.sizes[0]
        chosen.sizes = ((first[0] + sum(first[1:]),), *chosen.sizes[1:])
        return chosen

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Packed, "assign", assign)
        try:
            run(config_of(outputs, POLICIES["packed"]), overwrite=True)
        except ConfigError as error:
            return str(error)
    return "nothing"


@needs_fsdp
def test_all_ranks_refuse_it_alike(tmp_path: Path) -> None:
    for said in run_ranks(unequal, 2, tmp_path, timeout_s=60):
        assert "would wait for ever" in said
