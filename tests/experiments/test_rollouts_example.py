"""The plain loop over rollouts: on real ranks, the gradient of the mean over prompts that one process takes."""

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.distributed as dist
from ranks import run_ranks
from torch.nn.parallel import DistributedDataParallel

from experiments.examples import rollouts

SCRIPT = Path(rollouts.__file__)


def gradient() -> np.ndarray:
    dist.init_process_group("gloo")
    model = DistributedDataParallel(rollouts.build_model())
    rollouts.step(model, *rollouts.build_batch())
    return np.concatenate([each.grad.numpy().ravel() for each in model.parameters() if each.grad is not None])


@pytest.mark.parametrize("size", [2, 3])
def test_the_gradient_is_that_of_one_process(size: int) -> None:
    rows, prompts, advantages = rollouts.build_batch()
    model, means = rollouts.build_model(), []
    for prompt in np.unique(prompts):
        members = np.flatnonzero(prompts == prompt)
        sums = [rollouts.answer_losses(model, [rows[i]], advantages[[i]]) for i in members]
        means.append(torch.cat(sums).sum() / sum(len(rows[i]) - rollouts.PROMPT for i in members))
    torch.stack(means).mean().backward()
    expected = np.concatenate([each.grad.numpy().ravel() for each in model.parameters() if each.grad is not None])
    for found in run_ranks(gradient, size):
        assert np.linalg.norm(found - expected) / np.linalg.norm(expected) <= 1e-12


@pytest.mark.slow
def test_under_torchrun(tmp_path: Path) -> None:
    launch = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", str(SCRIPT)]
    done = subprocess.run(launch, cwd=tmp_path, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert len(SCRIPT.read_text().splitlines()) < 90
