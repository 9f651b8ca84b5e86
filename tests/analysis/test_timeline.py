"""Stragglers and waits against numbers worked out by hand; the trace that a viewer reads; the figure's names."""

import json
from collections import defaultdict
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from synthetic import put_on_one_clock, write_run

from analysis.draw_timeline import chosen_steps, draw_timeline
from analysis.timeline import main
from analysis.trace import trace
from analysis.transfers import Transfer, covered_s, transfers
from analysis.waits import Timeline, by_rank, leads, load_timeline, waits
from ddpsched.errors import DataError
from ddpsched.run_lock import RunLock


def by_hand() -> pd.DataFrame:
    """Return three ranks' three steps: rank 1 is last, rank 2 is last as it begins late, ranks 0 and 1 nearly tie."""
    rows = [
        # step, rank, began, compute, wait, comm, step
        (0, 0, 0.0, 1.0, 2.5, 1.5, 4.0),
        (0, 1, 0.0, 3.0, 0.5, 0.75, 4.0),
        (0, 2, 0.0, 2.0, 1.5, 0.25, 4.0),
        (1, 0, 4.0, 2.0, 1.0, None, 4.0),
        (1, 1, 4.0, 1.0, 2.0, None, 4.0),
        (1, 2, 5.0, 1.5, 0.5, None, 3.0),
        (2, 0, 8.0, 2.0, 0.0, None, 4.0),
        (2, 1, 8.0, 2.0001, 0.0, None, 4.0),
        (2, 2, 8.0, 1.0, 1.0001, None, 4.0),
    ]
    names = ["step", "rank", "began_at_s", "compute_s", "wait_s", "comm_s", "step_s"]
    return pd.DataFrame(rows, columns=names).assign(world_size=3, num_samples=4, padded_tokens=40)


def run(tmp_path: Path, files: bool = True, **values: Any) -> Path:
    """Write a distributed run with a common clock."""
    return put_on_one_clock(write_run(tmp_path / "study", "static", **values), files=files)


def test_waits_by_hand() -> None:
    table = waits(by_hand(), "distributed", {0: 0.0, 1: 2e-4, 2: 1e-4}, {})
    assert table["straggler"].tolist() == [False, True, False, False, False, True, False, False, False]
    assert table["maybe_last"].tolist()[6:] == [True, True, False]
    assert table["straggler_wait_s"].tolist() == pytest.approx([2, 0, 1, 0.5, 1.5, 0, 1e-4, 0, 1.0001])
    assert table["exposed_s"].tolist() == pytest.approx([0.5, 0.5, 0.5, 0.5, 0.5, 0.5, 0, 0, 0])
    assert table["comm_s"].tolist()[:3] == [1.5, 0.75, 0.25]
    assert table["hidden_s"].isna().all()  # without the times of each message
    assert table.loc[3:, ["comm_s", "hidden_s"]].isna().all(axis=None)  # null, not 0
    found = leads(table)
    assert found["lead_s"].tolist() == pytest.approx([1, 0.5, 1e-4])
    assert found["decided"].tolist() == [True, True, False]


def test_clocks_decide_what_they_can() -> None:
    exact = waits(by_hand(), "distributed", {}, {})
    assert exact["straggler"].sum() == 3
    blurred = waits(by_hand(), "distributed", {0: 0.0, 1: 0.8, 2: 0.3}, {})
    assert blurred["straggler"].tolist() == [False] * 3 + [False, False, True] + [False] * 3
    assert blurred["maybe_last"].tolist()[:3] == [False, True, True]  # 1.0 < 0.8 + 0.3


def test_summary_by_hand() -> None:
    summary = by_rank(waits(by_hand(), "distributed", {1: 2e-4}, {}))
    assert summary["straggler_share"].tolist() == pytest.approx([0, 1 / 3, 1 / 3])
    assert summary.loc[0, "compute_s"] == pytest.approx(5 / 3)
    assert summary.loc[0, "compute_share"] == pytest.approx(5 / 12)
    assert summary.loc[2, "straggler_wait_share"] == pytest.approx(2.0001 / 11)
    assert summary["barrier_s"].isna().all()


def test_exposed_communication_is_cut_at_zero() -> None:
    records = by_hand()
    records.loc[0, "wait_s"] = 1.9999  # by this rank's clock it had everybody's gradients before the last were ready
    assert waits(records, "distributed", {}, {}).loc[0, "exposed_s"] == 0


def test_collectives_are_matched_by_label_and_turn() -> None:
    collectives = {
        (0, 0): [["a", 8, 1.0, 5.0], ["b", 4, 2.0, 6.0], ["a", 8, 3.0, 7.0]],
        (0, 1): [["a", 8, 2.0, 5.5], ["b", 4, 2.5, 2.4], ["a", 8, 6.5, 7.5]],
        (1, 0): [["a", 8, 1.0, 5.0]],  # rank 1's line is torn
    }
    found = transfers(collectives, world_size=2)
    assert set(found) == {(0, 0), (0, 1)}
    assert [(t.begin_s, t.end_s) for t in found[0, 0]] == [(2.0, 5.0), (2.5, 6.0), (6.5, 7.0)]
    assert found[0, 0][2] == Transfer("a", 8, launched_s=3.0, begin_s=6.5, end_s=7.0)
    assert found[0, 1][1].begin_s == found[0, 1][1].end_s == 2.4  # clocks off by 0.1


def test_covered() -> None:
    assert covered_s([]) == 0
    assert covered_s([(0, 2), (1, 3), (1.5, 1.7), (5, 6)]) == pytest.approx(4)


def test_communication_before_the_last_rank_is_ready_is_hidden() -> None:
    moved = {(0, 1): [Transfer("a", 8, 1.0, 1.5, 2.5), Transfer("b", 8, 2.0, 2.0, 3.25)]}
    table = waits(by_hand(), "distributed", {}, moved)
    assert (table.loc[1, "comm_s"], table.loc[1, "hidden_s"]) == (1.75, 1.5)
    assert table.loc[0, "comm_s"] == 1.5  # the others keep what they recorded


def test_a_rank_waits_at_each_gather_until_the_last_one_comes() -> None:
    moved = {(0, 1): [Transfer("gather", 8, 1.0, 1.5, 1.6), Transfer("gather", 8, 2.0, 2.25, 2.5)]}
    table = waits(by_hand(), "distributed", {}, moved)
    assert table.loc[1, "barrier_s"] == 0.75
    assert table.drop(1)["barrier_s"].isna().all()


@pytest.mark.parametrize("files", [True, False])
def test_parts_add_up(tmp_path: Path, files: bool) -> None:
    timeline = load_timeline(run(tmp_path, files, steps=12, world_size=3))
    table = timeline.table
    parts = table["compute_s"] + table["straggler_wait_s"] + table["exposed_s"]
    np.testing.assert_allclose(parts, table["compute_s"] + table["wait_s"])
    np.testing.assert_allclose(table["exposed_s"], 0.004)
    assert (table.groupby("step")["straggler"].sum() == 1).all()
    assert table.loc[table["straggler"], "straggler_wait_s"].eq(0).all()
    np.testing.assert_allclose(table["comm_s"], 0.012)
    if files:
        np.testing.assert_allclose(table["hidden_s"], 0.008)
    else:  # comm_s says how long, not when
        assert table["hidden_s"].isna().all()
    assert bool(timeline.transfers) == files


def test_virtual_ranks_begin_together_and_say_nothing(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "study", "static", steps=6, world_size=3, mode="virtual")
    table = load_timeline(folder).table
    lengths = table.groupby("step")["step_s"].max()
    assert table.loc[table["step"] == 3, "began_at_s"].tolist() == pytest.approx([lengths[:3].sum()] * 3)
    np.testing.assert_allclose(table["straggler_wait_s"], table["wait_s"], atol=1e-12)
    assert table[["comm_s", "exposed_s", "hidden_s"]].isna().all(axis=None)
    assert main([str(folder)]) == 0


def test_a_simulated_network_is_all_exposed() -> None:
    records = by_hand().drop(columns="began_at_s")
    compute = records.groupby("step")["compute_s"]
    records["wait_s"] = compute.transform("max") - records["compute_s"] + 0.25
    table = waits(records, "simulated", {}, {})
    np.testing.assert_allclose(table[["comm_s", "exposed_s"]], 0.25)
    assert (table["hidden_s"] == 0).all()


def jittered(tmp_path: Path) -> Timeline:
    """Write a run whose ranks begin unevenly. A backward outlasts its last gradient, and steps overlap."""
    folder = run(tmp_path, steps=8, world_size=3)
    records, rng = pd.read_parquet(folder / "records.parquet"), np.random.default_rng(1)
    records["began_at_s"] += rng.uniform(-0.02, 0.02, len(records))
    records["optimizer_s"] = rng.uniform(0, 0.2, len(records))
    records["vote_s"] = np.where(rng.random(len(records)) < 0.5, np.nan, 1e-3)
    records.to_parquet(folder / "records.parquet")
    return load_timeline(folder)


def test_trace_is_strict_json(tmp_path: Path) -> None:
    folder = run(tmp_path, steps=6)
    assert main([str(folder), "--output", str(tmp_path / "there")]) == 0
    text = (tmp_path / "there" / "trace.json").read_text()

    def refuse(constant: str) -> None:
        raise AssertionError(constant)

    found = json.loads(text, parse_constant=refuse)
    assert found["otherData"]["run"] == folder.name
    assert found["otherData"]["clocks"][1] == {"rank": 1, "offset_s": 0.125, "uncertainty_s": 5e-5}
    names = {e["pid"]: e["args"]["name"] for e in found["traceEvents"] if e["name"] == "process_name"}
    places = {e["pid"]: e["args"]["sort_index"] for e in found["traceEvents"] if e["name"] == "process_sort_index"}
    assert [names[pid] for pid in sorted(names, key=places.__getitem__)] == ["run", "rank 0", "rank 1"]
    assert all(isinstance(e[key], int) for e in found["traceEvents"] for key in ("ts", "dur") if key in e)


def test_slices_of_a_thread_nest(tmp_path: Path) -> None:
    events = trace(jittered(tmp_path))["traceEvents"]
    threads: dict[tuple[int, int], list[dict[str, Any]]] = defaultdict(list)
    for event in events:
        if event["ph"] == "X":
            threads[event["pid"], event["tid"]].append(event)
    assert len(threads) == 4
    assert min(e["ts"] for e in events if "ts" in e) == 0
    for slices in threads.values():
        open_until: list[int] = []
        for event in sorted(slices, key=lambda e: (e["ts"], -e["dur"])):
            while open_until and open_until[-1] <= event["ts"]:
                open_until.pop()
            end = event["ts"] + event["dur"]
            assert event["dur"] > 0
            assert not open_until or end <= open_until[-1], event
            open_until.append(end)
    assert {e["name"] for e in events} >= {"data", "forward", "backward", "vote", "optimizer", "exposed communication"}


def test_collectives_begin_and_end_in_pairs(tmp_path: Path) -> None:
    timeline = load_timeline(run(tmp_path, steps=5))
    ends: dict[tuple[int, str], list[dict[str, Any]]] = defaultdict(list)
    for event in trace(timeline)["traceEvents"]:
        if event["ph"] in "be":
            ends[event["pid"], event["id2"]["local"]].append(event)
    assert len(ends) == 5 * 2 * 3
    for begin, end in ends.values():
        assert (begin["ph"], end["ph"]) == ("b", "e")
        assert (begin["name"], begin["cat"]) == (end["name"], end["cat"])
        assert end["ts"] - begin["ts"] == pytest.approx(4000, abs=1)
        assert begin["args"]["bytes"] == 3 * 2**20
    early = [e["args"]["waited_for_launch_s"] for e, _ in ends.values()]
    assert min(early) == 0 < max(early)


def test_trace_names_whom_a_rank_waits_for(tmp_path: Path) -> None:
    timeline = load_timeline(run(tmp_path, steps=5, world_size=3))
    events = trace(timeline)["traceEvents"]
    for step, rows in timeline.table.groupby("step"):
        last = int(rows.loc[rows["straggler"], "rank"].iloc[0])
        step_events = [e for e in events if e["ph"] == "X" and e["args"].get("step") == step]
        assert [e["pid"] for e in step_events if e["name"] == "straggler: compute"] == [last]
        assert {e["pid"] for e in step_events if e["name"] == f"waiting for rank {last}"} == {0, 1, 2} - {last}
        assert f"step {step}: rank {last} last" in [e["name"] for e in step_events if e["pid"] == 3]


def names_above(figure: Figure) -> list[str]:
    """Return the steps' names, after checking that none overlaps another or leaves the figure."""
    canvas = FigureCanvasAgg(figure)
    canvas.draw()
    ax = figure.axes[0]
    above = ax.child_axes[0].get_xticklabels()
    boxes = [label.get_window_extent() for label in (*above, *ax.get_yticklabels())]
    assert not any(a.overlaps(b) for a, b in combinations(boxes, 2))
    boxes.append(figure.legends[0].get_window_extent())
    width, height = canvas.get_width_height()
    assert all(b.x0 >= 0 and b.y0 >= 0 and b.x1 <= width and b.y1 <= height for b in boxes)
    return [label.get_text().replace("\n", ": ") for label in above]


@pytest.mark.parametrize(("size", "steps"), [(2, "0:5"), (8, "20:25"), (8, "2:42"), (1, "3:4")])
def test_the_figure_names_each_steps_straggler(tmp_path: Path, size: int, steps: str) -> None:
    timeline = load_timeline(run(tmp_path, steps=42, world_size=size))
    shown = chosen_steps(steps, timeline.steps)
    lasts = timeline.table[timeline.table["straggler"]].set_index("step")["rank"]
    assert names_above(draw_timeline(timeline, shown)) == [f"step {step}: rank {lasts[step]} last" for step in shown]


def test_steps_too_short_for_a_name_have_none(tmp_path: Path) -> None:
    folder = write_run(tmp_path / "study", "static", steps=12, mode="virtual")
    records = pd.read_parquet(folder / "records.parquet")
    records.loc[records["step"] == 0, ["compute_s", "step_s"]] *= 500
    records.to_parquet(folder / "records.parquet")
    timeline = load_timeline(folder)
    assert 0 < len(names_above(draw_timeline(timeline, timeline.steps))) < 12


def test_undecided_steps_are_drawn_as_such(tmp_path: Path) -> None:
    folder = put_on_one_clock(write_run(tmp_path / "study", "static", steps=8), uncertainty_s=100.0)
    timeline = load_timeline(folder)
    figure = draw_timeline(timeline, timeline.steps)
    assert all("undecided" in label.get_text() for label in figure.axes[0].child_axes[0].get_xticklabels())
    texts = [text.get_text() for text in figure.legends[0].get_texts()]
    assert "compute, perhaps of the last rank" in texts
    assert "compute of the last rank" not in texts
    assert "step 3: rank 0 or 1 last" in {e["name"] for e in trace(timeline)["traceEvents"]}


def test_chosen_steps() -> None:
    assert chosen_steps(None, range(60)) == [27, 28, 29, 30, 31]
    assert chosen_steps(None, range(3)) == [0, 1, 2]
    assert chosen_steps("4:6", range(3, 9)) == [4, 5]


def test_command_prints_the_straggler(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = run(tmp_path, steps=60)
    assert main([str(folder), "--steps", "10:14"]) == 0
    out = capsys.readouterr().out
    share = by_rank(load_timeline(folder).timed)["straggler_share"]
    assert f"rank {share.idxmax()} was last in {share.max():.1%} of 55 steps (the first 5 left out)" in out
    assert "1: +0.125000 s ± 50 µs" in out
    assert "55 of 55 steps" in " ".join(out.split())
    assert max(map(len, out.splitlines()[:-1])) <= 120
    assert {path.name for path in (folder / "figures").iterdir()} == {"timeline.png", "trace.json"}


def test_command_says_what_it_cannot_tell(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    alone = run(tmp_path, steps=4, world_size=1)
    assert main([str(alone)]) == 0
    assert "a single rank has no others to wait for" in capsys.readouterr().out
    assert main([str(run(tmp_path, files=False, steps=4))]) == 0
    assert "executor.timeline=true" in capsys.readouterr().out


def test_a_run_under_way_shows_its_whole_steps(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = write_run(tmp_path / "study", "static", steps=6, mode="virtual", state="running")
    path = folder / "records-rank1.jsonl"
    path.write_text("".join(path.read_text().splitlines(keepends=True)[:4]))
    RunLock(folder).take()
    assert main([str(folder)]) == 0
    assert "the run is running" in capsys.readouterr().out
    assert load_timeline(folder).steps == [0, 1, 2, 3]


@pytest.mark.parametrize("steps", ["3", "5:3", "3:3", "0:41", "58:61", "a:b", "-1:3"])
def test_bad_steps(steps: str) -> None:
    with pytest.raises(DataError, match=f"^--steps {steps}: give A:B.* at most 40, within 0:60$"):
        chosen_steps(steps, range(60))


def test_bad_steps_end_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = run(tmp_path, steps=4)
    assert main([str(folder), "--steps", "2:9"]) == 1
    error = capsys.readouterr().err
    assert error.startswith("error: --steps 2:9: give A:B")
    assert error.count("\n") == 1
    assert not (folder / "figures").exists()


def test_folders_that_cannot_be_read(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "file").write_text("")
    empty = write_run(tmp_path / "study", "static", steps=1, state="failed")
    for path in empty.glob("records*"):
        path.unlink()
    older = write_run(tmp_path / "study", "minmax", steps=4)
    wanted = {
        tmp_path / "nowhere": "not a run's folder",
        tmp_path / "study": "not a run's folder",
        tmp_path / "file": "cannot be read",
        empty: "no records of a step yet (failed: it was stopped)",
        older: "began_at_s is missing in 8 of 8 records of this distributed run",
    }
    for path, words in wanted.items():
        assert main([str(path)]) == 1
        error = capsys.readouterr().err
        assert words in error
        assert error.startswith("error: ")
        assert error.count("\n") == 1


def test_missing_columns_are_refused_by_name() -> None:
    with pytest.raises(DataError, match="compute_s is missing in 9 of 9"):
        waits(by_hand().drop(columns="compute_s"), "virtual", {}, {})
    table = waits(by_hand().drop(columns="comm_s"), "distributed", {}, {})
    assert table[["comm_s", "barrier_s", "vote_s", "optimizer_s"]].isna().all(axis=None)
