"""The library's front: plans of one rank inside a loop of the user's own."""

from collections import Counter
from itertools import chain

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader

from ddpsched import BatchSampler, World
from ddpsched.errors import ConfigError, DataError
from ddpsched.planning.lengths import sst2_lengths

LENGTHS = sst2_lengths(103, np.random.default_rng(0))


@pytest.mark.parametrize("policy", ["static", "minmax", "balanced"])
def test_ranks_share_every_epoch_and_the_scale_is_the_plans(policy: str) -> None:
    ranks = [BatchSampler(LENGTHS, 16, World(r, 4), policy=policy) for r in range(4)]
    orders = []
    for epoch in range(2):
        for rank in ranks:
            rank.set_epoch(epoch)
        steps = list(zip(*ranks, strict=True))
        assert len(steps) == len(ranks[0]) == 7
        assert Counter(i for step in steps for ids in step for i in ids) == Counter(range(103))
        for index, step in enumerate(steps):
            assert ranks[0].sum_scale(index) == 4 / sum(map(len, step))
        orders.append([sorted(i for ids in step for i in ids) for step in steps])
    assert orders[0] != orders[1], "another epoch is another order"


def test_summed_losses_through_data_loaders_add_up_to_the_mean_over_the_global_batch() -> None:
    data, weight = torch.randn(103, 3, dtype=torch.float64), torch.ones(3, dtype=torch.float64, requires_grad=True)
    samplers = [BatchSampler(LENGTHS, 16, World(r, 4)) for r in range(4)]
    loaders = [DataLoader(data, batch_sampler=sampler) for sampler in samplers]
    for index, (batches, ids) in enumerate(zip(zip(*loaders, strict=True), zip(*samplers, strict=True), strict=True)):
        shares = [
            torch.autograd.grad(((x @ weight) ** 2).sum() * samplers[0].sum_scale(index), weight)[0] for x in batches
        ]
        (expected,) = torch.autograd.grad(((data[list(chain(*ids))] @ weight) ** 2).mean(), weight)
        torch.testing.assert_close(torch.stack(shares).mean(0), expected, rtol=1e-12, atol=0)


def test_bad_arguments() -> None:
    for lengths, words in (([], "flat array"), ([1.5, 2.0], "integers"), ([3, 0], r"lengths\[1\] = 0")):
        with pytest.raises(DataError, match=words):
            BatchSampler(lengths, 2, World(0, 2))
    with pytest.raises(ConfigError, match="global_batch = 1 is smaller than world_size = 2"):
        BatchSampler([3, 4], 1, World(0, 2))
    with pytest.raises(IndexError, match="step 7 of an epoch of 7"):
        BatchSampler(LENGTHS, 16, World(0, 4)).sum_scale(7)
