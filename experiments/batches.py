"""A figure of the micro-batches of a step, and the yardstick of arms that `ddpsched plan` does not list.

    python -m experiments.batches [--output report/notes/figures]    # draws
    python -m experiments.batches DIR [--trace SST-2] [--seed 0]     # prints

*Draws* one step of the token budget on two ranks with two micro-batches each, plain beside same_shape. A micro-batch is
a rectangle, a sample a row. The lengths are those of tests/planning/test_token_budget.py.

*Prints* the yardstick of the arms that the pages in report/notes compare: orders under a token budget, ways to draw
bins, pools of other sizes, with G = 4 and B = 32. DIR holds `sst2/train.tsv`, `gsm8k/train.jsonl` and `bert-uncased/`.
Budgets and batch sizes are fitted so that a step has B samples on average, as in `ddpsched plan`.
"""

import argparse
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Patch, Rectangle

from analysis.draw import save
from ddpsched.compare import Question
from ddpsched.compare.arms import Arm, fitted, measure
from ddpsched.compare.show import table
from ddpsched.config import parse
from ddpsched.costs.cost_model import Int
from ddpsched.data.length_files import read_lengths
from ddpsched.data.lengths import KnownLengths
from ddpsched.exchange import LocalExchange
from ddpsched.planning.planner import plan_steps
from ddpsched.step_plan import StepPlan
from ddpsched.terminal import plain_console

FIGURES = Path(__file__).parents[1] / "report" / "notes" / "figures"
LENGTHS = (2, 3, 3, 2, 3, 3, 2, 3, 3, 3, 7, 7, 6, 7, 5, 7)  # ten short samples, then six longer ones
RANKS, ACCUMULATION, BUDGET = 2, 2, 30
SHAPES = {"plain": {}, "same_shape = true": {"same_shape": True}}

REAL, PADDING, INK = "#0072B2", "#E69F00", "#222222"  # blue and orange of the okabe_ito colours
GAP, BELOW = 1.2, 3.0  # tokens between columns; rows below a rank, for captions

TRACES: dict[str, dict[str, Any]] = {
    "SST-2": {"path": "sst2/train.tsv", "texts": ("sentence",)},
    "GSM8K": {"path": "gsm8k/train.jsonl", "texts": ("answer",), "prompt": "question"},
}
GROUPED: dict[str, Any] = {"kind": "length_grouped"}
TOKENS: dict[str, Any] = {"kind": "token_budget"}
RECIPE: dict[str, Any] = {"kind": "bins", "replacement": True}
ARMS: dict[str, Arm] = {
    "static, grouped over 1 batch": {"policy": {"kind": "static"}, "order": {**GROUPED, "mega_batches": 1}},
    "static, grouped over 4 batches": {"policy": {"kind": "static"}, "order": {**GROUPED, "mega_batches": 4}},
    "static, grouped over 50 batches": {"policy": {"kind": "static"}, "order": GROUPED},
    "token_budget": {"policy": TOKENS},
    "token_budget, grouped": {"policy": TOKENS, "order": GROUPED},
    "token_budget, real": {"policy": {**TOKENS, "budget": "real"}},
    "token_budget, real, grouped": {"policy": {**TOKENS, "budget": "real"}, "order": GROUPED},
    "token_budget, same_shape": {"policy": {**TOKENS, "same_shape": True}},
    "token_budget, same_shape, grouped": {"policy": {**TOKENS, "same_shape": True}, "order": GROUPED},
    "bins": {"policy": {"kind": "bins"}},
    "bins, a bin for each rank": {"policy": {"kind": "bins", "per_rank_bins": True}},
    "bins, replacement": {"policy": RECIPE},
    "bins, replacement, a bin for each rank": {"policy": {**RECIPE, "per_rank_bins": True}},
    "pool of 32": {"policy": {"kind": "pool"}},
    "pool of 32, prefer_first": {"policy": {"kind": "pool", "strategy": "prefer_first"}},
    "pool of 32, packed": {"policy": {"kind": "pool", "sequence_packing": True}},
    "pool of 256": {"policy": {"kind": "pool", "pool_size": 256}},
    "pool of 256, prefer_first": {"policy": {"kind": "pool", "pool_size": 256, "strategy": "prefer_first"}},
    "pool of 256, packed": {"policy": {"kind": "pool", "pool_size": 256, "sequence_packing": True}},
}


@dataclass(frozen=True)
class Drawn:
    """A micro-batch in the figure.

    Attributes:
        rank: its rank.
        turn: its index among the micro-batches of the rank.
        lengths: tokens of each sample; empty where the rank has no such micro-batch.
        width: tokens that each sample is padded to.
    """

    rank: int
    turn: int
    lengths: tuple[int, ...]
    width: int

    @property
    def padded(self) -> int:
        """Tokens with padding."""
        return len(self.lengths) * self.width

    @property
    def words(self) -> str:
        """The caption below the rectangle."""
        if not self.lengths:
            return "no micro-batch"
        return f"{len(self.lengths)} × {self.width} = {self.padded} tokens\n{self.padded - sum(self.lengths)} padding"


def first_step(**policy: Any) -> StepPlan:
    """Return the plan of the figure's samples, made as in a run. ``policy``: further keys of [policy]."""
    values = {
        "epochs": 1,
        "world_size": RANKS,
        "order": {"kind": "sequential"},
        "policy": {
            "kind": "token_budget",
            "max_tokens_for_batch": BUDGET,
            "batches_per_optimizer_step": ACCUMULATION,
            **policy,
        },
    }
    return next(plan_steps(parse(values).plan_spec(), KnownLengths(LENGTHS), LocalExchange(RANKS)))


def drawn(plan: StepPlan) -> Iterator[Drawn]:
    """Yield the micro-batches of a step by rank and turn, the empty ones too."""
    lengths = np.array(LENGTHS)
    for rank, microbatches in enumerate(plan.ranks):
        for turn in range(ACCUMULATION):
            if turn < len(microbatches):
                tokens = lengths[microbatches[turn].ids]
                yield Drawn(rank, turn, tuple(tokens.tolist()), microbatches[turn].padded_length(tokens))
            else:
                yield Drawn(rank, turn, (), 0)


def figure() -> Figure:
    """Return the figure: the step without and with same_shape, on one scale."""
    steps = {title: list(drawn(first_step(**policy))) for title, policy in SHAPES.items()}
    boxes = [each for step in steps.values() for each in step]
    column = max(each.width for each in boxes) + GAP
    panel = ACCUMULATION * column + 2 * GAP
    heights = [max(len(each.lengths) for each in boxes if each.rank == rank) for rank in range(RANKS)]
    tops = [sum(heights[:rank]) + rank * BELOW for rank in range(RANKS)]
    bottom = sum(heights) + RANKS * BELOW
    shown = Figure(figsize=(10, 5), layout="constrained")
    axes = shown.subplots()
    for number, (title, step) in enumerate(steps.items()):
        left, real, padded = number * panel, sum(LENGTHS), sum(each.padded for each in step)
        axes.text(left, -2.4, f"{title}: {real} of {padded} tokens are real", fontsize=11, fontweight="bold")
        for turn in range(ACCUMULATION):
            axes.text(left + turn * column, -0.6, f"micro-batch {turn + 1}", fontsize=9, color=INK)
        for each in step:
            _rectangle(axes, each, left + each.turn * column, tops[each.rank])
    for rank, (top, height) in enumerate(zip(tops, heights, strict=True)):
        axes.text(-0.5, top + height / 2, f"rank {rank}", fontsize=10, rotation=90, ha="right", va="center", color=INK)
    axes.set(xlim=(-2, len(steps) * panel - 2 * GAP), ylim=(bottom, -3.4))
    axes.axis("off")
    marks = [Patch(facecolor=REAL, edgecolor="white", label="real token"), _padding(0, 0, 1, label="padding")]
    shown.legend(handles=marks, loc="outside lower center", ncols=2, frameon=False, fontsize=10)
    return shown


def _rectangle(axes: Axes, each: Drawn, left: float, top: float) -> None:
    """Draw a micro-batch: a row a sample, a square a token, and the caption below."""
    for row, length in enumerate(each.lengths):
        for token in range(length):
            axes.add_patch(Rectangle((left + token, top + row), 1, 1, facecolor=REAL, edgecolor="white", linewidth=0.8))
        if length < each.width:
            axes.add_patch(_padding(left + length, top + row, each.width - length))
    axes.add_patch(Rectangle((left, top), each.width, len(each.lengths), fill=False, edgecolor=INK, linewidth=1.2))
    axes.text(left, top + len(each.lengths) + 0.3, each.words, fontsize=9, va="top", color=INK)


def _padding(left: float, top: float, width: float, label: str = "") -> Rectangle:
    return Rectangle(
        (left, top), width, 1, facecolor="#FBE8C4", edgecolor=PADDING, hatch="////", linewidth=0.6, label=label
    )


def draw(folder: Path) -> Path:
    """Write ``<folder>/token_budget.png``, and return its path."""
    path = folder / "token_budget.png"
    save(figure(), path)
    return path


def lengths_of(folder: Path, trace: str) -> Int:
    """Return the token lengths of a training set, (samples,), cut to 512. ``trace``: a key of ``TRACES``."""
    source = dict(TRACES[trace])
    return read_lengths(folder / source.pop("path"), tokenizer=str(folder / "bert-uncased"), **source)


def main(words: Sequence[str] | None = None) -> None:
    """Draw the figure, or print the tables where a folder is given."""
    parser = argparse.ArgumentParser(
        prog="python -m experiments.batches", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folder", type=Path, nargs="?", metavar="DIR")
    parser.add_argument("--output", type=Path, default=FIGURES)
    parser.add_argument("--trace", choices=TRACES, action="append")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args(words)
    if options.folder is None:
        print(draw(options.output))
        return
    for trace in options.trace or TRACES:
        question = Question(lengths_of(options.folder, trace), 4, 32, seed=options.seed)
        rows = [measure(question, name, fitted(question, arm)) for name, arm in ARMS.items()]
        title = f"{trace}: {len(question.lengths):,} samples; G = 4, B = 32, seed {options.seed}"
        plain_console(width=140).print(table(rows, title))


if __name__ == "__main__":
    main()
