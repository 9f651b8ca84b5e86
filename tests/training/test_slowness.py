"""A rank of declared slowness takes longer and changes nothing else.

``pytest -rP tests/training/test_slowness.py`` prints the times.
"""

import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from gradients import kept_gradients
from ranks import free_port, run_ranks
from runs import records_of

from ddpsched.config import RunConfig, parse
from ddpsched.run_loop import run
from ddpsched.step_plan import Microbatch, StepPlan
from ddpsched.training.collate import Collator
from ddpsched.training.learner import Learner
from ddpsched.training.virtual import VirtualExecutor

CPU = torch.device("cpu")


def config_of(outputs: Path, executor: str, slowness: list[float] | None, sync: str = "ddp", **more: Any) -> RunConfig:
    """Return a config with dropout on, so that an extra random draw would show."""
    return parse(
        {
            "name": f"{executor}-{'slow' if slowness else 'even'}",
            "outputs": str(outputs),
            "steps": 3,
            "global_batch": 10,
            "world_size": 2,
            "data": {"size": 64},
            "model": {"dropout": 0.3},
            "policy": {"kind": "balanced"},
            "sync": {"kind": sync},
            "executor": {"kind": executor, **({"slowness": slowness} if slowness else {})},
            "train": {"learning_rate": 1e-3},
            **more,
        }
    )


def gradients(config: RunConfig) -> list[np.ndarray]:
    """Return the gradients of every step, as the optimizer gets them."""
    with kept_gradients() as kept:
        run(config, overwrite=True)
    return kept


def assert_equal(found: list[np.ndarray], expected: list[np.ndarray]) -> None:
    assert len(found) == len(expected) == 3
    for one, other in zip(found, expected, strict=True):
        np.testing.assert_array_equal(one, other)


def test_virtual_gradients_stay(tmp_path: Path) -> None:
    expected = gradients(config_of(tmp_path, "virtual", None))
    assert_equal(gradients(config_of(tmp_path, "virtual", [2.5, 1.3])), expected)
    even, slow = (records_of(tmp_path / "runs" / f"virtual-{name}") for name in ("even", "slow"))
    assert slow["loss"].tolist() == even["loss"].tolist()
    assert slow["plan_hash"].tolist() == even["plan_hash"].tolist()


CASES = [(sync, slowness) for sync in ("ddp", "naive") for slowness in (None, [1.0, 2.5])]


def every_case(outputs: Path, ports: list[int]) -> list[list[np.ndarray]]:
    """Return one rank's gradients for both synchronisers, with equal ranks and with a slow second one."""
    found = []
    for port, (sync, slowness) in zip(ports, CASES, strict=True):
        os.environ["MASTER_PORT"] = str(port)  # a rendezvous is not used twice
        found.append(gradients(config_of(outputs, "distributed", slowness, sync)))
    return found


@pytest.mark.slow
def test_gloo_gradients_stay(tmp_path: Path) -> None:
    for ddp, slow_ddp, naive, slow_naive in run_ranks(every_case, 2, tmp_path, [free_port() for _ in CASES]):
        assert_equal(slow_ddp, ddp)
        assert_equal(slow_naive, naive)


class Counting(torch.nn.Module):
    """A classifier that counts its forward passes in a buffer."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = torch.nn.Embedding(2000, 2)
        self.dropout = torch.nn.Dropout(0.5)
        self.register_buffer("calls", torch.zeros(()))
        self.seen: list[int] = []

    def forward(self, input_ids: torch.Tensor, attention_mask: torch.Tensor) -> Any:
        self.calls += 1
        self.seen.append(len(input_ids))
        logits = (self.dropout(self.embedding(input_ids)) * attention_mask[..., None]).sum(1)
        return type("Output", (), {"logits": logits})


def step_of(slowness: float) -> tuple[Counting, torch.Tensor, Any]:
    """Run one step of two micro-batches, three and one samples, and draw the next random number."""
    config = parse({"steps": 1, "data": {"size": 20}})
    learner = Learner(config, config.load_samples(), CPU)
    torch.manual_seed(0)
    learner.model = learner.forward = model = Counting()
    micro = [Microbatch([3, 1, 2]), Microbatch([7])]
    step = learner.run(micro, lambda: 1 / 4, seed=5, slowness=slowness)
    return model, torch.rand(3), step.columns(learner.clock, 4)


def test_buffers_and_random_numbers_stay() -> None:
    even, drawn, columns = step_of(1.0)
    slow, drawn_slow, columns_slow = step_of(2.5)
    assert even.seen == [3, 1]
    assert slow.seen == [3, 2, 3, 1, 1, 1], "each micro-batch once more, half of it again, then in earnest"
    assert float(even.calls) == float(slow.calls) == 2
    assert torch.equal(drawn, drawn_slow)
    assert torch.equal(even.embedding.weight.grad, slow.embedding.weight.grad)
    assert columns["loss"] == columns_slow["loss"]
    shares = [
        (columns["data_s"] + columns["forward_s"] + columns["backward_s"]) / columns["compute_s"]
        for columns in (columns_slow, *(step_of(2.5)[2] for _ in range(4)))  # other processes may interrupt one of them
    ]
    assert 0.5 < max(shares) <= 1, "the repetitions have their columns"


def test_the_longest_is_among_the_repeated() -> None:
    samples = parse({"steps": 1, "data": {"size": 64}}).load_samples()
    collate = Collator(samples.train, samples.dataset.train.labels, samples.pad_id, CPU)
    ids = np.arange(9)
    lengths = samples.train.lengths(ids)
    for count in range(1, 10):
        some = collate.some(ids, count)
        assert len(set(some.tolist())) == count
        assert samples.train.lengths(some).max() == lengths.max()
    assert collate(collate.some(ids, 5)).input_ids.shape == (5, lengths.max())
    half = samples.train.lengths(collate.some(ids, 5)).sum()
    assert abs(half - 5 / 9 * lengths.sum()) <= lengths.max()


@pytest.mark.parametrize("packed", [False, True])
def test_twice_the_time(tmp_path: Path, packed: bool) -> None:
    """Two ranks run samples of the same lengths, and one is declared twice as slow."""
    config = config_of(tmp_path, "virtual", [1.0, 2.0], policy={"kind": "packed" if packed else "balanced"})
    samples = config.load_samples()
    lengths = samples.train.lengths(np.arange(64))
    length = np.bincount(lengths).argmax()
    ids = np.flatnonzero(lengths == length)
    half = len(ids) // 2
    assert half >= 2
    executor = VirtualExecutor(config, samples)
    seconds = []
    for number in range(40):
        ranks = tuple((Microbatch(part, packed),) for part in (ids[:half], ids[half : 2 * half]))
        seconds.append([record.compute_s for record in executor.execute(StepPlan(0, number, ranks))])
    even, slow = np.median(np.array(seconds), axis=0)
    print(f"packed {packed}: {half} samples of {length} tokens in {1e3 * even:.2f} ms, twice as slow {1e3 * slow:.2f}")
    assert slow > 1.5 * even


def test_simulated_seconds(tmp_path: Path) -> None:
    for slowness in (None, [1.0, 2.5]):
        run(config_of(tmp_path, "simulated", slowness))
    even, slow = (records_of(tmp_path / "runs" / f"simulated-{name}") for name in ("even", "slow"))
    factor = np.where(even["rank"] == 1, 2.5, 1.0)
    np.testing.assert_allclose(slow["compute_s"], factor * even["compute_s"])
