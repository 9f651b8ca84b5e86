"""Every flag, on every rank and in every phase of a step: all ranks leave the step alike, and no weight changes."""

from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from ranks import run_ranks
from runs import config_of

from ddpsched.exchange import GRAVEST, Flag, verdict, vote_row
from ddpsched.plan_difference import decode, encode, first_difference
from ddpsched.planning.planner import plan_steps
from ddpsched.step_plan import Microbatch, StepPlan
from ddpsched.training.distributed import DistributedExecutor
from ddpsched.training.model import weights_digest
from ddpsched.world import World

RANKS = 3
# the fault, and what every rank must say of it; {} is the rank
WORDS = {
    "memory": "rank {} ran out of memory in step",
    "nan": "rank {}: loss or gradient is NaN",
    "bug": "rank {} failed in step",
    "disk": "rank {} could not write its records",
    "stop": "a signal asked rank {} to stop",
    "sum": "though every rank's loss and own gradient are finite",
    "plan": "ranks [{}] hold another plan than the rest",
}
CASES = [
    *((kind, phase) for kind in ("memory", "nan", "bug") for phase in ("forward", "backward")),
    ("disk", "between"), ("stop", "between"), ("stop", "backward"), ("sum", "backward"), ("plan", "between"),
]  # fmt: skip


@dataclass
class Said:
    """The error that a rank raised in a case, and whether its weights are as before."""

    name: str
    text: str
    kept: bool


def plant(executor: DistributedExecutor, kind: str, phase: str) -> Callable[[], None]:
    """Plant a fault on this rank; return what removes it."""
    learner, honest = executor.learner, executor.learner.loss_sum
    if phase == "between":
        executor.object({"disk": Flag.DISK_FULL, "stop": Flag.STOP}.get(kind, Flag.OK))
        return lambda: setattr(executor, "_objection", Flag.OK)
    if phase == "forward":

        def loss_sum(batch: Any) -> Any:
            return honest(batch) * torch.nan if kind == "nan" else _broken(kind)

        learner.loss_sum = loss_sum  # type: ignore[method-assign]
        return lambda: setattr(learner, "loss_sum", honest)
    parameter = next(p for name, p in learner.model.named_parameters() if "layer.1.attention.q_lin.weight" in name)
    hook = parameter.register_hook(partial(_in_backward, executor, kind))

    def undo() -> None:
        hook.remove()
        executor._objection = Flag.OK

    return undo


def _in_backward(executor: DistributedExecutor, kind: str, gradient: torch.Tensor) -> torch.Tensor:
    if kind == "stop":
        executor.object(Flag.STOP)
        return gradient
    if kind in ("nan", "sum"):  # 2e38 is finite in float32, and the sum over ranks is not
        return torch.full_like(gradient, torch.nan if kind == "nan" else 2e38)
    return _broken(kind)


def _broken(kind: str) -> Any:
    raise torch.OutOfMemoryError("planted") if kind == "memory" else KeyError("a bug")


def on_rank(outputs: Path, sync: str) -> dict[tuple[str, str, int], Said]:
    """Run all cases on one model, each on every rank in turn."""
    world, said = World.detect(), {}
    config = config_of(outputs, "distributed", world_size=RANKS, sync={"kind": sync})
    samples = config.load_samples()
    with closing(DistributedExecutor(config, samples, world)) as executor:
        executor.expect(10)
        plan = next(plan_steps(config.plan_spec(), samples.train, executor.exchange))
        before = weights_digest(executor.learner.model)
        for kind, phase in CASES:
            for victim in range(RANKS):
                hit = kind == "sum" or world.rank == victim
                undo = plant(executor, kind, phase) if hit else lambda: None
                mine = other(plan) if kind == "plan" and hit else plan
                try:
                    executor.execute(mine)
                    error: Exception = AssertionError("no error")
                except Exception as raised:
                    error = raised
                undo()
                kept = weights_digest(executor.learner.model) == before
                said[kind, phase, victim] = Said(type(error).__name__, str(error), kept)
                del error
                executor.recover()
        executor.execute(plan)  # and nothing of all this stands in the way of an honest step
        assert weights_digest(executor.learner.model) != before
    return said


def other(plan: StepPlan) -> StepPlan:
    """Return the plan with two samples of rank 1 in another order."""
    micro = plan.ranks[1][0]
    turned = Microbatch(micro.ids[::-1].copy())
    return replace(plan, ranks=(plan.ranks[0], (turned,), *plan.ranks[2:]))


@pytest.mark.parametrize("sync", ["bucketed", pytest.param("ddp", marks=pytest.mark.slow)])
def test_all_ranks_leave_alike(tmp_path: Path, sync: str) -> None:
    by_rank = run_ranks(on_rank, RANKS, tmp_path, sync, timeout_s=240)
    for kind, phase in CASES:
        for victim in range(RANKS):
            said = [each[kind, phase, victim] for each in by_rank]
            assert all(each.kept for each in said), (kind, phase, victim)
            if kind == "bug":  # the rank at fault raises its own error
                assert "a bug" in said.pop(victim).text
            assert {each.text for each in said} == {said[0].text}, "the same on all ranks"
            assert WORDS[kind].format(victim) in said[0].text
            if kind == "plan":
                assert "first difference: micro-batch 0 of rank 1 is [" in said[0].text
                assert f"rank {victim}'s plan: 0: [" in said[0].text


def table(*flags: Flag) -> Any:
    return np.stack([vote_row(3, 17, flag, 4, 9) for flag in flags])


def test_the_gravest_flag_decides() -> None:
    """Whatever the order of ranks; and each flag has a message."""
    assert set(GRAVEST) == set(Flag) - {Flag.OK}
    texts = {flag: str(verdict(table(Flag.OK, flag, Flag.OK))) for flag in GRAVEST}
    assert len(set(texts.values())) == len(GRAVEST)
    for place, graver in enumerate(GRAVEST):
        for lighter in GRAVEST[place + 1 :]:
            assert str(verdict(table(lighter, graver | lighter, lighter))) == texts[graver]
    assert verdict(table(Flag.OK, Flag.OK)) is None


def test_a_plan_survives_the_messages() -> None:
    plan = StepPlan(2, 7, ((Microbatch([3, 1], packed=True),), (), (Microbatch([5], pad_to=12), Microbatch([2]))))
    again = decode(encode(plan))
    assert again.digest == plan.digest
    assert first_difference(plan, again, 0, 1) == "none"
    shorter = replace(plan, ranks=(plan.ranks[0], (), plan.ranks[2][:1]))
    assert first_difference(plan, shorter, 0, 2) == ("micro-batch 1 of rank 2 is [2] by rank 0, not there by rank 2")
    fewer = replace(plan, epoch=3)
    assert first_difference(plan, fewer, 0, 2) == "the epoch is 2 by rank 0, 3 by rank 2"


def test_no_objects_travel() -> None:
    """An object collective unpickles what another process sent."""
    package = Path(__file__).parents[1] / "ddpsched"
    for path in package.rglob("*.py"):
        text = path.read_text(encoding="utf-8")
        for name in ("gather_object", "broadcast_object", "scatter_object", "send_object", "recv_object"):
            assert name not in text, f"{path}: {name}"
