"""Predicted step times: those of the plans, with the costs that were measured."""

from dataclasses import replace
from itertools import islice
from typing import Any

import numpy as np
import pytest

from ddpsched.costs.calibration import Seconds
from ddpsched.costs.step_times import Curve, StepTimes, Tried
from ddpsched.data.lengths import KnownLengths
from ddpsched.errors import ConfigError
from ddpsched.exchange import LocalExchange
from ddpsched.orders.config import OrderConfig
from ddpsched.orders.epoch_order import Order
from ddpsched.planning import prediction as prediction_module
from ddpsched.planning.plan_spec import PlanSpec
from ddpsched.planning.planner import plan_steps
from ddpsched.planning.policies.auto import Auto
from ddpsched.planning.policies.balanced import Balanced
from ddpsched.planning.prediction import LAUNCHES, STEPS, Prediction, last_ready, predict, taken
from ddpsched.planning.shapes.choose import check_menu

LENGTHS = KnownLengths(np.random.default_rng(0).lognormal(2.4, 0.6, 3000).clip(3, 66).astype(np.int64))


def times(alpha: float, packed: Any = None, noise: float = 0.0, rest_s: float = 0.0) -> StepTimes:
    seconds = Seconds(alpha=alpha, beta=1e-5, gamma=0, delta=0, floor=0)
    return StepTimes(
        identity=None, world_size=4, padded=seconds, packed=packed, rest_s=rest_s, error=0.01,
        noise=[1 + noise * place for place in range(10)],
    )  # fmt: skip


def ranking(given: StepTimes, packs: bool = False, lengths: KnownLengths = LENGTHS) -> dict[str, Prediction]:
    spec = PlanSpec(world_size=4, global_batch=16, policy=Auto(), epochs=1, max_length=66)
    found = predict(spec, lengths, Auto().candidates(packs), given)
    assert [each.step_s for each in found] == sorted(each.step_s for each in found)
    return {each.name: each for each in found}


def test_a_step_takes_as_long_as_its_slowest_rank_and_the_rest() -> None:
    found = ranking(times(1e-4, rest_s=0.002))
    spec = PlanSpec(world_size=4, global_batch=16, policy=Balanced(), epochs=1, cost=times(1e-4).cost, max_length=66)
    plans = islice(plan_steps(spec, LENGTHS, LocalExchange(4)), STEPS)
    mean = float(np.mean([max(plan.predicted_cost or ()) for plan in plans])) / 1e9 + 0.002
    assert found["balanced"].step_s == pytest.approx(mean, rel=1e-9)
    assert found["static"].ratio == 1
    assert found["balanced"].ratio == pytest.approx(mean / found["static"].step_s)
    assert 1.96 * (LAUNCHES**2 + 0.01**2) ** 0.5 <= found["balanced"].band < 0.1


def test_the_last_rank_of_a_step_goes_on_faster_where_ranks_slow_each_other() -> None:
    """By hand: alone 1, 2 and 4 s; 2 times as long three at once, 1.5 times two at once."""
    seconds = np.array([[4.0, 2.0, 8.0], [6.0, 6.0, 6.0]])
    assert last_ready(seconds, 2.0).tolist() == [1 * 2 + 1 * 1.5 + 2 * 1, 6.0]
    assert last_ready(seconds, 1.0).tolist() == [8.0, 6.0]
    crowded = ranking(times(1e-4).model_copy(update={"together": 1.5}))
    apart = ranking(times(1e-4))
    assert crowded["static"].step_s < apart["static"].step_s  # whose slowest rank is often alone
    assert crowded["balanced"].ratio > apart["balanced"].ratio


def test_the_fixed_cost_of_a_micro_batch_decides_how_many() -> None:
    cheap, dear = ranking(times(0.0)), ranking(times(1e-3))
    assert cheap["balanced, M = 4"].step_s < 0.9 * cheap["balanced"].step_s
    assert cheap["balanced, M = 4"].microbatches > 2
    assert dear["balanced, M = 4"].microbatches == 1
    assert dear["balanced"].ratio < 1


def test_micro_batches_that_take_longer_than_a_line_says_count_as_they_were_measured() -> None:
    """Twice as long from about 40 tokens on: then several small ones are worth their fixed cost."""
    jump = Curve(least=20, most=80, ratios=[1.0] * 4 + [2.0] * 4)
    given = times(2e-5)
    found, plain = ranking(given.model_copy(update={"padded_curve": jump})), ranking(given)
    assert found["static"].step_s > 1.8 * plain["static"].step_s
    assert found["balanced, M = 4"].step_s < 1.7 * plain["balanced, M = 4"].step_s
    assert found["balanced, M = 4"].ratio < 0.95 * plain["balanced, M = 4"].ratio


def test_packed_rows_have_costs_of_their_own() -> None:
    fast = Seconds(alpha=1e-5, beta=1e-6, gamma=0, delta=0, floor=0)
    assert min(ranking(times(1e-4, fast), packs=True).items(), key=lambda each: each[1].step_s)[0] == "packed"
    slow = Seconds(alpha=1.0, beta=1e-5, gamma=0, delta=0, floor=0)
    assert ranking(times(1e-4, slow), packs=True)["packed"].ratio > 1
    assert "packed" not in ranking(times(1e-4), packs=True)
    assert "packed" not in ranking(times(1e-4, fast), packs=False)


def test_noise_costs_plans_more_that_have_made_ranks_alike() -> None:
    quiet, noisy = ranking(times(0.0)), ranking(times(0.0, noise=0.05))
    assert noisy["balanced, M = 4"].ratio > quiet["balanced, M = 4"].ratio + 0.02


def test_nothing_is_gained_where_all_samples_are_as_long() -> None:
    found = ranking(times(1e-4), lengths=KnownLengths([20] * 400))
    assert {round(each.ratio, 9) for each in found.values()} == {1.0}


def test_the_candidates_are_static_and_balanced_up_to_m() -> None:
    assert [*Auto(max_microbatches=6).candidates(True)] == [
        "static", "balanced", "balanced, M = 2", "balanced, M = 4", "balanced, M = 6", "packed",
    ]  # fmt: skip
    assert [*Auto(max_microbatches=1, packed=False).candidates(True)] == ["static", "balanced"]


def test_auto_itself_plans_nothing() -> None:
    spec = PlanSpec(world_size=2, global_batch=4, policy=Auto(), epochs=1, max_length=66)
    with pytest.raises(ConfigError, match="'auto' takes the fastest by measured times, and plans nothing itself"):
        next(plan_steps(spec, LENGTHS, LocalExchange(2)))


def prediction(name: str, step_s: float, most: int = 1, **more: Any) -> Prediction:
    policy = Balanced(max_microbatches=most)
    return Prediction(name, policy, times(1e-4).cost, step_s, step_s / 2, 0.05, float(most), **more)


def test_compiling_is_charged_over_the_steps_of_the_run() -> None:
    static, eager = prediction("static", 2.0), prediction("balanced", 1.0)
    compiled = prediction("balanced, compiled", 0.8, compiled=True, before_s=100.0)
    assert taken([compiled, eager, static], steps=1000) is compiled
    assert taken([compiled, eager, static], steps=600) is eager, "it saves 0.16 s a step beyond its band"
    assert taken([prediction("balanced", 3.0), static], steps=1000) is static
    assert taken([prediction("balanced", 3.0)], steps=1000).name == "balanced", "static does not fit into memory"


@pytest.mark.parametrize(("step_s", "name"), [(1.005, "balanced"), (1.02, "balanced, M = 4")])
def test_of_those_that_are_alike_the_one_with_the_fewest_micro_batches_is_taken(step_s: float, name: str) -> None:
    four, one, static = prediction("balanced, M = 4", 1.0, 4), prediction("balanced", step_s), prediction("static", 2.0)
    assert taken(sorted([four, one, static], key=lambda each: each.step_s), steps=1000).name == name


def test_the_band_of_a_compiled_model_has_its_own_error() -> None:
    given = times(1e-4).model_copy(update={"compiled": times(1e-5).padded, "compiled_error": 0.3})
    found = ranking(given)
    assert found["balanced, compiled"].band >= 0.3 > 0.1 > found["balanced"].band
    assert found["balanced, compiled"].ratio < found["balanced"].ratio


def test_what_was_tried_is_predicted_by_that() -> None:
    """Static was as predicted and balanced took 1.5 times as long; others are taken to be off by the mean."""
    tried = {"static": Tried(ratio=1.0, error=0.003), "balanced": Tried(ratio=1.5, error=0.004)}
    compiled = {"compiled": times(1e-5).padded, "compiled_rest_s": 0.002}
    given = times(1e-4, rest_s=0.002).model_copy(update=compiled)
    plain, found = ranking(given), ranking(given.model_copy(update={"tried": tried}))
    off = {name: (found[name].step_s - 0.002) / (plain[name].step_s - 0.002) for name in plain}
    assert off["static"] == pytest.approx(1.0)
    assert [off["balanced"], off["balanced, compiled"]] == pytest.approx([1.5, 1.5])
    assert off["balanced, M = 4"] == pytest.approx(1.25)
    assert 0.005 < found["balanced"].band < plain["balanced"].band
    assert found["balanced, M = 4"].band >= 0.01, "one that was not tried has the error of the fit"


def test_a_run_shorter_than_compiling_stays_eager() -> None:
    """Its menus are not even searched; nor is one where more micro-batches are known not to pay."""
    given = times(1e-3).model_copy(update={"compiled": times(1e-3).padded, "compile_s": 1.0})
    spec = PlanSpec(world_size=4, global_batch=16, policy=Auto(), epochs=1, max_length=66)
    searched = []

    def menu(planned: PlanSpec) -> tuple[tuple[int, int], ...]:
        searched.append(planned.policy.most_microbatches)
        return ()

    eager = predict(spec, LENGTHS, Auto().candidates(False), given, menu, num_steps=10)
    assert searched == []
    assert not any(each.compiled for each in eager)
    step_s = min(each.step_s for each in eager)
    long = predict(spec, LENGTHS, Auto().candidates(False), given, menu, num_steps=int(1.1 / step_s))
    assert [each for each in long if not each.compiled] == eager
    assert {each.name for each in long if each.compiled} == {f"{each.name}, compiled" for each in eager[:-1]}
    assert eager[-1].name == "static", "which is slower than the others, compiled too"
    assert searched == [1, 1, 2], "with four, two not paying"


def test_a_candidate_that_a_given_menu_does_not_hold_is_left_out_compiled() -> None:
    spec = PlanSpec(4, 32, Auto())
    given = times(0.001).model_copy(update={"compiled": times(0.001).padded})

    def menu(planned: PlanSpec) -> list[tuple[int, int]]:
        shapes = [(6, 66), (32, 40)]  # as many rows as static gives a rank, 8, have no room for the longest sample
        check_menu(planned, shapes, LENGTHS.lengths(np.arange(len(LENGTHS))))
        return shapes

    found = {each.name for each in predict(spec, LENGTHS, Auto().candidates(False), given, menu)}
    assert "static, compiled" not in found
    assert {"static", "balanced", "balanced, compiled"} <= found


@pytest.mark.parametrize(("rows", "named"), [(6, {"balanced, M = 4, compiled"}), (30, set())])
def test_a_candidate_whose_plans_a_menu_does_not_hold_is_left_out_compiled(rows: int, named: set[str]) -> None:
    """A micro-batch that no shape holds has a price, too, so high that no other plan loses to it; but no seconds."""
    given = times(0.001).model_copy(update={"compiled": times(0.001).padded})
    shapes = [(4, 66), (6, 40)]
    spec = PlanSpec(4, 8 * rows, Auto())
    found = {each.name for each in predict(spec, LENGTHS, Auto().candidates(False), given, lambda _: shapes)}
    assert {name for name in found if name.endswith("compiled")} == named


@pytest.mark.parametrize(("alpha", "beta"), [(1e-3, 1.1e-5), (1e-4, 1e-5)])
def test_a_compiled_model_that_is_slower_is_planned_for_a_few_steps_alone(alpha: float, beta: float) -> None:
    """Unless the ranking is to be whole."""
    compiled = Seconds(alpha=alpha, beta=beta, gamma=0, delta=0, floor=0)
    given = times(1e-3).model_copy(update={"compiled": compiled})
    spec = PlanSpec(world_size=4, global_batch=16, policy=Auto(), epochs=1, max_length=66)
    found = predict(spec, LENGTHS, Auto().candidates(False), given, num_steps=1000)
    whole = predict(spec, LENGTHS, Auto().candidates(False), given)
    assert any(each.compiled for each in found) == (alpha < 1e-3)
    assert sum(each.compiled for each in whole) == 4


@pytest.mark.parametrize("kind", ["curriculum", "sequential"])
def test_samples_that_come_by_length_are_sampled_all_over_the_epoch(monkeypatch: pytest.MonkeyPatch, kind: Any) -> None:
    """The first steps of a curriculum have the shortest samples alone, and so has a file that is sorted."""
    rising = KnownLengths(np.sort(LENGTHS.lengths(np.arange(len(LENGTHS)))))
    order = Order(OrderConfig(kind=kind))
    spec = PlanSpec(world_size=4, global_batch=16, policy=Auto(), epochs=1, max_length=66, order=order)
    static = Auto().candidates(False)["static"]
    plans = plan_steps(replace(spec, policy=static, cost=times(1e-4).cost), rising, LocalExchange(4))
    mean = float(np.mean([max(plan.predicted_cost or ()) for plan in plans])) / 1e9

    def predicted() -> float:
        found = predict(spec, rising, Auto().candidates(False), times(1e-4))
        return next(each.step_s for each in found if each.name == "static")

    assert predicted() == pytest.approx(mean, rel=0.05)
    monkeypatch.setattr(prediction_module, "BLOCKS", 1)
    assert predicted() < 0.9 * mean
