"""The price of gathering: fitted to times of points, in the unit of the config's cost, measured on real ranks."""

import re
from pathlib import Path

import numpy as np
import pytest

from ddpsched.config import parse
from ddpsched.local_ranks import answers, run_ranks
from experiments.benchmarks.gather_price import Times, fit, main, measure_times, show

POINTS = [(2, 64), (2, 512), (4, 64), (4, 512)]


def line(alpha: float, beta: float) -> list[float]:
    return [alpha + beta * length * (count - 1) / count for count, length in POINTS]


def test_the_line_that_times_are_from_is_found() -> None:
    np.testing.assert_allclose(fit(POINTS, line(2e-3, 3e-6)), [2e-3, 3e-6])
    falling = fit(POINTS, line(2e-3, -1e-6))
    assert falling[1] == 0, "no term is negative"


@pytest.mark.parametrize(
    ("cost", "alpha", "beta"), [({"kind": "affine_quadratic", "beta": 1e-5}, 2e-3, 3e-6), ({}, 200.0, 0.3)]
)
def test_in_the_unit_of_the_cost(cost: dict[str, float], alpha: float, beta: float) -> None:
    config = parse({"steps": 1, "world_size": 2, "policy": {"kind": "split"}, "cost": cost})
    _, lines = show(Times(POINTS, line(2e-3, 3e-6), token_s=1e-5), config)
    found = [float(number) for number in re.findall(r"gather_\w+ = (\S+)", lines)]
    assert found == pytest.approx([alpha, beta], rel=1e-3)


def test_bad_arguments(capfd: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    file = tmp_path / "run.toml"
    file.write_text('steps = 1\nworld_size = 2\npolicy = { kind = "split" }\n')
    for words, message in [
        (["--ranks", "1"], "--ranks 1: from 2 to 64"),
        (["--rounds", "0"], "--rounds 0: at least 1"),
    ]:
        assert main([str(file), *words]) == 1
        assert message in capfd.readouterr().err


@pytest.mark.slow
def test_on_real_ranks() -> None:
    config = parse({
        "steps": 1, "world_size": 2, "global_batch": 4, "policy": {"kind": "split"},
        "model": {"dropout": 0.0}, "data": {"size": 50, "max_length": 64},
    })  # fmt: skip
    first, second = answers(run_ranks(measure_times, 2, config, 2, timeout_s=120))
    assert first == second
    assert len(first.points) == len(first.seconds) >= 3
    assert min(first.seconds) > 0
