"""A run that was stopped goes on from its last checkpoint, and ends as the one that was not."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from runs import config_of, records_of
from transformers import AutoModelForSequenceClassification, AutoTokenizer

from ddpsched.config import RunConfig, parse
from ddpsched.errors import ConfigError, DataError
from ddpsched.recovery.audit import audit
from ddpsched.recovery.ledger import LEDGER, entries
from ddpsched.run_folder import read_status
from ddpsched.run_loop import run
from ddpsched.run_totals import Evaluations
from ddpsched.training import state
from ddpsched.training.optimise import Optimiser
from ddpsched.training.virtual import VirtualExecutor

STEPS, EVERY = 9, 2
POLICIES: dict[str, dict[str, Any]] = {
    "static": {},
    "minmax": {"prefetch": 12},
    "balanced": {"max_microbatches": 2},
    "packed": {},
    "lookahead": {"kind": "balanced", "lookahead": 3},
    "token_budget": {"max_tokens_for_batch": 120},
    "bins": {"median_batch": 8},
    "bins, replacement": {"kind": "bins", "median_batch": 8, "replacement": True},
    "pool": {"max_tokens_for_batch": 120, "pool_size": 16},
}


def config(outputs: Path, policy: str = "balanced", name: str = "run", **values: Any) -> RunConfig:
    """Return a run over two epochs, so that steps end within the second."""
    train = {"checkpoint_every": EVERY, "learning_rate": 1e-3, "eval_every": 3, **values.pop("train", {})}
    base = config_of(outputs, name=name, train=train, **{"steps": STEPS, "data": {"size": 60}, **values})
    return parse({**base.model_dump(exclude_none=True), "policy": {"kind": policy, **POLICIES.get(policy, {})}})


def weights(folder: Path) -> dict[str, torch.Tensor]:
    return AutoModelForSequenceClassification.from_pretrained(folder / "model").state_dict()


def assert_same_run(one: Path, other: Path) -> None:
    """Assert that weights, ledger, records but for times, and evaluations are equal to the last bit."""
    left, right = weights(one), weights(other)
    assert all(torch.equal(left[name], right[name]) for name in left)
    assert (one / LEDGER).read_bytes() == (other / LEDGER).read_bytes()
    assert (one / "evaluations.jsonl").read_bytes() == (other / "evaluations.jsonl").read_bytes()
    counted = [json.loads((folder / "environment.json").read_text()).get("num_never_run") for folder in (one, other)]
    assert counted[0] == counted[1]
    same = ["epoch", "step", "rank", "num_samples", "plan_hash", "loss", "grad_norm", "lr"]
    assert records_of(one)[same].equals(records_of(other)[same])


@pytest.mark.parametrize("policy", POLICIES)
def test_equals_the_run_that_was_not_stopped(tmp_path: Path, stopped: Any, policy: str) -> None:
    whole = run(config(tmp_path, policy, "whole"))
    cut = config(tmp_path, policy, "cut")
    stopped(cut, 7)
    assert read_status(cut.run_dir)["state"] == "failed"
    run(cut)
    assert_same_run(whole, cut.run_dir)
    assert [each["step"] for each in json.loads((cut.run_dir / "environment.json").read_text())["starts"]] == [0, 6]
    assert audit(cut.run_dir).faults == []


def test_may_be_stopped_again_and_again(tmp_path: Path, stopped: Any) -> None:
    whole, cut = run(config(tmp_path, name="whole")), config(tmp_path, name="cut")
    for at in (1, 3, 3, 5, 8):  # before the first checkpoint, twice at one place
        stopped(cut, at)
    run(cut)
    assert_same_run(whole, cut.run_dir)


@pytest.mark.parametrize("left_out", ["moments", "schedule", "weights"])
def test_comparison_fails_where_something_is_left_out(
    tmp_path: Path, stopped: Any, monkeypatch: pytest.MonkeyPatch, left_out: str
) -> None:
    whole, cut = run(config(tmp_path, name="whole")), config(tmp_path, name="cut")
    stopped(cut, 7)
    schedule, tensors = Optimiser.schedule, state.tensors_of
    if left_out == "schedule":
        monkeypatch.setattr(Optimiser, "schedule", lambda self, total, done=0: schedule(self, total))
    else:  # they are read, but not put back
        kept = f"{state.WEIGHTS}." if left_out == "moments" else "exp_avg"
        monkeypatch.setattr(
            state, "tensors_of", lambda *of: ((n, t if n.startswith(kept) else t.clone()) for n, t in tensors(*of))
        )
    run(cut)
    with pytest.raises(AssertionError):
        assert_same_run(whole, cut.run_dir)


def test_without_checkpoints_it_begins_anew(tmp_path: Path, stopped: Any) -> None:
    cut = config(tmp_path, train={"checkpoint_every": 0})
    stopped(cut, 5)
    run(cut)
    assert records_of(cut.run_dir)["step"].nunique() == STEPS
    assert len(json.loads((cut.run_dir / "environment.json").read_text())["starts"]) == 1


def test_restart_begins_anew(tmp_path: Path, stopped: Any) -> None:
    cut = config(tmp_path)
    stopped(cut, 5)
    run(cut, restart=True)
    assert len(json.loads((cut.run_dir / "environment.json").read_text())["starts"]) == 1


def test_another_config_is_refused_and_nothing_is_changed(tmp_path: Path, stopped: Any) -> None:
    cut = config(tmp_path)
    stopped(cut, 5)
    before = {path: path.read_bytes() for path in cut.run_dir.rglob("*") if path.is_file()}
    for values, named in (({"seed": 1}, "seed = 0, now 1"), ({"global_batch": 8}, "global_batch = 12, now 8")):
        with pytest.raises(ConfigError, match=f"begun with {named}; give the same to go on, --restart to begin anew"):
            run(config(tmp_path, **values))
    after = {path: path.read_bytes() for path in cut.run_dir.rglob("*") if path.is_file()}
    assert {path for path in before if before[path] != after.get(path)} <= {cut.run_dir / "status.json"}


def test_what_does_not_change_the_training_may_differ(tmp_path: Path, stopped: Any) -> None:
    cut = config(tmp_path)
    stopped(cut, 5)
    run(config(tmp_path, train={"checkpoint_every": 3, "keep": 1, "save_model": False}))
    assert not (cut.run_dir / "model").exists()
    assert [path.name for path in (cut.run_dir / "checkpoints").iterdir()] == [f"step-{STEPS:08d}"]


def test_checkpoint_without_its_ledger_is_refused(tmp_path: Path, stopped: Any) -> None:
    cut = config(tmp_path)
    stopped(cut, 5)
    (cut.run_dir / LEDGER).unlink()
    with pytest.raises(DataError, match="begin anew with --restart"):
        run(cut)


def test_run_that_was_stopped_after_its_last_step_only_ends(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    cut = config(tmp_path, steps=4)
    with monkeypatch.context() as patch:
        patch.setattr("ddpsched.run_loop.compact", _interrupt)
        with pytest.raises(KeyboardInterrupt):
            run(cut)
    monkeypatch.setattr(VirtualExecutor, "execute", lambda *_: pytest.fail("a step was run again"))
    run(cut)
    assert read_status(cut.run_dir)["state"] == "done"
    assert audit(cut.run_dir).num_steps == 4


@pytest.mark.parametrize("written", [False, True])
def test_run_that_was_stopped_in_its_last_evaluation_has_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, written: bool
) -> None:
    """The last checkpoint is written by then, so that no step is left; and no evaluation is there twice."""
    whole, cut = run(config(tmp_path, name="whole", steps=8)), config(tmp_path, name="cut", steps=8)
    add = Evaluations.add

    def stop(self: Evaluations, step: int, sums: Any) -> None:
        if written or step < 8:
            add(self, step, sums)
        if step == 8:
            raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(Evaluations, "add", stop)
        with pytest.raises(KeyboardInterrupt):
            run(cut)
    assert (cut.run_dir / "checkpoints" / "step-00000008").exists()
    run(cut)
    assert_same_run(whole, cut.run_dir)
    assert "of the 0 tokens" not in (cut.run_dir / "logs" / "rank0.log").read_text()


def _interrupt(_: Path) -> None:
    raise KeyboardInterrupt


@pytest.mark.parametrize("every", [EVERY, STEPS], ids=["within", "at the end"])
def test_full_disk_while_a_checkpoint_is_written_ends_the_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, every: int
) -> None:
    def full(*_: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("ddpsched.training.state.save_file", full)
    with pytest.raises(Exception, match="no space left"):
        run(config(tmp_path, train={"checkpoint_every": every}))
    assert read_status(config(tmp_path).run_dir)["state"] == "failed"


def test_trained_model_is_read_by_transformers(tmp_path: Path) -> None:
    folder = run(config(tmp_path, "packed"))
    model = AutoModelForSequenceClassification.from_pretrained(folder / "model")
    tokenizer = AutoTokenizer.from_pretrained(folder / "model")
    batch = tokenizer(["a superb film .", "dull"], padding=True, return_tensors="pt")
    assert model(**batch).logits.shape == (2, 2)


def test_simulated_run_refuses_checkpoints(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="a simulated run trains no model"):
        parse({"steps": 2, "executor": {"kind": "simulated"}, "train": {"checkpoint_every": 1}})


SAME_BATCHES = ("static", "balanced", "packed", "lookahead", "token_budget", "bins")  # under any world size


@pytest.mark.parametrize("policy", [*SAME_BATCHES, "minmax", "pool"])
@pytest.mark.parametrize(
    "sizes", [(4, 1, 3), *(pytest.param(sizes, marks=pytest.mark.slow) for sizes in ((4, 3), (2, 5)))], ids=str
)
def test_another_world_size_trains_each_sample_once(
    tmp_path: Path, stopped: Any, policy: str, sizes: tuple[int, ...]
) -> None:
    first, *others = [config(tmp_path, policy, "cut", world_size=size) for size in sizes]
    at = 3
    stopped(first, at)
    for each in others[:-1]:
        at += 2
        stopped(each, at)
    folder = run(others[-1])
    found = audit(folder)
    assert found.faults == []
    assert [start["world_size"] for start in found.starts] == list(sizes)
    assert sum(epoch.num_trained for epoch in found.epochs) == sum(len(ids) for e in entries(folder) for ids in e.ranks)
    if policy in SAME_BATCHES:
        whole = run(config(tmp_path, policy, "whole", world_size=sizes[0]))
        assert batches(whole) == batches(folder)


def batches(folder: Path) -> list[list[int]]:
    """Return the sorted samples of each step, whichever rank ran them."""
    return [sorted(each for rank in entry.ranks for each in rank) for entry in entries(folder)]
