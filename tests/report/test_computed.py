"""What was computed beside what was measured."""

from types import SimpleNamespace

from report.computed import measured_speed_ups


def at(ranks: int, *arms: tuple[str, float]) -> SimpleNamespace:
    """Return a setting of 8 samples a rank, of static and these arms with their step times over static's."""
    names = ("static", 1.0), *arms
    ratios = [{"arm": arm, "baseline": "static", "column": "step_s", "ratio": ratio} for arm, ratio in arms]
    rows = [{"arm": arm, "samples_per_s": 1.0} for arm, _ in names]
    return SimpleNamespace(
        table={"world_size": ranks, "global_batch": 8 * ranks, "baseline": "static", "arms": rows, "ratios": ratios}
    )


def test_minmax_at_its_default_window_stands_beside_the_computed_minmax() -> None:
    found = measured_speed_ups([at(8, ("minmax", 0.5)), at(4, ("minmax (K = 16)", 0.8), ("minmax (K = 32)", 0.4))])
    assert [(row["policy"], row["world_size"], row["speed_up"]) for row in found if row["policy"] != "static"] == [
        ("minmax", 4, 1.25), ("minmax (K = 32)", 4, 2.5), ("minmax", 8, 2.0),
    ]  # fmt: skip
