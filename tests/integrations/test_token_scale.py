"""The scale of losses over label tokens: their mean over all ranks, however uneven."""

from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist
from ranks import run_ranks
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader

from ddpsched import BatchSampler, ConfigError, StepLoader, StepShare, scaled

LENGTHS = np.random.default_rng(0).integers(2, 30, 53)
WORDS = 11


def share(samples: int, world_size: int = 2, microbatches: int = 1) -> StepShare:
    return StepShare(0, 0, world_size, samples, 60, microbatches, num_samples=8)


def test_it_is_the_ranks_over_all_label_tokens() -> None:
    counted = []
    assert share(5).token_scale(7, agree=lambda count: counted.append(count) or 20) == 2 / 20
    alone = share(0, microbatches=0)
    assert alone.token_scale(7, agree=lambda count: counted.append(count) or 20) == 0, "a stand-in"
    assert counted == [7, 0], "and its tokens count nothing"
    assert share(0).token_scale(7, agree=lambda _: 20) == 2 / 20, "parts of samples that other ranks count"
    assert share(3, 1).token_scale(7) == 1 / 7
    assert share(3, 1).token_scale(0) == 0, "a step in which nothing is learnt"
    with pytest.raises(ConfigError, match=r"label tokens of 2 ranks .* there is none; initialise it, or give agree="):
        share(5).token_scale(7)


@pytest.mark.parametrize("given", [None, -3, "a", 2.7, torch.tensor(0.9)])
def test_a_count_that_is_none(given: Any) -> None:
    steps = scaled(BatchSampler(LENGTHS, global_batch=8), lambda batch: given)
    with pytest.raises(ConfigError, match=r"count\(batch\) returned .*, needs a whole number from 0 on"):
        next(iter(steps))


def sample(id: int) -> dict[str, torch.Tensor]:
    """Return tokens, the first of which are a prompt that is not learnt: another share of each sample."""
    tokens = torch.from_numpy(np.random.default_rng(int(id)).integers(0, WORDS, LENGTHS[id]))
    labels = tokens.clone()
    labels[: id % LENGTHS[id]] = -100
    return {"tokens": tokens, "labels": labels}


def collate(samples: list[dict[str, torch.Tensor]]) -> dict[str, torch.Tensor]:
    pad = torch.nn.utils.rnn.pad_sequence
    return {
        "tokens": pad([each["tokens"] for each in samples], batch_first=True),
        "labels": pad([each["labels"] for each in samples], batch_first=True, padding_value=-100),
    }


def count(batch: dict[str, torch.Tensor]) -> Any:
    return (batch["labels"][:, 1:] != -100).sum()


def model() -> torch.nn.Module:
    torch.manual_seed(0)
    return torch.nn.Sequential(torch.nn.Embedding(WORDS, 4), torch.nn.Linear(4, WORDS)).double()


def summed(model: Any, batch: dict[str, torch.Tensor]) -> torch.Tensor:
    logits = model(batch["tokens"])[:, :-1].flatten(0, 1)
    return torch.nn.functional.cross_entropy(logits, batch["labels"][:, 1:].flatten(), reduction="sum")


def trained(several: bool, counts: bool) -> list[list[float]]:
    """Return the gradients of each step of an epoch, on this rank."""
    dist.init_process_group("gloo")
    words: dict[str, Any] = {"global_batch": 8, "order": "sequential"}
    if several:
        policy = {"kind": "balanced", "max_microbatches": 3}
        loader: Any = StepLoader(list(map(sample, range(53))), LENGTHS, policy=policy, collate_fn=collate, **words)
    else:
        loader = DataLoader(
            list(map(sample, range(53))), batch_sampler=BatchSampler(LENGTHS, **words), collate_fn=collate
        )
    ddp, steps = DistributedDataParallel(model()), []
    for batch, scale in scaled(loader, count if counts else None):
        ddp.zero_grad()
        micros = (batch or [loader.stand_in()]) if several else [batch]
        for number, micro in enumerate(micros):
            ddp.require_backward_grad_sync = number + 1 == len(micros)
            (scale * summed(ddp, micro)).backward()
        steps.append(torch.cat([parameter.grad.flatten() for parameter in ddp.parameters()]).tolist())
    return steps


def errors(steps: list[Any]) -> list[float]:
    """Return each step's relative error, against one process that has the whole global batch."""
    found = []
    for number, gradients in enumerate(steps):
        whole = model()
        batch = collate([sample(id) for id in range(8 * number, min(53, 8 * number + 8))])
        (summed(whole, batch) / count(batch)).backward()
        exact = torch.cat([parameter.grad.flatten() for parameter in whole.parameters()])
        gap = torch.tensor(gradients, dtype=torch.float64) - exact
        found.append(float(gap.norm() / exact.norm()))
    return found


@pytest.mark.parametrize("several", [False, True])
@pytest.mark.parametrize("ranks", [2, 3])
def test_the_gradient_is_the_mean_over_label_tokens(several: bool, ranks: int) -> None:
    """With 3 ranks the last step has 5 samples, and with several micro-batches a rank may have none of them."""
    for each in run_ranks(trained, ranks, several, True):
        assert len(each) == 7
        assert max(errors(each)) <= 1e-12
    if ranks == 2:
        assert min(errors(run_ranks(trained, 2, several, False)[0])) > 1e-3, "by samples it is another mean"
