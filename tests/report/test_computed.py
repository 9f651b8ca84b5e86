"""Sentences that hold what was computed beside what was measured."""

from types import SimpleNamespace
from typing import Any

from report.computed import Computed, measured_speed_ups


def at(ranks: int, *arms: tuple[str, float]) -> SimpleNamespace:
    """Return a setting of 8 samples a rank, of static and these arms with their step times over static's."""
    names = ("static", 1.0), *arms
    ratios = [{"arm": arm, "baseline": "static", "column": "step_s", "ratio": ratio} for arm, ratio in arms]
    rows = [{"arm": arm, "samples_per_s": 1.0} for arm, _ in names]
    return SimpleNamespace(
        table={
            "world_size": ranks, "global_batch": 8 * ranks, "baseline": "static", "arms": rows, "ratios": ratios,
            "device": "a processor",
        }
    )  # fmt: skip


def test_minmax_at_its_default_window_stands_beside_the_computed_minmax() -> None:
    measured = [at(8, ("minmax", 0.5)), at(4, ("minmax (K = 16)", 0.8), ("minmax (K = 32)", 0.4))]
    results: Any = SimpleNamespace(of=lambda *names: measured, reproduced=[])
    found = measured_speed_ups(results)
    assert [(row["policy"], row["world_size"], row["speed_up"]) for row in found if row["policy"] != "static"] == [
        ("minmax", 4, 1.25), ("minmax (K = 32)", 4, 2.5), ("minmax", 8, 2.0),
    ]  # fmt: skip


def row(policy: str, ranks: int, step_s: float, network_s: float, speed_up: float) -> dict[str, Any]:
    return {
        "policy": policy, "world_size": ranks, "step_s": step_s, "network_s": network_s, "speed_up": speed_up,
        "slow_share": 0.0, "slowness": 1.5, "waiting": 0.0,
    }  # fmt: skip


def test_each_policy_waits_for_messages_of_its_own() -> None:
    rows = [row("static", 4, 1.0, 0.01, 1.0), row("packed", 4, 0.5, 0.02, 2.0)]
    rows += [row("static", 64, 1.0, 0.1, 1.0), row("packed", 64, 0.4, 0.3, 2.5)]
    found: Any = SimpleNamespace(what_if={"rows": rows})
    said = Computed(found).about_scaling()
    assert "at 64 ranks a step waits for it 100 ms of 1.00 s with `static` and 300 ms of 400 ms with `packed`" in said


def test_what_is_computed_is_held_beside_what_was_measured() -> None:
    rows = [row("static", 4, 1.0, 0.0, 1.0), row("packed", 4, 0.5, 0.0, 2.4)]
    throughputs = [{"arm": "packed", "ratio": 1.6, "low": 1.5, "high": 1.7}]
    again = {"study": "virtual", "devices": ["another"], "throughputs": throughputs}
    found: Any = SimpleNamespace(
        what_if={"rows": rows, "device": "another"}, of=lambda *names: [at(4, ("packed", 0.5))], reproduced=[again]
    )
    assert Computed(found).measured_policies() == ["packed"]
    assert Computed(found).beside_measured() == [["4, a processor", "2.00 (2.40)"], ["4, another", "1.60 (2.40)"]]
    said = Computed(found).off_by()
    assert said.endswith(" The curves promise too much where this is more than 5 %.")
    assert (
        "on another, the throughput is off by +20.0 % to +20.0 % (farthest with `packed`) on a processor and +50.0 % to"
        in said
    )


def test_the_simulator_s_errors_are_told_by_model_and_kind_of_ranks() -> None:
    def case(model: str, fixed: float) -> dict[str, Any]:
        errors = {"fixed": {"mean": fixed}, "curve": {"mean": 3 * fixed}}
        told = {"model": model, "executor": "virtual", "clock": "wall"}
        return told | {"errors": errors, "again": {"mean": 0.06}}

    rows = [case("tiny", 0.04), case("tiny", 0.09), case("large", 0.12)]
    found: Any = SimpleNamespace(simulator=[{"rows": rows, "machine": "a processor"}])
    assert Computed(found).off_by_more() == (
        "here 2 of 3 cases. From a calibration and a network alone they already are in 3 of 3, by 12 % to 36 %"
    )
    assert Computed(found).held_on() == "a processor"
    said = Computed(found).about_errors()
    assert "So it is within 5 % in 0 of 3 cases from a calibration and a network, and in 1 of 3 fitted" in said
    assert Computed(found).simulated_errors() == [
        ["tiny, virtual ranks", "12.0 % to 27.0 %", "4.0 % to 9.0 %", "6.0 % to 6.0 %"],
        ["large, virtual ranks", "36.0 % to 36.0 %", "12.0 % to 12.0 %", "6.0 % to 6.0 %"],
    ]
