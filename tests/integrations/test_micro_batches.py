"""micro_batches in one process; on ranks it is part of the loops that people write."""

import torch
import torch.distributed as dist
from ranks import run_ranks
from torch.nn.parallel import DistributedDataParallel

from ddpsched import micro_batches
from ddpsched.errors import ConfigError


class Reduces(torch.nn.Linear):
    """A module with the switch of DistributedDataParallel."""

    require_backward_grad_sync = True


def test_the_last_batch_alone_reduces() -> None:
    model = Reduces(1, 1)
    assert [(batch, model.require_backward_grad_sync) for batch in micro_batches(model, "abc")] == [
        ("a", False), ("b", False), ("c", True),
    ]  # fmt: skip


def test_a_loop_that_is_left_leaves_the_model_as_it_was() -> None:
    model = Reduces(1, 1)
    batches = micro_batches(model, "abc")
    next(batches)
    batches.close()
    assert model.require_backward_grad_sync


def test_one_process_needs_no_wrapper() -> None:
    assert list(micro_batches(torch.nn.Linear(1, 1), [1, 2])) == [1, 2]


def bare() -> list[str]:
    dist.init_process_group("gloo")
    model = torch.nn.Linear(1, 1)
    found = []
    for each in (model, DistributedDataParallel(model), torch.compile(DistributedDataParallel(model))):
        try:
            found.append(str(len(list(micro_batches(each, [1, 2])))))
        except ConfigError as error:
            found.append(str(error))
    return found


def test_on_ranks_the_wrapper_is_needed() -> None:
    for refused, *others in run_ranks(bare, 2):
        assert "Linear is neither DistributedDataParallel nor of fully_shard" in refused
        assert others == ["2", "2"]
