"""A figure of a curriculum on four ranks, and a table of how its steps depend on the number of ranks.

    python -m experiments.curriculum [--output report/notes/figures]    # draws
    python -m experiments.curriculum DIR                                # prints

*Draws* 16 samples of difficulty (here: length) 1 to 16 on four ranks, as planned by the package, in six panels. (a) The
rows assigned to each rank. (b) Each rank sorts its rows. (c) Then steps hold samples of unlike difficulty, and ranks
wait. (d) The sample sort, run on four real ranks, gives each a slice of one global order. (e) The global order is dealt
to the ranks in turn. (f) Then ranks compute for about the same time.

*Prints* how the two orders depend on the number of ranks, on SST-2 (DIR holds `sst2/train.tsv` and `bert-uncased/`),
static, B = 32: the sum over steps of the largest rank's padded tokens over the sum of the mean rank's, and the share of
a step's samples that it has with one rank too. `by source` is the data with its rows sorted by length, as in data that
was put together from sources of unlike texts.
"""

import argparse
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
import torch.distributed as dist
from matplotlib import colormaps
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle
from rich.box import SIMPLE
from rich.table import Table as RichTable

from analysis.draw import save
from ddpsched.config import RunConfig, parse
from ddpsched.costs.cost_model import Int
from ddpsched.data.lengths import KnownLengths
from ddpsched.exchange import LocalExchange
from ddpsched.local_ranks import answers, join_group, leave_group, run_ranks
from ddpsched.planning.planner import plan_steps
from ddpsched.step_plan import StepPlan
from ddpsched.terminal import plain_console
from ddpsched.training.sample_sort import sample_sort
from experiments.batches import FIGURES, INK, lengths_of

RANKS = 4
LENGTHS = (5, 3, 8, 6, 12, 15, 9, 14, 2, 7, 4, 1, 16, 10, 13, 11)
Table = list[list[int]]  # [rank][place] -> length
COLOURS = colormaps["viridis_r"]


@dataclass(frozen=True)
class Panels:
    """The lengths in the panels. ``assigned`` and ``slices``: [rank][place]; ``local`` and ``dealt``: [rank][step]."""

    assigned: Table
    local: Table
    slices: Table
    dealt: Table


def config_of(kind: str) -> RunConfig:
    """Return a config with one sample a rank in each step. ``kind``: the order."""
    return parse(
        {
            "epochs": 1,
            "global_batch": RANKS,
            "world_size": RANKS,
            "policy": {"kind": "static"},
            "order": {"kind": kind},
        }
    )


def ranks_of(kind: str) -> Table:
    """Return the planned lengths by rank and step. ``kind``: the order."""
    plans: list[StepPlan] = list(plan_steps(config_of(kind).plan_spec(), KnownLengths(LENGTHS), LocalExchange(RANKS)))
    return [[LENGTHS[plan.rank_ids(rank)[0]] for plan in plans] for rank in range(RANKS)]


def sorted_slice() -> list[int]:
    """Return this rank's slice of the sorted lengths of all ranks. Runs on each rank."""
    join_group()
    rank = dist.get_rank()
    size = len(LENGTHS) // RANKS
    ids = torch.arange(rank * size, (rank + 1) * size)
    lengths, _ = sample_sort([torch.tensor(LENGTHS)[ids], ids])
    leave_group()
    sorted_lengths: list[int] = lengths.tolist()
    return sorted_lengths


def panels() -> Panels:
    """Return the lengths in the panels: four gloo ranks sort, and two orders are planned."""
    size = len(LENGTHS) // RANKS
    assigned = [list(LENGTHS[rank * size : (rank + 1) * size]) for rank in range(RANKS)]
    slices = answers(run_ranks(sorted_slice, RANKS))
    return Panels(assigned, ranks_of("curriculum_local"), slices, ranks_of("curriculum"))


def imbalance(table: Table) -> float:
    """Return the slowest ranks' lengths over an even share: the sum over steps of maxima over that of means."""
    lengths = np.array(table)
    return float(lengths.max(axis=0).sum() / lengths.mean(axis=0).sum())


def figure(lengths: Panels) -> Figure:
    """Return the figure: three panels for the local order, three for the global one."""
    drawing = Figure(figsize=(11, 6.4), layout="constrained")
    axes = drawing.subplots(2, 3)
    _grid(axes[0, 0], lengths.assigned, "a  assignment: each rank's rows", "row")
    _grid(axes[0, 1], lengths.local, "b  local sort: each rank by itself", "step")
    _bars(axes[0, 2], lengths.local, "c  local order")
    _grid(axes[1, 0], lengths.slices, "d  global sort: each rank's slice", "place in the slice")
    _grid(axes[1, 1], lengths.dealt, "e  dealt in turn", "step")
    _bars(axes[1, 2], lengths.dealt, "f  global order")
    return drawing


def _grid(axes: Axes, table: Table, title: str, across: str) -> None:
    """Draw a square for each sample, with its length."""
    for rank, row in enumerate(table):
        for place, length in enumerate(row):
            shade = COLOURS(0.1 + 0.85 * length / max(LENGTHS))
            axes.add_patch(Rectangle((place, rank), 1, 1, facecolor=shade, edgecolor="white", linewidth=2))
            dark = sum(shade[:3]) < 1.5
            axes.text(place + 0.5, rank + 0.5, str(length), ha="center", va="center", color="white" if dark else INK)
    axes.set(xlim=(0, max(map(len, table))), ylim=(RANKS, 0), aspect="equal", xlabel=across)
    axes.set_xticks(np.arange(max(map(len, table))) + 0.5, [str(place + 1) for place in range(max(map(len, table)))])
    axes.set_yticks(np.arange(RANKS) + 0.5, [f"rank {rank}" for rank in range(RANKS)])
    axes.tick_params(length=0)
    for side in axes.spines.values():
        side.set_visible(False)
    axes.set_title(title, loc="left", fontsize=10, fontweight="bold")


def _bars(axes: Axes, table: Table, title: str) -> None:
    """Draw a bar for each step and rank, as high as its sample's length, and lines at the longest and the mean."""
    lengths = np.array(table)
    width = 0.8 / RANKS
    for step, column in enumerate(lengths.T):
        for rank, length in enumerate(column.tolist()):
            axes.bar(
                step + (rank - 1.5) * width, length, width * 0.9, color=COLOURS(0.1 + 0.85 * length / max(LENGTHS))
            )
        axes.hlines(column.max(), step - 0.42, step + 0.42, color="#D55E00", linewidth=2)
        axes.hlines(column.mean(), step - 0.42, step + 0.42, color=INK, linewidth=1.5, linestyle=(0, (3, 2)))
    axes.plot([], [], color="#D55E00", linewidth=2, label="slowest rank")
    axes.plot([], [], color=INK, linewidth=1.5, linestyle=(0, (3, 2)), label="even share")
    axes.set(xlabel="step", ylabel="length, a bar a rank", ylim=(0, max(LENGTHS) * 1.15))
    axes.set_yticks(range(0, max(LENGTHS) + 1, RANKS))
    axes.set_xticks(range(lengths.shape[1]), [str(step + 1) for step in range(lengths.shape[1])])
    axes.legend(loc="upper left", fontsize=8, frameon=False)
    axes.spines[["top", "right"]].set_visible(False)
    axes.set_title(f"{title}: slowest over even {imbalance(table):.2f}", loc="left", fontsize=10, fontweight="bold")


def dependence(lengths: Int, kind: str, world_size: int) -> tuple[float, float]:
    """Return two figures of an order of samples with these lengths, (samples,), on ``world_size`` ranks.

    They are the largest rank's padded tokens over the mean rank's, and the share of samples that are in the same step
    with one rank.
    """

    def steps(size: int) -> list[StepPlan]:
        values = {
            "epochs": 1,
            "global_batch": 32,
            "world_size": size,
            "order": {"kind": kind},
            "policy": {"kind": "static"},
        }
        return list(plan_steps(parse(values).plan_spec(), KnownLengths(lengths), LocalExchange(size)))

    plans, alone = steps(world_size), steps(1)
    costs = np.array([plan.predicted_cost for plan in plans])
    same = [len(np.intersect1d(plan.ids, one.ids)) for plan, one in zip(plans, alone, strict=True)]
    return float(costs.max(axis=1).sum() / costs.mean(axis=1).sum()), sum(same) / len(lengths)


def table(lengths: Int) -> RichTable:
    """Return the table of both orders on 2, 4 and 8 ranks. ``lengths``: (samples,), in tokens."""
    shown = RichTable(title=f"{len(lengths):,} samples, static, B = 32", box=SIMPLE)
    for column in ("data", "order.kind", "G", "largest / mean rank", "samples as with one rank"):
        shown.add_column(column, justify="left" if column in ("data", "order.kind") else "right")
    for name, ordered in (("as it lies", lengths), ("by source", np.sort(lengths))):
        for kind in ("curriculum", "curriculum_local"):
            for size in (2, 4, 8):
                largest, same = dependence(ordered, kind, size)
                shown.add_row(name, kind, str(size), f"{largest:.3f}", f"{same:.1%}")
    return shown


def draw(folder: Path) -> Path:
    """Write ``<folder>/curriculum.png``, and return its path."""
    path = folder / "curriculum.png"
    save(figure(panels()), path)
    return path


def main(words: Sequence[str] | None = None) -> None:
    """Draw the figure, or print the table where a folder is given."""
    parser = argparse.ArgumentParser(
        prog="python -m experiments.curriculum",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--output", type=Path, default=FIGURES)
    parser.add_argument("folder", type=Path, nargs="?", metavar="DIR")
    options = parser.parse_args(words)
    if options.folder is None:
        print(draw(options.output))
    else:
        plain_console(width=100).print(table(lengths_of(options.folder, "SST-2")))


if __name__ == "__main__":
    main()
