"""Parts of a step sum to it exactly, and each is what its name says."""

from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from drawn import faults, same_bytes
from hypothesis import given
from hypothesis import strategies as st
from synthetic import write_arm, write_run

from analysis.draw_step_parts import draw_step_parts
from analysis.load import load_run, load_study
from analysis.settings import settings
from analysis.step_parts import PARTS, WHOLE, parts_of, step_parts, undivided

TIMES = st.floats(0, 10)
COLUMNS = "step rank num_samples num_tokens padded_tokens compute_s exposed_s plan_wait_s optimizer_s step_s"


def records(rows: list[tuple[float | None, ...]]) -> pd.DataFrame:
    return pd.DataFrame(rows, columns=COLUMNS.split()).astype({"step": int, "rank": int}).assign(num_microbatches=1)


def test_parts_by_hand() -> None:
    table = parts_of(records([(0, 0, 4, 30, 40, 4.0, 0.3, 0.1, 0.5, 6.0), (0, 1, 4, 10, 40, 2.0, 2.3, 0.2, 0.4, 6.1)]))
    found = table.iloc[0]
    assert found["useful_s"] == pytest.approx((4 * 0.75 + 2 * 0.25) / 2)
    assert found["padding_s"] == pytest.approx((4 * 0.25 + 2 * 0.75) / 2)
    assert found["imbalance_s"] == pytest.approx(4 - 3)
    assert (found["exposed_s"], found["planning_s"], found["optimizer_s"]) == (0.3, 0.1, 0.5), "of the slowest rank"
    assert found["rest_s"] == pytest.approx(6.1 - 4 - 0.3 - 0.1 - 0.5)
    assert found["num_samples"] == 8


@given(st.lists(st.tuples(TIMES, TIMES, TIMES, TIMES, st.floats(0, 1), st.booleans()), min_size=2, max_size=6))
def test_parts_sum_to_the_step(ranks: list[tuple[float, float, float, float, float, bool]]) -> None:
    rows: list[tuple[float | None, ...]] = []
    for rank, (compute, exposed, plan, rest, real, hidden) in enumerate(ranks):
        tokens, measured = (100 * real, 100 if real else 0), (None, None) if hidden else (exposed, plan)
        rows.append((0, rank, 1, *tokens, compute, *measured, None, compute + exposed + plan + rest))
    table = parts_of(records(rows))
    assert table[list(PARTS)].sum(axis=1).iloc[0] == pytest.approx(table["step_s"].iloc[0], rel=1e-12, abs=1e-12)
    assert table["step_s"].iloc[0] == max(row[-1] or 0 for row in rows)
    assert table[list(PARTS)].min(axis=None) >= -1e-9, "nothing is counted twice"


@pytest.mark.parametrize("mode", ["distributed", "virtual"])
def test_arms_of_a_study(tmp_path: Path, mode: str) -> None:
    study = tmp_path / "study"
    for policy in ("static", "balanced"):
        write_arm(study, policy, mode=mode, aa=policy == "static")
    (setting,) = settings(load_study(study).runs)
    parts = step_parts(setting)
    assert list(parts["arm"]) == ["static", "balanced"], "no A/A"
    timed = pd.concat([run.records[run.records["step"] >= 5] for run in setting.arms["static"]])
    mean = timed.groupby(["seed", "step"])["step_s"].max().mean()
    assert parts["step_s"].iloc[0] == pytest.approx(mean)
    np.testing.assert_allclose(parts[list(PARTS)].sum(axis=1), parts["step_s"], rtol=1e-12)
    assert parts["planning_s"].iloc[0] == (pytest.approx(5e-5) if mode == "distributed" else 0)
    assert parts["padding_s"].iloc[0] > parts["padding_s"].iloc[1]
    whole = undivided(parts)
    assert (whole[["useful_s", "fixed_s", "padding_s"]] == 0).all(axis=None)
    np.testing.assert_allclose(whole[[WHOLE, *PARTS]].sum(axis=1), whole["step_s"], rtol=1e-12)
    drawn = draw_step_parts({"one part": whole})
    assert drawn.legends[0].get_texts()[0].get_text() == "mean compute"
    shown = {f"G = {g}, a fairly long heading of a setting, distributed": parts for g in (2, 4)}
    assert not faults(draw_step_parts(shown))
    assert same_bytes(lambda: draw_step_parts(shown), tmp_path)


def test_what_was_not_measured_is_rest_or_left_out(tmp_path: Path) -> None:
    """A wait without a common clock is no exposed communication, and an arm without compute times has no parts."""
    write_run(tmp_path / "s", "static", steps=8, drop=("wait_s", "optimizer_s"))
    own = {"loop": "of its own"}  # which need not know when its gradients were ready
    run = load_run(write_run(tmp_path / "s", "minmax", steps=8, drop=("compute_s",), environment=own))
    (setting,) = settings(load_study(tmp_path / "s").runs)
    assert run.name in {each.name for each in setting.runs}
    parts = step_parts(setting)
    assert list(parts["arm"]) == ["static"]
    assert parts["exposed_s"].iloc[0] == parts["optimizer_s"].iloc[0] == 0
    assert parts["rest_s"].iloc[0] == pytest.approx(0.025 - 5e-5)
