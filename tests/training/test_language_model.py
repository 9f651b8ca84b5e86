"""Runs of a language model: every executor, records, the waits within a step, and measured devices."""

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from prompted import write_prompted
from ranks import free_port, run_ranks
from runs import config_of, records_of

from ddpsched.config import RunConfig, parse
from ddpsched.costs.calibration_grid import calibration_grid
from ddpsched.errors import ConfigError
from ddpsched.run_loop import run
from ddpsched.step_plan import Microbatch
from ddpsched.training.calibrate import identity_of, max_count, measure
from ddpsched.training.group_exchange import GroupExchange, Sum
from ddpsched.training.learner import Learner

CPU = torch.device("cpu")
TASK = {"task": "causal_lm"}


def test_the_embedded_default_is_learnt(tmp_path: Path) -> None:
    config = config_of(tmp_path, "virtual", "balanced", model=TASK, steps=60, train={"learning_rate": 5e-3})
    rows = records_of(run(config))
    losses = rows.groupby("step")[["loss", "num_targets"]].apply(
        lambda step: np.average(step["loss"], weights=step["num_targets"])
    )
    print(f"loss {losses[:5].mean():.2f}, after 55 steps {losses[-5:].mean():.2f}")
    assert losses[-5:].mean() < losses[:5].mean() - 1
    assert (rows["num_targets"] == rows["num_tokens"] - rows["num_samples"]).all()


def every_target(outputs: Path, ports: list[int]) -> None:
    for port, target in zip(ports, ("token_mean", "sample_mean"), strict=True):
        os.environ["MASTER_PORT"] = str(port)  # a rendezvous is not used twice
        run(prompted(outputs, "distributed", target))


def prompted(outputs: Path, executor: str, target: str, **values: Any) -> RunConfig:
    data = write_prompted(outputs / "data")
    train = {"target": target, "learning_rate": 1e-3}
    return config_of(outputs, executor, "minmax", data=data, model=TASK, train=train, study=target, **values)


def test_three_executors(tmp_path: Path) -> None:
    write_prompted(tmp_path / "data")
    run_ranks(every_target, 2, tmp_path, [free_port() for _ in range(2)])
    for target in ("token_mean", "sample_mean"):
        for executor in ("virtual", "simulated"):
            run(prompted(tmp_path, executor, target))
        real, virtual, simulated = (
            records_of(tmp_path / target / f"minmax-{executor}") for executor in ("distributed", "virtual", "simulated")
        )
        assert real["plan_hash"].tolist() == virtual["plan_hash"].tolist() == simulated["plan_hash"].tolist()
        np.testing.assert_allclose(real["loss"], virtual["loss"], rtol=1e-4)
        np.testing.assert_allclose(real["grad_norm"], virtual["grad_norm"], rtol=1e-4)
        assert real["num_targets"].tolist() == virtual["num_targets"].tolist()
        assert (real["num_targets"] < real["num_tokens"] - real["num_samples"]).all(), "prompts are not learnt"
        assert simulated["num_targets"].isna().all()
        assert simulated["loss"].isna().all()
    means = [records_of(tmp_path / target / "minmax-virtual")["loss"] for target in ("token_mean", "sample_mean")]
    assert abs(means[0] - means[1]).max() > 1e-3, "a mean over tokens, and one over samples"
    classifier = records_of(run(config_of(tmp_path, "virtual", "static")))
    assert classifier["num_targets"].isna().all()


def test_every_row_as_long_as_asked(tmp_path: Path) -> None:
    rows = {}
    for pad_to in ("longest", "max_length"):
        data = {"pad_to": pad_to, "max_length": 40}
        rows[pad_to] = records_of(run(config_of(tmp_path, "virtual", "static", data=data, model=TASK, study=pad_to)))
    filled, longest = rows["max_length"], rows["longest"]
    assert (filled["padded_tokens"] == 40 * filled["num_samples"]).all()
    assert (longest["padded_tokens"] < filled["padded_tokens"]).any()
    np.testing.assert_allclose(filled["loss"], longest["loss"], rtol=0.02)  # dropout masks have other shapes


def learner_of(config: RunConfig) -> Learner:
    return Learner(config, config.load_samples(), CPU)


def test_the_scale_is_asked_for_between_forward_and_backward(monkeypatch: pytest.MonkeyPatch) -> None:
    """Label tokens are summed over ranks while forward runs."""
    calls: list[str] = []
    honest: Callable[..., torch.Tensor] = Learner.loss_sum

    def forward(self: Learner, batch: Any) -> torch.Tensor:
        calls.append("forward")
        loss = honest(self, batch)
        loss.register_hook(lambda gradient: calls.append("backward"))
        return loss

    def scale() -> float:
        calls.append("scale")
        return 0.5

    monkeypatch.setattr(Learner, "loss_sum", forward)
    learner = learner_of(parse({"steps": 1, "data": {"size": 20}, "model": TASK}))
    learner.run([Microbatch([1, 2]), Microbatch([3])], scale, seed=0)
    assert calls == ["forward", "scale", "backward"] * 2


def waits(outputs: Path, ports: list[int]) -> dict[str, list[str]]:
    """Record on one rank when the sum is read, for each target."""
    found = {}
    summed, wait, loss_sum, vote = GroupExchange.sum_batch, Sum.wait, Learner.loss_sum, GroupExchange.vote
    for port, target in zip(ports, ("token_mean", "sample_mean"), strict=True):
        os.environ["MASTER_PORT"] = str(port)
        calls: list[str] = []
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(GroupExchange, "sum_batch", lambda *a, t=calls: t.append(f"sum of {len(a[1])}") or summed(*a))
            patch.setattr(Sum, "wait", lambda self, t=calls: t.append("wait") or wait(self))
            patch.setattr(Learner, "loss_sum", lambda *a, t=calls: t.append("forward") or loss_sum(*a))
            patch.setattr(GroupExchange, "vote", lambda *a, t=calls: t.append("vote") or vote(*a))
            run(prompted(outputs, "distributed", target, steps=1, name="waits"))
        found[target] = calls[calls.index("sum of 3") :]
    return found


def test_only_label_tokens_are_waited_for_before_backward(tmp_path: Path) -> None:
    write_prompted(tmp_path / "data")
    for found in run_ranks(waits, 2, tmp_path, [free_port() for _ in range(2)]):
        assert found["token_mean"][:5] == ["sum of 3", "forward", "wait", "wait", "vote"]
        assert found["sample_mean"][:4] == ["sum of 3", "forward", "wait", "vote"]


def test_a_slow_rank_changes_nothing_else(tmp_path: Path) -> None:
    even = prompted(tmp_path, "virtual", "token_mean")
    slowness = even.executor.model_copy(update={"slowness": [2.5, 1.0]})
    slow = even.model_copy(update={"executor": slowness, "name": "slow"})
    even, slow = records_of(run(even)), records_of(run(slow))
    assert slow["loss"].tolist() == even["loss"].tolist()
    assert slow["grad_norm"].tolist() == even["grad_norm"].tolist()


@pytest.mark.parametrize("mask", ["key_padding", "per_sample"])
def test_a_device_is_measured_with_language_model_batches(mask: str) -> None:
    """All tokens of a synthetic batch are labels, and the loss counts them."""
    config = parse(
        {"steps": 1, "data": {"size": 20, "max_length": 16}, "model": {**TASK, "mask": mask}, "global_batch": 8}
    )
    learner = learner_of(config)
    batch = learner.collate.synthetic(3, 7, shorter=1)
    with torch.no_grad():
        loss = float(learner.loss_sum(batch))
    assert loss == pytest.approx(17 * np.log(learner.model.config.vocab_size), rel=0.2)
    points = measure(learner, calibration_grid(4, 16, 64), passes=1)
    assert all(point.seconds for point in points)
    shape = identity_of(config, learner).shape or {}
    assert (shape["class"], shape["resid_pdrop"]) == ("GPT2LMHeadModel", 0.1)
    assert shape.get("mask") == (None if mask == "key_padding" else mask)
    budget = {"probe": True, "budget_bytes": 2**40}
    memory = parse({"steps": 1, "memory": budget}).memory
    assert 1 <= max_count(learner, config.model_copy(update={"memory": memory})) <= 5


def test_a_classifier_has_no_label_tokens_to_weigh() -> None:
    with pytest.raises(ConfigError, match=r"train.target = 'token_mean' weighs label tokens, of which a classifier"):
        parse({"steps": 1, "train": {"target": "token_mean"}})
    with pytest.raises(ConfigError, match=r"data.prompt belong to model.task = 'causal_lm'"):
        parse({"steps": 1, "data": {"prompt": "question"}})
