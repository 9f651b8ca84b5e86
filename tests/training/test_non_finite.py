"""After a gradient that is not finite, all ranks stop or all skip the step, as configured."""

from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import torch
from ranks import run_ranks
from runs import config_of, records_of

from ddpsched.errors import NonFiniteError
from ddpsched.run_loop import run
from ddpsched.training.learner import Learner
from ddpsched.training.optimise import Optimiser
from ddpsched.world import World

POISONED = 2  # the step in which rank 1's loss is not a number


def config(outputs: Path, executor: str, sync: str = "ddp", non_finite: str = "skip") -> Any:
    return config_of(outputs, executor, "balanced", sync={"kind": sync}, train={"non_finite": non_finite})


def train(outputs: Path, executor: str, sync: str) -> list[float]:
    """Return the sum of this rank's weights before each update and at the end."""
    honest, calls, sums, learners = Learner.loss_sum, [0], [], []
    virtual = executor == "virtual"

    def poisoned(self: Learner, batch: Any) -> torch.Tensor:
        calls[0] += 1
        # in virtual runs ranks take turns, (step + turn) % 2, after one warm-up
        here = calls[0] == 2 * POISONED + 3 if virtual else World.detect().rank == 1 and calls[0] == POISONED + 1
        return honest(self, batch) * (float("nan") if here else 1.0)

    def noted(update: Any) -> Any:
        def wrapper(self: Optimiser, *size: float) -> Any:
            sums.append(float(sum(p.double().sum() for p in self._parameters)))
            return update(self, *size)

        return wrapper

    build = Learner.__init__
    Learner.__init__ = lambda self, *a, **k: (build(self, *a, **k), learners.append(self))[0]
    Learner.loss_sum = poisoned
    Optimiser.step, Optimiser.skip = noted(Optimiser.step), noted(Optimiser.skip)
    run(config(outputs, executor, sync))
    return [*sums, float(sum(p.double().sum() for p in learners[0].model.parameters()))]


def check(sums: list[float], rows: pd.DataFrame) -> None:
    assert len(sums) == 5
    for step in range(4):  # weights move in every step but the poisoned one
        assert (sums[step] == sums[step + 1]) == (step == POISONED), sums
    skipped = rows[rows["lr"].isna()]
    assert set(skipped["step"]) == {POISONED}
    assert len(skipped) == 2
    assert skipped["grad_norm"].isna().all()
    assert rows[rows["step"] != POISONED]["grad_norm"].notna().all()


@pytest.mark.parametrize("sync", ["ddp", "bucketed", "naive"])
def test_all_ranks_skip_alike(tmp_path: Path, sync: str) -> None:
    first, second = run_ranks(train, 2, tmp_path, "distributed", sync)
    assert first == second
    check(first, records_of(config(tmp_path, "distributed").run_dir))


def test_virtual_ranks_skip_too(tmp_path: Path) -> None:
    [sums] = run_ranks(train, 1, tmp_path, "virtual", "ddp")
    check(sums, records_of(config(tmp_path, "virtual").run_dir))


def test_stop_is_the_default(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    honest = Learner.loss_sum
    monkeypatch.setattr(Learner, "loss_sum", lambda self, batch: honest(self, batch) * float("inf"))
    with pytest.raises(NonFiniteError, match="step 0"):
        run(config_of(tmp_path, "virtual", "balanced"))
