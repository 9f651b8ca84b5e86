"""TRL's GRPO on two ranks, with its own micro-batches and with balanced ones: the same weights afterwards."""

import tempfile
import time
from typing import Any

import numpy as np
import pytest
from ranks import run_ranks

# an optional package; `make peers` installs it, and runs this
pytest.importorskip("trl", reason="pip install --no-deps trl==1.16.0")
pytest.importorskip("accelerate", reason="transformers' Trainer, TRL's base, needs accelerate")

STEPS = 4


def trained(balanced: bool, accumulation: int, generation: int) -> tuple[np.ndarray, list[tuple[int, int]]]:
    """Return this rank's weights after training, and (samples, tokens with padding) of each micro-batch."""
    from datasets import Dataset
    from trl import GRPOConfig, GRPOTrainer

    from experiments.examples.trl_grpo import BalancedGRPOTrainer, tiny

    model, tokenizer = tiny()
    shapes = list[tuple[int, int]]()
    base: Any = BalancedGRPOTrainer if balanced else GRPOTrainer

    class Noted(base):
        def _compute_loss(self, net: Any, inputs: Any) -> Any:
            ids = inputs["completion_ids"]
            shapes.append((len(ids), ids.numel() + inputs["prompt_ids"].numel()))
            return super()._compute_loss(net, inputs)

    with tempfile.TemporaryDirectory() as folder:
        config = GRPOConfig(
            folder, max_steps=STEPS, per_device_train_batch_size=4, gradient_accumulation_steps=accumulation,
            steps_per_generation=generation, num_generations=4, max_completion_length=100, loss_type="dapo",
            use_cpu=True, report_to=[], save_strategy="no", learning_rate=1e-3, max_grad_norm=1e9, disable_tqdm=True,
            optim="sgd", logging_strategy="no",
        )  # fmt: skip
        data = Dataset.from_dict({"prompt": ["a fine film", "no story", "the cast is good and the music too"] * 8})
        reward = [lambda completions, **_: [float(len(each)) for each in completions]]
        Noted(model, reward, config, data, processing_class=tokenizer).train()
    time.sleep(0.1)  # for gloo's threads
    return np.concatenate([each.detach().double().flatten().numpy() for each in model.parameters()]), shapes


def test_the_weights_are_trls() -> None:
    """Where a step is a generation its samples are the same, in other micro-batches."""
    own, ours = (run_ranks(trained, 2, balanced, 2, 2, timeout_s=200) for balanced in (False, True))
    first = own[0][0]
    for weights, _ in (*own[1:], *ours):
        assert np.linalg.norm(weights - first) / np.linalg.norm(first) <= 1e-6
    sizes = [{count for count, _ in shapes} for _, shapes in ours]
    assert any(len(each) > 1 for each in sizes), "micro-batches of other sizes"
    padded = [sum(tokens for rank in ran for _, tokens in rank[1]) for ran in (own, ours)]
    assert padded[1] < padded[0], "cut to their own longest answer"


def test_a_generation_of_several_steps_runs() -> None:
    for weights, shapes in run_ranks(trained, 2, True, 1, 2, timeout_s=200):
        assert np.isfinite(weights).all()
        assert len(shapes) == STEPS
