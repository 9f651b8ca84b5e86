"""Ranks that are asked to stop write a checkpoint before they leave, so that no step is done again."""

import os
from pathlib import Path
from time import sleep
from typing import Any

import pytest
from ranks import run_ranks
from runs import config_of, records_of

from ddpsched.errors import RunStopped
from ddpsched.exchange import Flag
from ddpsched.recovery.audit import audit
from ddpsched.recovery.checkpoints import Checkpoints
from ddpsched.recovery.ledger import LEDGER
from ddpsched.run_loop import run

AT, EVERY, STEPS = 5, 3, 8


def config(outputs: Path, name: str) -> Any:
    return config_of(outputs, "distributed", name=name, steps=STEPS, train={"checkpoint_every": EVERY})


def stopped_and_gone_on(outputs: Path) -> list[str]:
    """Return the checkpoints after the stop, on this rank; rank 1 is asked to stop in step ``AT``."""
    from ddpsched.training.distributed import DistributedExecutor

    commit = Checkpoints.commit

    def slow(self: Checkpoints, step: int, state: Any) -> None:
        sleep(1.5 * (step == AT))  # longer than it takes the other rank to end
        commit(self, step, state)

    Checkpoints.commit = slow  # type: ignore[method-assign]
    execute = DistributedExecutor.execute

    def asked(self: DistributedExecutor, plan: Any) -> Any:
        if plan.step == AT and os.environ["RANK"] == "1":
            self.object(Flag.STOP)
        return execute(self, plan)

    DistributedExecutor.execute = asked  # type: ignore[method-assign]
    with pytest.raises(RunStopped):
        run(config(outputs, "cut"))
    DistributedExecutor.execute, Checkpoints.commit = execute, commit  # type: ignore[method-assign]
    return sorted(path.name for path in (outputs / "runs" / "cut" / "checkpoints").glob("step-*"))


def goes_on(outputs: Path, name: str) -> None:
    run(config(outputs, name))


def test_no_step_is_done_again(tmp_path: Path) -> None:
    assert run_ranks(stopped_and_gone_on, 2, tmp_path)[0] == ["step-00000003", f"step-{AT:08d}"]
    run_ranks(goes_on, 2, tmp_path, "cut")
    run_ranks(goes_on, 2, tmp_path, "whole")
    cut, whole = tmp_path / "runs" / "cut", tmp_path / "runs" / "whole"
    assert [start["step"] for start in audit(cut).starts] == [0, AT]
    assert (cut / LEDGER).read_bytes() == (whole / LEDGER).read_bytes()
    same = ["step", "rank", "num_samples", "plan_hash", "loss", "grad_norm"]
    assert records_of(cut)[same].equals(records_of(whole)[same])
