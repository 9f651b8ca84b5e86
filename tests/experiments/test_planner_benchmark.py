"""The benchmark of planning times and their growth."""

import numpy as np

from ddpsched.terminal import plain_console
from experiments.benchmarks import planner
from experiments.benchmarks.bench import AA


def test_table_has_a_row_a_method_with_growth_gaps_and_the_noise_of_the_first_one():
    launches = [planner.measure((64, 128), 1, seed) for seed in range(2)]
    console = plain_console(at_least=140)
    with console.capture() as captured:
        console.print(planner.report((64, 128), launches))
    text = captured.get()
    assert all(
        name in text for name in (*planner.POLICIES, "A/A, of static", "gap of balanced, M = 4", "gap of packed")
    )
    assert text.count(" to ") == len(planner.POLICIES) + 2  # growth of each method, and A/A at each size


def test_all_methods_plan_the_same_batches():
    first, other = planner.Arm(None, 4), planner.Arm(planner.POLICIES["packed"], 4)
    first(), other()
    assert first._rng.bit_generator.state == other._rng.bit_generator.state
    assert len(other.gaps) == 1
    assert other.gaps[0] >= 0


def test_exponent_of_time_that_grows_as_the_batch_is_1():
    sizes = (64, 128, 256)
    linear = np.array([[float(size) for size in sizes]] * 2)
    assert planner.growth(sizes, linear)[0] == "1.00 to 1.00"
    assert planner.growth(sizes, linear**2)[0] == "2.00 to 2.00"
    assert planner.growth((4, 64), linear[:, :2]) == ("", "")


def test_first_method_runs_twice():
    ((seconds, _gaps),) = planner.measure((4,), 1, 0)
    assert len(seconds[AA]) == len(seconds["static"]) == planner.LEAST_ROUNDS
