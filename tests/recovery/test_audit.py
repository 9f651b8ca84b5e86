"""The audit names what was lost or trained twice, and what contradicts the ledger."""

import json
from pathlib import Path
from typing import Any

import pytest
from runs import config_of

from ddpsched.cli import main
from ddpsched.config import parse
from ddpsched.errors import DataError
from ddpsched.record_lines import read_sealed, sealed
from ddpsched.recovery.audit import audit
from ddpsched.recovery.command import answer
from ddpsched.recovery.ledger import LEDGER, Entry, Head, Ledger, entries
from ddpsched.run_loop import run
from ddpsched.step_plan import StepPlan

SIZE, STEPS = 30, 6  # two epochs of 12, 12 and 6 samples


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    config = config_of(tmp_path_factory.mktemp("outputs"), "simulated", "balanced", data={"size": SIZE})
    return run(parse({**config.model_dump(exclude_none=True, exclude={"steps"}), "epochs": 2}))


@pytest.fixture
def folder(finished: Path, tmp_path: Path) -> Path:
    """Return a copy of the finished run."""
    for name in ("config.toml", "environment.json", "status.json", LEDGER, "records-rank0.jsonl"):
        (tmp_path / name).write_bytes((finished / name).read_bytes())
    return tmp_path


def rewrite(folder: Path, change: Any) -> None:
    """Write the ledger anew with the ids of each step as ``change(step, ranks)`` returns them, chained rightly."""
    read: list[Entry] = list(entries(folder))
    (folder / LEDGER).unlink()
    ledger = Ledger(folder, Head())
    for entry in read:
        ranks = change(entry.step, entry.ranks)
        if ranks is not None:
            flat = [each for rank in ranks for each in rank]
            plan = StepPlan.cut(entry.epoch, ledger.head.steps, flat, [[len(rank)] for rank in ranks])  # type: ignore[arg-type]
            ledger.commit(plan, skipped=entry.skipped)
    ledger.close()


def test_finished_run_trained_each_sample_once(folder: Path) -> None:
    found = audit(folder)
    assert found.faults == []
    assert found.num_steps == STEPS
    assert [(e.num_trained, e.complete, e.never, e.again) for e in found.epochs] == [(SIZE, True, [], [])] * 2


def test_lost_sample_is_named(folder: Path) -> None:
    lost = next(entries(folder)).ranks[0][0]
    rewrite(folder, lambda step, ranks: [ranks[0][1:], ranks[1]] if step == 0 else ranks)
    faults = audit(folder).faults
    assert f"epoch 0: 1 of {SIZE} samples were never trained: {lost}" in faults


def test_repeated_sample_is_named_with_its_steps(folder: Path) -> None:
    twice = next(entries(folder)).ranks[0][0]
    rewrite(folder, lambda step, ranks: [[*ranks[0], twice], ranks[1]] if step == 1 else ranks)
    assert any(
        f"trained more than once: {twice}; sample {twice} in steps 0, 1" in fault for fault in audit(folder).faults
    )


def test_lost_step_is_found(folder: Path) -> None:
    rewrite(folder, lambda step, ranks: None if step == STEPS - 1 else ranks)
    faults = audit(folder).faults
    assert any("never trained" in fault for fault in faults)
    assert any("records are of no step of the ledger" in fault for fault in faults)


def test_records_that_contradict_are_found(folder: Path) -> None:
    path = folder / "records-rank0.jsonl"
    rows = [json.loads(line) for _, line in read_sealed(path)]
    for changed, fault in (
        ([{**rows[0], "num_samples": 1}, *rows[1:]], "1 records contradict the ledger, first in step 0, rank 0"),
        (rows[1:], "1 records are missing, first that of step 0, rank 0"),
    ):
        path.write_text("".join(sealed(json.dumps(row)) + "\n" for row in changed))
        assert any(fault in each for each in audit(folder).faults)


def test_skipped_steps_are_declared(folder: Path) -> None:
    path = folder / LEDGER
    read = list(entries(folder))
    path.unlink()
    ledger = Ledger(folder, Head())
    for entry in read:
        flat = [each for rank in entry.ranks for each in rank]
        sizes = [[len(rank)] for rank in entry.ranks]
        ledger.commit(StepPlan.cut(entry.epoch, entry.step, flat, sizes), skipped=entry.step == 0)  # type: ignore[arg-type]
    ledger.close()
    first = audit(folder).epochs[0]
    assert first.num_trained == SIZE - len(first.skipped) == SIZE - 12
    assert first.never == []


def test_unfinished_epoch_is_not_blamed(folder: Path) -> None:
    (folder / "status.json").write_text(json.dumps({"state": "failed", "reason": "killed"}))
    rewrite(folder, lambda step, ranks: ranks if step < 4 else None)
    found = audit(folder)
    assert not [fault for fault in found.faults if "never" in fault]
    assert [epoch.complete for epoch in found.epochs] == [True, False]


def test_command(folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    def exit_code(*words: str) -> Any:
        monkeypatch.setattr("sys.argv", ["ddpsched", "audit", *words])
        with pytest.raises(SystemExit) as ended:
            main()
        return ended.value.code

    assert exit_code(str(folder)) == 0
    assert "every sample was trained once" in capsys.readouterr().out
    assert exit_code(str(folder), "--json") == 0
    assert json.loads(capsys.readouterr().out)["num_steps"] == STEPS
    rewrite(folder, lambda step, ranks: [ranks[0][1:], ranks[1]] if step == 0 else ranks)
    assert exit_code(str(folder)) == 1
    assert "FAULT: epoch 0: 1 of 30 samples were never trained" in capsys.readouterr().out
    assert exit_code(str(folder / "none")) == 1
    assert "it has no environment.json; give outputs/STUDY/RUN" in capsys.readouterr().err


def test_ledger_of_other_data_is_refused(folder: Path) -> None:
    environment = json.loads((folder / "environment.json").read_text())
    (folder / "environment.json").write_text(json.dumps({**environment, "num_samples": 5}))
    with pytest.raises(DataError, match="the data has 5 samples, 0 to 4"):
        audit(folder)


def test_done_run_without_a_ledger_is_refused(folder: Path) -> None:
    (folder / LEDGER).unlink()
    with pytest.raises(DataError, match=r"has no ledger\.jsonl"):
        audit(folder)


def killed(folder: Path) -> None:
    (folder / "status.json").write_text(json.dumps({"state": "failed", "reason": "killed"}))


def cut_lines(path: Path, lines: int) -> None:
    path.write_bytes(b"".join(path.read_bytes().splitlines(keepends=True)[:lines]))


@pytest.mark.parametrize("left", [0, 2])
def test_a_ledger_that_was_cut_off_is_found_by_the_records(folder: Path, left: int) -> None:
    killed(folder)
    cut_lines(folder / LEDGER, left)
    faults = audit(folder).faults
    assert faults == [
        f"{2 * (STEPS - left - 1)} records are of no step of the ledger, first that of step {left + 1}, rank 0"
    ]


def test_a_step_that_was_about_to_be_committed_is_no_fault(folder: Path) -> None:
    killed(folder)
    cut_lines(folder / LEDGER, STEPS - 1)
    assert audit(folder).faults == []


def test_ledger_and_records_cut_off_alike_are_found_by_the_runs_end(folder: Path) -> None:
    cut_lines(folder / LEDGER, STEPS - 3)
    cut_lines(folder / "records-rank0.jsonl", 2 * (STEPS - 3))
    assert f"the ledger holds {STEPS - 3} steps, but the run's end is after {STEPS}" in audit(folder).faults


def test_another_ledger_is_found_by_the_runs_end(folder: Path) -> None:
    rewrite(folder, lambda step, ranks: [ranks[0][::-1], ranks[1]] if step == 0 else ranks)
    assert f"step {STEPS - 1} of the ledger is not the one that the run's end was after" in audit(folder).faults


def test_a_ledger_that_was_cut_off_is_found_by_a_checkpoint(tmp_path: Path) -> None:
    train = {"checkpoint_every": 2}
    folder = run(config_of(tmp_path, train=train, steps=4, data={"size": SIZE}))
    assert audit(folder).faults == []
    killed(folder)
    cut_lines(folder / LEDGER, 1)
    cut_lines(folder / "records-rank0.jsonl", 2)
    assert audit(folder).faults == ["the ledger holds 1 steps, but checkpoint step-00000004 is after 4"]
    for path in folder.glob("checkpoints/*/manifest.json"):
        path.write_text("{}")
    assert "the ledger cannot be compared with a checkpoint: every checkpoint is damaged" in audit(folder).faults[0]


def test_an_epoch_that_is_passed_over_is_named(folder: Path) -> None:
    read = list(entries(folder))
    (folder / LEDGER).unlink()
    ledger = Ledger(folder, Head())
    for entry in read:
        flat, sizes = [each for rank in entry.ranks for each in rank], [[len(rank)] for rank in entry.ranks]
        ledger.commit(StepPlan.cut(3 * entry.epoch, entry.step, flat, sizes), skipped=False)  # type: ignore[arg-type]
    ledger.close()
    assert "step 3 is of epoch 3, after one of epoch 0" in audit(folder).faults


@pytest.mark.parametrize(
    ("key", "value", "fault"),
    [
        ("starts", [1, 2], "starts: 0 = 1"),
        ("starts", {"a": 1}, "starts: the whole"),
        ("starts", None, "starts: the whole"),
        ("starts", [{"step": -1, "at": "", "world_size": 1}], r"starts: 0\.step = -1"),
        ("num_samples", 10**12, r"num_samples = 1000000000000: must be from 1 to 1,000,000,000"),
        ("num_samples", "30", "num_samples = '30'"),
    ],
)
def test_an_environment_that_no_run_wrote_is_refused(folder: Path, key: str, value: Any, fault: str) -> None:
    environment = json.loads((folder / "environment.json").read_text())
    (folder / "environment.json").write_text(json.dumps({**environment, key: value}))
    with pytest.raises(DataError, match=rf"environment\.json: {fault}"):
        audit(folder)


def test_what_skipped_steps_ran_is_not_called_trained(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    test_skipped_steps_are_declared(folder)
    environment = json.loads((folder / "environment.json").read_text())
    environment["ledger"] = list(entries(folder))[-1].head
    (folder / "environment.json").write_text(json.dumps(environment))
    assert answer(folder, as_json=False)
    assert "every sample was run once, 12 of them in skipped steps, which train nothing" in capsys.readouterr().out


def test_nothing_trained_is_not_called_trained_once(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    killed(folder)
    for name in (LEDGER, "records-rank0.jsonl"):
        cut_lines(folder / name, 0)
    assert answer(folder, as_json=False)
    assert "0 steps; nothing was trained" in capsys.readouterr().out
