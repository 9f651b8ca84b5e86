"""All synchronisers give the gradient of one process with the whole global batch.

``pytest -rP tests/training/test_sync.py`` prints the differences.
"""

import itertools
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist
from ranks import run_ranks
from sync_steps import (
    CPU,
    DTYPES,
    KINDS,
    STEPS,
    TOLERANCE,
    Gradients,
    batches,
    distance,
    gradients,
    loss_of,
    make,
    reference,
    run_step,
)
from toy import VOCABULARY, Output, Toy, toy

from ddpsched.config import SyncConfig
from ddpsched.errors import RunError
from ddpsched.training.clock import Clock
from ddpsched.training.sync import SYNCS


def every_case() -> dict[Any, Any]:
    """Return one rank's gradients by kind, precision, accumulation and step, and without synchronisation."""
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    size, found = dist.get_world_size(), {}
    for kind in (*KINDS, "off"):
        for precision in ("float32", "float64"):
            for accumulation in (1, 2, 3, 4):
                model = toy(DTYPES[precision])
                sync = None if kind == "off" else make(kind, model)
                for step in range(STEPS):
                    key = kind, precision, accumulation, step
                    found[key] = run_step(model, sync, batches(step, size, accumulation))
                found[kind, "seen"] = float(model.seen)
    return found


@pytest.mark.parametrize(
    "world_size", [1, 2, pytest.param(3, marks=pytest.mark.slow), pytest.param(4, marks=pytest.mark.slow)]
)
def test_all_kinds(world_size: int) -> None:
    ranks = run_ranks(every_case, world_size)
    worst: dict[tuple[str, str], float] = {}
    for key, found in ranks[0].items():
        if len(key) == 2:
            continue
        kind, precision, accumulation, step = key
        expected = reference(step, world_size, accumulation)
        error = distance(found, expected)
        if kind == "off":
            alone = world_size == 1 or (world_size == 2 and step == 2)
            assert alone or error > 1e-2, f"{key}: nothing was synchronised, and the gradient does not show it"
            continue
        worst[kind, precision] = max(worst.get((kind, precision), 0.0), error)
        assert error <= TOLERANCE[precision], (key, error)
        unused = {name for name, gradient in expected.items() if gradient is None}
        missing = {name for name, gradient in found.items() if gradient is None}
        assert {"unused.weight", "unused.bias"} <= unused
        assert ("sometimes.weight" in unused) == (step == 1)
        if kind == "fsdp":  # zeros, as its docstring says
            assert all(not np.any(found[name]) for name in unused)
        elif kind == "ddp" and step == 2 and world_size > 1:
            assert missing <= unused
        else:
            assert missing == unused, key
        for other in ranks[1:]:
            for name, gradient in found.items():
                np.testing.assert_array_equal(gradient, other[key][name], err_msg=f"{key} {name}")
    for (kind, precision), error in worst.items():
        print(f"{world_size} ranks, {kind}, {precision}: {error:.1e}")
    for kind in KINDS:  # rank 0's count, not each rank's
        assert {rank[kind, "seen"] for rank in ranks} == {ranks[0][kind, "seen"]}
    if world_size > 1:
        assert len({rank["off", "seen"] for rank in ranks}) > 1


def low_precision() -> dict[str, tuple[Gradients, str, int]]:
    """Return gradients sent in a smaller dtype, and those of bfloat16 parameters, whose sums are kept in float32."""
    dist.init_process_group("gloo")
    found = {}
    for kind in KINDS:
        for wire in ("bfloat16", "float16"):
            model = toy(torch.float32)
            sync = make(kind, model, precision=wire)
            summed = run_step(model, sync, batches(0, 2, 2))
            found[f"{kind} {wire}"] = summed, str(model.turned.grad.dtype), sum(c.num_bytes for c in sync.log.take()[0])
        model = toy(torch.bfloat16)
        sync = make(kind, model)
        summed = run_step(model, sync, batches(1, 2, 4))
        found[f"{kind} parameters"] = summed, str(model.turned.grad.dtype), sum(c.num_bytes for c in sync.log.take()[0])
    return found


def test_low_precision() -> None:
    found = run_ranks(low_precision, 2)[0]
    for name, (gradient, dtype, num_bytes) in found.items():
        kind, what = name.split()
        error = distance(gradient, reference(*((1, 2, 4) if what == "parameters" else (0, 2, 2))))
        print(f"{name}: {error:.1e}, {num_bytes} bytes")
        assert 1e-6 < error <= TOLERANCE["bfloat16"], name
        assert dtype == ("torch.bfloat16" if what == "parameters" else "torch.float32"), name
        if what != "parameters":
            assert num_bytes < 0.75 * found[f"{kind} parameters"][2] or kind == "ddp", name
    assert found["bucketed bfloat16"][2] == found["bucketed float16"][2]
    assert found["bucketed parameters"][2] == 2 * found["bucketed bfloat16"][2]  # sums of bfloat16 travel in float32


def changed_on_rank_1() -> list[str]:
    """Return each rank's errors after parameters changed on rank 1, whose steps then join with zeros."""
    dist.init_process_group("gloo")
    messages = []
    for kind, change in itertools.product(KINDS[:4], (wider, joined, thawed)):
        model = toy(torch.float64)
        model.layers[0].bias.requires_grad_(False)
        sync = make(kind, model)
        run_step(model, sync, batches(0, 2, 2))
        if dist.get_rank() == 1:
            change(model)
        try:
            run_step(model, sync, batches(0, 2, 2))
            messages.append("")
        except RunError as error:
            messages.append(str(error))
            sync.join()
    return messages


def wider(model: Toy) -> None:
    model.turned.data = torch.zeros(VOCABULARY, 4, dtype=torch.float64)
    model.turned.grad = None


def joined(model: Toy) -> None:
    model.late = torch.nn.Linear(2, 2).double()


def thawed(model: Toy) -> None:
    model.layers[0].bias.requires_grad_(True)


def test_parameters_stay_the_same() -> None:
    first, second = run_ranks(changed_on_rank_1, 2)
    assert set(first) == {""}
    for wide, late, warm in zip(*[iter(second)] * 3, strict=True):
        assert "turned had shape (20, 3)" in wide
        assert "(20, 4) now" in wide
        assert "joined: late" in late
        assert "joined: layers.0.bias" in warm


def two_backwards() -> str:
    model = toy(torch.float64)
    sync = make("bucketed", model)
    batch = batches(1, 1, 1)[0][0]
    with pytest.raises(RunError) as refused, sync.synchronise():  # noqa: PT012 (both belong to what is refused)
        loss_of(model, batch).backward()
        loss_of(model, batch).backward()
    return str(refused.value)


def sparse_gradient() -> str:
    model = toy(torch.float64)
    model.embedding.sparse = True
    model.decoder.weight = torch.nn.Parameter(torch.ones(20, 8, dtype=torch.float64))
    sync = make("bucketed", model)
    with pytest.raises(RunError) as refused, sync.synchronise():
        loss_of(model, batches(1, 1, 1)[0][0]).backward()
    return str(refused.value)


def refusals() -> tuple[str, str]:
    dist.init_process_group("gloo")
    return two_backwards(), sparse_gradient()


def test_refusals_of_a_backward() -> None:
    [(twice, sparse)] = run_ranks(refusals, 1)
    assert "got a gradient after it was reduced" in twice
    assert "embedding.weight has a gradient of layout torch.sparse_coo" in sparse


def running_statistics() -> dict[str, Any]:
    """Return the running statistics of a batch normalisation before and after steps.

    Each rank's samples change them.
    """
    dist.init_process_group("gloo")
    found = {}
    for kind in KINDS:
        torch.manual_seed(0)
        model = Normalised()
        sync = SYNCS[kind](model, Clock(CPU), SyncConfig(kind=kind))
        fresh = model.norm.running_mean.clone()
        for step in (0, 1):
            for _ in range(2):
                with sync.synchronise():
                    loss_of(sync.module, batches(step, 2, 1)[dist.get_rank()][0]).backward()
                sync.wait()
                model.zero_grad(set_to_none=True)
        found[kind] = fresh.tolist(), model.norm.running_mean.tolist(), model.norm.training
    return found


class Normalised(torch.nn.Module):
    """A model whose batch normalisation changes its running statistics without raising their version."""

    def __init__(self) -> None:
        super().__init__()
        self.tokens = torch.nn.Embedding(VOCABULARY, 4)
        self.norm, self.head = torch.nn.BatchNorm1d(4), torch.nn.Linear(4, 3)

    def forward(self, input_ids: torch.Tensor, attention_mask: torch.Tensor) -> Output:
        return Output(self.head(self.norm(self.tokens(input_ids).mean(1))))


def test_running_statistics_are_rank_0s() -> None:
    first, second = run_ranks(running_statistics, 2)
    for kind in KINDS:
        fresh, mean, training = first[kind]
        assert fresh == [0.0] * 4, f"{kind}: building it moved them"
        assert training, kind
        assert any(mean), kind
        assert mean == second[kind][1], kind


def stray_gradient() -> str:
    dist.init_process_group("gloo")
    model = toy(torch.float64)
    sync = make("bucketed", model)
    loss_of(model, batches(1, 1, 1)[0][0]).backward()
    with pytest.raises(RunError) as refused:
        sync.wait()
    return str(refused.value)


def test_a_backward_outside_is_not_lost_in_silence() -> None:
    assert "made outside accumulate() and synchronise()" in run_ranks(stray_gradient, 1)[0]


def raises(parameter: torch.nn.Parameter) -> None:
    raise ValueError("this hook fails")


def hooks_that_raise() -> list[list[Gradients]]:
    dist.init_process_group("gloo")
    return [hook_that_raises(kind) for kind in KINDS[:3]]


def hook_that_raises(kind: str) -> list[Gradients]:
    """Return gradients of a step in which rank 1's hook fails and it joins with zeros, and of the next step."""
    model = toy(torch.float64)
    sync = make(kind, model)
    handle = None
    if dist.get_rank() == 1:
        handle = model.layers[0].weight.register_post_accumulate_grad_hook(raises)
    try:
        first = run_step(model, sync, batches(0, 2, 2))
        assert dist.get_rank() == 0
    except ValueError:
        sync.join()
        first = gradients(model)
    if handle is not None:
        handle.remove()
    return [first, run_step(model, sync, batches(1, 2, 2))]


def test_a_hook_that_raises() -> None:
    expected = reference(1, 2, 2)
    for (_, after), (broken, others_after) in zip(*run_ranks(hooks_that_raise, 2), strict=True):
        assert all(gradient is None for gradient in broken.values())
        assert distance(after, expected) <= TOLERANCE["float64"]
        assert distance(others_after, expected) <= TOLERANCE["float64"]
