"""The rank that was ready last in each step, and the others' waits.

Rank r has its plan at b_r, its last gradient at ready_r = b_r + compute_r, and all
ranks' gradients at done_r = ready_r + wait_r, all in seconds on one clock, rank
0's. No sum over ranks is complete before the last rank has contributed, at
L = max_q ready_q, so each wait has two parts::

    wait_r = done_r - ready_r = (L - ready_r) + (done_r - L)
                                straggler wait  exposed communication

The first would vanish if all ranks were ready together. The second would remain:
communication that no rank's compute hides. It is cut at 0, as clocks that disagree
by their uncertainty u make it slightly negative.

The *straggler* of a step is the rank that was ready last, at L, whether its compute
was the longest or it began late. Two clocks distinguish two moments that are more
than u_q + u_r apart. Where the last rank's lead over any other is not larger, the
step is *undecided* and has no straggler.

*Communication* on a rank is the time covered by its collectives, each from the
last rank's launch to its end on this rank. Before that launch no rank can finish,
and one that launched early only waits. *Hidden* communication is the part before
L. Exposed communication may be longer than the rest, as it contains all that
happens between L and done_r, such as a barrier or copying. Where the run wrote no
timeline files, communication is ``comm_s``, which begins at this rank's launch and
so contains waiting too: an upper bound. Its hidden part is then unknown, and null.

Where weights are gathered for each micro-batch (``sync.reshard``), each gather is a *barrier*: a rank waits there from
its launch to the last rank's, within its compute.

Virtual and simulated ranks begin a step together, at the sum of the steps
before. Virtual ranks send nothing, so their communication is null. A simulated
network's is all exposed, and null where it takes no time.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import pandas as pd

from analysis.metrics import warmup_steps
from analysis.run_files import clean, read_config, read_environment, read_records
from analysis.transfers import GATHER, Transfer, covered_s, timeline_lines, transfers
from ddpsched.errors import DataError
from ddpsched.own_folder import refuse_special
from ddpsched.records import RECORDS, read_lines
from ddpsched.run_folder import read_status

COUNTED = ("step", "rank", "world_size", "num_samples", "padded_tokens")
NEEDED = ("began_at_s", "compute_s", "wait_s", "step_s")
TIMES = (*NEEDED, "comm_s", "barrier_s", "vote_s", "optimizer_s")
MEANS = ("compute_s", "comm_s", "hidden_s", "exposed_s", "straggler_wait_s", "barrier_s", "step_s")
SHARES = ("compute_s", "straggler_wait_s", "exposed_s")
RESOLUTION_S = 1e-9  # rounding errors of summed times are below this


class Clock(NamedTuple):
    """The offset added to all times of a rank to make them rank 0's, and its largest possible error."""

    rank: int
    offset_s: float
    uncertainty_s: float


@dataclass(frozen=True, eq=False)
class Timeline:
    """The times of a run on one clock.

    Attributes:
        path: the run's folder.
        config: its config.
        environment: its environment.json.
        state: the state in its status.json.
        table: a row per rank and step, as from ``waits``.
        clocks: a clock per rank; none without a process group.
        microbatches: by (step, rank), [data, forward and backward begin, backward ends] of each; empty without
            timeline files.
        transfers: by (step, rank), the collectives; empty without timeline files.
    """

    path: Path
    config: dict[str, Any]
    environment: dict[str, Any]
    state: str
    table: pd.DataFrame
    clocks: list[Clock]
    microbatches: dict[tuple[int, int], list[list[float]]]
    transfers: dict[tuple[int, int], list[Transfer]]

    @property
    def mode(self) -> str:
        """The executor: distributed, virtual or simulated."""
        return str(self.config["executor"]["kind"])

    @property
    def steps(self) -> list[int]:
        """The steps that all ranks recorded."""
        return sorted(self.table["step"].unique().tolist())

    @property
    def timed(self) -> pd.DataFrame:
        """The table without the first ``warmup_steps``, as in all timing metrics."""
        return self.table[self.table["step"].isin(self.steps[warmup_steps(len(self.steps)) :])]


def load_timeline(path: Path) -> Timeline:
    """Read the timeline from a run's folder; of an unfinished run, the steps that all ranks recorded.

    Raises DataError where it is no run's folder, has no records, or its ranks had no common clock.
    """
    refuse_special(path)
    try:
        status = read_status(path)
        if status["state"] == "absent":
            raise DataError(f"{path} is not a run's folder: it has no status.json; give outputs/STUDY/RUN")
        config, environment = read_config(path), read_environment(path)
        finished = (path / RECORDS).exists()
        records = clean(read_records(path), path / RECORDS) if finished else pd.DataFrame(read_lines(path))
        lines = timeline_lines(path) if config["executor"]["kind"] == "distributed" else {}
    except DataError:
        raise
    except (OSError, ValueError, KeyError) as error:  # decoders' errors are ValueErrors
        raise DataError(f"{path} cannot be read as a run's folder: {error}") from None
    if records.empty:
        why = ": ".join(filter(None, (status["state"], status.get("reason"))))
        raise DataError(f"{path} has no records of a step yet ({why})")
    clocks = [Clock(c["rank"], c["offset_s"], c["uncertainty_s"]) for c in environment.get("clocks") or []]
    moved = transfers({key: line["collectives"] for key, line in lines.items()}, config["world_size"])
    table = waits(records, config["executor"]["kind"], {c.rank: c.uncertainty_s for c in clocks}, moved)
    micro = {key: line["microbatches"] for key, line in lines.items()}
    return Timeline(path.resolve(), config, environment, status["state"], table, clocks, micro, moved)


def waits(
    records: pd.DataFrame,
    mode: str,
    uncertainty_s: Mapping[int, float],
    moved: Mapping[tuple[int, int], Sequence[Transfer]],
) -> pd.DataFrame:
    """Return one row per rank and step, sorted by step and rank, with the times that ranks waited.

    Beside the columns of the records: ``ready_at_s``, ``done_at_s``, ``straggler_wait_s``,
    ``exposed_s``, ``comm_s``, ``hidden_s`` as defined above, ``straggler``, and ``maybe_last``:
    true for the straggler, or for all ranks among which the clocks cannot decide.
    ``uncertainty_s``: of the clocks in seconds, by rank; ``moved``: transfers by (step, rank).
    Raises DataError where a required time was not recorded.
    """
    table = records.reindex(columns=[*COUNTED, *TIMES]).sort_values(["step", "rank"], ignore_index=True)
    table[list(TIMES)] = table[list(TIMES)].apply(pd.to_numeric).astype("float64")
    table = table[table.groupby("step")["rank"].transform("count") == table["world_size"]].reset_index(drop=True)
    if table.empty:
        raise DataError("there is no step that all ranks recorded; run more steps")
    if mode != "distributed":
        lengths = table.groupby("step")["step_s"].max()
        table["began_at_s"] = table["step"].map(lengths.cumsum() - lengths)
    for name in NEEDED:
        absent = int(table[name].isna().sum())
        if absent:
            older = "; it is older than the ranks' common clock: run it again" if name == "began_at_s" else ""
            raise DataError(f"{name} is missing in {absent} of {len(table)} records of this {mode} run{older}")
    table["ready_at_s"] = table["began_at_s"] + table["compute_s"]
    table["done_at_s"] = table["ready_at_s"] + table["wait_s"]
    by_step = table.groupby("step")
    table["straggler_wait_s"] = by_step["ready_at_s"].transform("max") - table["ready_at_s"]
    uncertain = table["rank"].map(dict(uncertainty_s)).fillna(0.0).astype("float64")
    last = uncertain[by_step["ready_at_s"].transform("idxmax")].to_numpy()
    table["maybe_last"] = table["straggler_wait_s"] <= uncertain + last
    table["straggler"] = table["maybe_last"] & (by_step["maybe_last"].transform("sum") == 1)
    table["exposed_s"] = (table["wait_s"] - table["straggler_wait_s"]).clip(lower=0.0)
    if mode != "distributed":
        if table["exposed_s"].max() < RESOLUTION_S:
            table["exposed_s"] = float("nan")
        table["comm_s"] = table["exposed_s"]
    table["hidden_s"] = (table["comm_s"] - table["exposed_s"]) if mode != "distributed" else float("nan")
    if not moved:
        return table
    spans_of_rows = [moved.get(key) or [] for key in zip(table["step"], table["rank"], strict=True)]
    measured = pd.Series([bool(spans) for spans in spans_of_rows])
    whole = [covered_s([(t.begin_s, t.end_s) for t in spans]) for spans in spans_of_rows]
    before = [
        covered_s([(min(t.begin_s, end), min(t.end_s, end)) for t in spans])
        for spans, end in zip(spans_of_rows, by_step["ready_at_s"].transform("max"), strict=True)
    ]
    table["comm_s"] = table["comm_s"].mask(measured, pd.Series(whole))
    table["hidden_s"] = table["hidden_s"].mask(measured, pd.Series(before))
    met = [[t.begin_s - t.launched_s for t in spans if t.label == GATHER] for spans in spans_of_rows]
    table["barrier_s"] = table["barrier_s"].mask(pd.Series(list(map(bool, met))), pd.Series(list(map(sum, met))))
    return table


def by_rank(table: pd.DataFrame) -> pd.DataFrame:
    """Return a row per rank: ``straggler_share`` of steps, the mean of each time, and ``*_share`` of the mean step."""
    ranks = table.groupby("rank")
    means = ranks[list(MEANS)].mean()
    shares = means[list(SHARES)].div(means["step_s"], axis=0)
    shares.columns = shares.columns.str.replace("_s$", "_share", regex=True)
    return pd.concat([ranks["straggler"].mean().rename("straggler_share"), means, shares], axis=1)


def leads(table: pd.DataFrame) -> pd.DataFrame:
    """Return a row per step: ``lead_s``, from the last but one rank's being ready to the last one's, and ``decided``.

    NaN for a single rank.
    """
    steps = table.groupby("step")
    lead_s = steps["straggler_wait_s"].apply(lambda waited: waited.sort_values().shift(-1).iloc[0])
    return pd.DataFrame({"lead_s": lead_s, "decided": steps["straggler"].any()})
