"""verl's two functions by balance: the same arguments and form of results as verl's own, where that is installed."""

import inspect
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist
from hypothesis import given, settings
from hypothesis import strategies as st
from ranks import run_ranks

from ddpsched.errors import PeerMissing
from ddpsched.peers.packages import need_alone
from experiments.benchmarks.rollouts import rollouts
from experiments.examples.verl_partitions import get_seqlen_balanced_partitions, rearrange_micro_batches

WITHOUT = ("verl.protocol", "verl.utils.tensordict_utils", "verl.utils.device")


@pytest.fixture(scope="module")
def original() -> Any:
    try:
        return need_alone("verl.utils.seqlen_balancing", "--no-deps verl==0.9.1", without=WITHOUT)
    except PeerMissing as error:
        pytest.skip(str(error))  # an optional package; `make peers` installs it, and runs this


def batch(lengths: Any) -> dict[str, torch.Tensor]:
    """Return ids that are each sample's number, padded, and their mask."""
    mask = (torch.arange(int(max(lengths))) < torch.tensor(lengths)[:, None]).long()
    return {"input_ids": mask * torch.arange(len(lengths))[:, None], "attention_mask": mask}


def largest(lengths: Any, parts: list[list[int]]) -> int:
    return max(int(np.asarray(lengths)[part].sum()) for part in parts)


@settings(max_examples=50, deadline=None)
@given(st.integers(1, 5), st.integers(1, 12), st.booleans(), st.data())
def test_partitions(parts: int, each: int, equal: bool, data: Any) -> None:
    lengths = data.draw(st.lists(st.integers(1, 100), min_size=parts * each, max_size=parts * each))
    found = get_seqlen_balanced_partitions(lengths, parts, equal)
    assert sorted(i for part in found for i in part) == list(range(len(lengths)))
    assert all(part and part == sorted(part) for part in found)
    assert not equal or {len(part) for part in found} == {each}


@settings(max_examples=50, deadline=None)
@given(st.lists(st.integers(1, 100), min_size=1, max_size=40), st.integers(100, 400), st.booleans())
def test_micro_batches(lengths: list[int], most: int, balanced: bool) -> None:
    micros, positions = rearrange_micro_batches(batch(lengths), most, use_dynamic_bsz_balance=balanced)
    assert sorted(i for part in positions for i in part) == list(range(len(lengths)))
    for micro, part in zip(micros, positions, strict=True):
        assert int(micro["attention_mask"].sum()) == sum(lengths[i] for i in part) <= most
        assert micro["input_ids"].max(dim=1).values.tolist() == part


def test_groups_a_least_number_and_a_multiple() -> None:
    lengths = rollouts(64, 0)
    _, positions = rearrange_micro_batches(batch(lengths), 40_000, force_group_size=4, min_num_micro_batch=5)
    assert len(positions) >= 5
    assert all(
        part[k : k + 4] == list(range(part[k], part[k] + 4)) for part in positions for k in range(0, len(part), 4)
    )
    assert len(rearrange_micro_batches(batch(lengths), 16_384, num_batches_divided_by=3)[1]) % 3 == 0
    with pytest.raises(ValueError, match="tokens, but max_token_len = 100; raise it"):
        rearrange_micro_batches(batch(lengths), 100)


def on_rank() -> list[int]:
    dist.init_process_group("gloo")
    lengths = rollouts(32, 0) if dist.get_rank() else rollouts(8, 1)
    counts = [len(rearrange_micro_batches(batch(lengths), 16_384, dp_group=dist.group.WORLD)[1])]
    counts.append(len(rearrange_micro_batches(batch(lengths), 16_384, dist.group.WORLD, same_micro_num_in_dp=False)[1]))
    try:
        rearrange_micro_batches(batch(lengths if dist.get_rank() else [5] * 8), 8, dp_group=dist.group.WORLD)
    except ValueError:
        counts.append(-1)
    return counts


def test_ranks_get_equal_numbers_and_raise_together() -> None:
    zero, one = run_ranks(on_rank, 2)
    assert zero[0] == one[0]
    assert zero[1] < one[1]
    assert zero[2] == one[2] == -1


def test_a_nested_batch() -> None:
    rows = [torch.full((length,), number) for number, length in enumerate([3, 9, 4, 5])]
    nested = {"input_ids": torch.nested.as_nested_tensor(rows, layout=torch.jagged)}
    micros, positions = rearrange_micro_batches(nested, 12)
    for micro, part in zip(micros, positions, strict=True):
        assert [int(row[0]) for row in micro["input_ids"].unbind()] == part


def test_as_verls_own(original: Any) -> None:
    for ours in (get_seqlen_balanced_partitions, rearrange_micro_batches):
        theirs = getattr(original, ours.__name__)
        assert list(inspect.signature(ours).parameters) == list(inspect.signature(theirs).parameters)
    for size, ranks in ((512, 8), (256, 16), (100, 7)):
        for seed in range(3):
            lengths = rollouts(size, seed).tolist()
            for equal in (False, True)[: 1 + (size % ranks == 0)]:
                mine = get_seqlen_balanced_partitions(lengths, ranks, equal)
                theirs = original.get_seqlen_balanced_partitions(lengths, ranks, equal)
                assert sorted(map(len, mine)) == sorted(map(len, theirs)) or not equal
                assert largest(lengths, mine) <= 1.001 * largest(lengths, theirs)
