"""A checkpoint is complete only with what every rank writes of its steps."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from runs import config_of

from ddpsched.errors import RankFailure
from ddpsched.exchange import LocalExchange
from ddpsched.planning.planner import plan_steps
from ddpsched.recovery import keeper
from ddpsched.recovery.keeper import Keeper
from ddpsched.recovery.start import Start, identity_of

RECORDS: Any = [SimpleNamespace(mode="distributed", lr=0.1)]


class Weights:
    """A copy of nothing."""

    is_shared = False

    def take(self) -> None: ...

    def write(self, folder: Path, share: int, shares: int) -> None:
        (folder / "weights").write_bytes(b"1")


def two_ranks(folder: Path) -> tuple[list[Keeper], Any]:
    """Return the keeper of each rank, and the first plan."""
    config = config_of(folder, "distributed").model_copy(update={"world_size": 2})
    config = config.model_copy(update={"train": config.train.model_copy(update={"checkpoint_every": 1})})
    spec, samples = config.plan_spec(), config.load_samples()
    plan = next(iter(plan_steps(spec, samples.train, LocalExchange(2))))
    folder.mkdir(exist_ok=True)
    for rank in range(2):
        (folder / f"records-rank{rank}.jsonl").touch()
    start = Start(folder, identity_of(config, samples))
    return [Keeper(config, rank, LocalExchange(2), Weights(), (), start) for rank in range(2)], plan


def complete(folder: Path) -> list[str]:
    return [path.name for path in (folder / "checkpoints").glob("step-????????")]


def test_it_waits_for_every_ranks_records(tmp_path: Path) -> None:
    """Rank 1 may be killed after the step was committed, and before it has written its record of it."""
    (zero, one), plan = two_ranks(tmp_path)
    zero.commit(plan, RECORDS)
    zero.checkpoint(plan, {})
    one.checkpoint(plan, {})  # its record of the step could not be written
    one.finish()
    assert complete(tmp_path) == []
    one.commit(plan, RECORDS)
    one.checkpoint(plan, {})
    zero.finish()
    assert complete(tmp_path) == ["step-00000001"]
    for each in (zero, one):
        each.close()


def test_a_run_that_ends_does_not_wait_for_long(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(keeper, "LEAVING_S", 0.1)
    (zero, one), plan = two_ranks(tmp_path)
    zero.commit(plan, RECORDS)
    zero.checkpoint(plan, {})
    zero.close()
    assert complete(tmp_path) == []
    with pytest.raises(RankFailure, match="rank 1 did not write its share"):
        zero.finish()
    one.close()
