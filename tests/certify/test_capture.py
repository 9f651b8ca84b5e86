"""Differences between two ranks' gradients are found wherever they are."""

from dataclasses import replace

import numpy as np
import torch
import torch.distributed as dist

from ddpsched.certify.capture import CapturedGradient, capture_gradient, collectives, counted, counts_of, difference
from ddpsched.certify.stream_checks import same_collectives
from ddpsched.local_ranks import answers, join_group, run_ranks


def captured(change: slice | None = None, by: float = 0.0, drop: bool = False) -> CapturedGradient:
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(30, 20), torch.nn.Linear(20, 3)).double()
    for parameter in model.parameters():
        parameter.grad = torch.randn_like(parameter)
    if change is not None:
        model[0].weight.grad.view(-1)[change] += by
    if drop:
        model[1].bias.grad = None
    return capture_gradient(model, coordinates=np.arange(0, 60, 20))


def test_differences_outside_the_sketch_are_seen() -> None:
    first = captured()
    assert difference([first, captured()], 1e-12) is None
    assert difference([first, captured(slice(5, 6), 1e-14)], 1e-12) is None, "rounding"
    for change in (slice(5, 6), slice(100, 400)):
        result = difference([first, captured(change, 1e-3)], 1e-12)
        assert result is not None
        assert "rank 1 differs" in result[0]


def test_none_on_one_rank_and_zeros_on_another() -> None:
    dropped = captured(drop=True)
    result = difference([replace(dropped, missing=()), dropped], 1e-12)
    assert result is not None
    assert result[0] == "1.bias has grad = None on rank 1 and a gradient on rank 0"


def leaving() -> int:
    join_group(20)
    with counted("the step"):
        dist.all_reduce(torch.ones(1))
        dist.destroy_process_group()
    return collectives()


def test_a_group_that_is_gone_takes_no_verdict_with_it() -> None:
    outcomes = run_ranks(leaving, 2)
    assert answers(outcomes) == [0, 0]
    check = same_collectives([counts_of(outcome.posts) for outcome in outcomes])
    assert not check.holds
    assert "ranks 0, 1 destroyed the process group in the step" in check.says
