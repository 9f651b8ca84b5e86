"""DeepSpeed's scheduler and batching behave as report/notes/token_budget.md states.

``pytest -rP tests/report/test_notes_deepspeed.py`` prints the comparison, where DeepSpeed is installed (extra
``peers``).
"""

import logging
import math
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest


def test_deepspeeds_scheduler() -> None:
    module = pytest.importorskip("deepspeed.runtime.data_pipeline.data_sampling.variable_batch_size_and_lr")
    import torch
    from torch.optim import lr_scheduler as schedulers

    warnings.simplefilter("ignore")
    sizes, reference, steps = [1 + 7 * step % 40 for step in range(101)], 8, 100

    def sgd() -> Any:
        return torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=1e-3)

    bases: dict[str, Callable[[Any], Any]] = {
        "LambdaLR": lambda o: schedulers.LambdaLR(o, lambda step: 1 / (1 + step)),
        "StepLR": lambda o: schedulers.StepLR(o, 7, 0.5),
        "MultiStepLR": lambda o: schedulers.MultiStepLR(o, [5, 20], 0.5),
        "ConstantLR": lambda o: schedulers.ConstantLR(o, 0.5, 5),
        "LinearLR": lambda o: schedulers.LinearLR(o, 0.3, 1, 20),
        "ExponentialLR": lambda o: schedulers.ExponentialLR(o, 0.97),
        "PolynomialLR": lambda o: schedulers.PolynomialLR(o, 120, 2.0),
        "CosineAnnealingLR": lambda o: schedulers.CosineAnnealingLR(o, 120),
        "CosineAnnealingWarmRestarts": lambda o: schedulers.CosineAnnealingWarmRestarts(o, 10),
        "CyclicLR": lambda o: schedulers.CyclicLR(o, 1e-4, 1e-3, step_size_up=7, cycle_momentum=False),
        "OneCycleLR": lambda o: schedulers.OneCycleLR(o, 1e-2, total_steps=steps + 1, cycle_momentum=False),
        "MultiplicativeLR": lambda o: schedulers.MultiplicativeLR(o, lambda step: 0.97),
        "SequentialLR": lambda o: schedulers.SequentialLR(
            o, [schedulers.LinearLR(o, 0.1, 1, 10), schedulers.ExponentialLR(o, 0.97)], [10]
        ),
        "ChainedScheduler": lambda o: schedulers.ChainedScheduler(
            [schedulers.ConstantLR(o, 0.5, 5), schedulers.ExponentialLR(o, 0.97)], optimizer=o
        ),
        "ReduceLROnPlateau": lambda o: schedulers.ReduceLROnPlateau(o, patience=2),
    }

    def rates(optimizer: Any, schedule: Any) -> list[float]:
        found = []
        for _ in range(steps):
            found.append(optimizer.param_groups[0]["lr"])
            optimizer.step()
            schedule.step()
        return found

    off: dict[str, float | str] = {}
    for name, build in bases.items():
        optimizer = sgd()
        try:
            scaled = rates(optimizer, module.VariableBatchSizeLR(build(optimizer), reference, sizes, None))
        except NotImplementedError:
            off[name] = "NotImplementedError"  # DeepSpeed's answer for some schedulers: which ones is asserted below
            continue
        alone = sgd()
        right_rates = np.array(rates(alone, build(alone))) * sizes[:steps] / reference
        off[name] = float(np.abs(np.array(scaled) / right_rates - 1).max())
    print(
        *(f"{name}: {value if isinstance(value, str) else f'{value:.1%} off'}" for name, value in off.items()), sep="\n"
    )
    assert [name for name, value in off.items() if value == "NotImplementedError"] == [
        "SequentialLR", "ChainedScheduler", "ReduceLROnPlateau",
    ]  # fmt: skip
    assert off["MultiplicativeLR"] == pytest.approx(0.0591)
    right = [name for name, value in off.items() if isinstance(value, float) and value < 1e-9]
    assert len(right) == 11

    optimizer = sgd()
    base = schedulers.ExponentialLR(optimizer, 0.97)
    for _ in range(30):
        optimizer.step()
        base.step()
    expected = optimizer.param_groups[0]["lr"]
    module.VariableBatchSizeLR(base, reference, [reference], None)
    times = optimizer.param_groups[0]["lr"] / expected
    print(f"a base resumed after 30 steps: {times:.2f} times its rate")
    assert times == pytest.approx(2.49, abs=0.005)

    first, second = sgd(), sgd()
    schedules = [module.VariableBatchSizeLR(schedulers.ExponentialLR(o, 0.97), 8, [16], None) for o in (first, second)]
    for _ in range(5):
        first.step()
        schedules[0].step()
    in_force, says = first.param_groups[0]["lr"], schedules[0].get_last_lr()[0]
    schedules[1].load_state_dict(schedules[0].state_dict())
    print(
        f"in force {in_force:.3g}, get_last_lr() {says:.3g}, after load_state_dict {second.param_groups[0]['lr']:.3g}"
    )
    assert in_force == pytest.approx(2 * says)
    assert second.param_groups[0]["lr"] == 2e-3, "as before it was loaded"


def test_deepspeeds_batches() -> None:
    module = pytest.importorskip("deepspeed.runtime.data_pipeline.data_sampling.variable_batch_size_and_lr")
    logging.getLogger("DeepSpeed").setLevel(logging.ERROR)
    additions = 0

    class Length(int):
        """A length that counts how often it is added to a sum: work that no busy machine changes."""

        def __radd__(self, other: int) -> int:
            nonlocal additions
            additions += 1
            return int(self) + other

    lengths, work = [Length(length) for length in np.random.default_rng(0).integers(3, 60, 500)], {}
    for size in (125, 250, 500):
        additions = 0
        found, _, _ = module.batch_by_seqlens(lengths[:size], 426)
        work[size] = additions
        assert set(range(size)) - {id for _, ids in found for id in ids} == {size - 1}, "the last one, and no other"
    growth = math.log(work[500] / work[125]) / math.log(4)
    print(f"additions while planning 125 to 500 samples grow as n^{growth:.1f}")
    assert growth == pytest.approx(3, abs=0.05)
    found, sizes, _ = module.batch_by_seqlens([3] * 10 + [7] * 5, 30)
    assert [len(ids) for _, ids in found] == sizes == [10, 4], "its worked example, with one sample more"
    assert [module.scale_lr(2, size, 1e-3) for size in sizes] == pytest.approx([5e-3, 2e-3])
