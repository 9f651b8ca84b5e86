"""The gradient of each step where ranks are started by mp.spawn, last steps included."""

import os
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from launched import EPOCHS, NUM_SAMPLES, gradient, model, sampler, summed_loss, worst_error
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader

from ddpsched import BatchSampler, World, scaled


def spawned(rank: int, ranks: int, made: BatchSampler, folder: Path) -> None:
    assert "RANK" not in os.environ
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=ranks)
    net = DistributedDataParallel(model())
    loader = DataLoader(range(NUM_SAMPLES), batch_sampler=made)  # type: ignore[arg-type]
    record = []
    for _ in range(EPOCHS):
        for ids, scale in scaled(loader):
            net.zero_grad()
            (scale * summed_loss(net, ids)).backward()
            record.append((ids.tolist(), scale, gradient(net)))
    torch.save(record, folder / f"rank{rank}")
    dist.barrier()
    os._exit(0)  # gloo may abort a process that ends in order


@pytest.mark.parametrize("ranks", [2, pytest.param(4, marks=pytest.mark.slow)])
def test_spawned_processes(ranks: int, tmp_path: Path) -> None:
    """The sampler is made before there are ranks, and still gives each the lists of its own."""
    mp.spawn(spawned, (ranks, sampler(), tmp_path), ranks)
    for rank in range(ranks):
        expected = sampler(world=World(rank, ranks))
        lists = []
        for epoch in range(EPOCHS):
            expected.set_epoch(epoch)
            lists += list(expected)
        assert [ids for ids, _, _ in torch.load(tmp_path / f"rank{rank}")] == lists
    error = worst_error(tmp_path, ranks)
    print(f"mp.spawn, {ranks} ranks: {error:.1e}")
    assert error < 1e-12
