"""The yardstick of every policy and peer on the traces of BENCHMARKS.md, as Markdown.

    python -m experiments.benchmarks.yardstick DIR [--alpha 50] [--seeds 1] [--peer all]

DIR holds `sst2/train.tsv`, `gsm8k/train.jsonl` and `bert-uncased/`. One epoch each, the last, smaller step counted;
`ddpsched plan` prints the same figures and more for one trace. With several seeds, means over them. Planning times are
measured by `python -m experiments.benchmarks.planning_times`.
"""

import argparse
import statistics
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np

from ddpsched.compare import Question, Row, compare
from ddpsched.costs.cost_model import Int
from ddpsched.data.length_files import read_lengths
from ddpsched.peers import PEERS

Trace = tuple[str, int, int]  # data, ranks, global batch
TRACES: tuple[Trace, ...] = (
    ("SST-2", 4, 32),
    ("SST-2", 8, 256),
    ("SST-2", 64, 2048),
    ("GSM8K", 4, 32),
    ("GSM8K", 8, 256),
)


def lengths_of(folder: Path) -> dict[str, Int]:
    """Return the token lengths of both training sets, questions and answers of GSM8K together."""
    tokenizer = str(folder / "bert-uncased")
    return {
        "SST-2": read_lengths(folder / "sst2" / "train.tsv", texts=("sentence",), tokenizer=tokenizer),
        "GSM8K": read_lengths(folder / "gsm8k" / "train.jsonl", texts=("question", "answer"), tokenizer=tokenizer),
    }


def table(cells: dict[str, list[str]], title: str, traces: Sequence[Trace] = TRACES) -> Iterator[str]:
    """Yield the lines of a table as Markdown: a line an arm, a column a trace."""
    yield f"\n**{title}**\n"
    yield "| arm | " + " | ".join(f"{name}, {ranks}, {batch}" for name, ranks, batch in traces) + " |"
    yield "|:--|" + "--:|" * len(traces)
    for arm, values in cells.items():
        yield f"| {arm} | " + " | ".join(values) + " |"


def report(rows: list[list[list[Row]]]) -> Iterator[str]:
    """Yield the lines of all tables. ``rows[trace][seed]``: the arms' rows."""
    arms = [row.arm for row in rows[0][0]]
    by_arm = {arm: [[next(r for r in seed if r.arm == arm) for seed in trace] for trace in rows] for arm in arms}
    shown = {arm: traces for arm, traces in by_arm.items() if not all(r.skipped for seeds in traces for r in seeds)}
    figures = {
        "Yardstick": lambda r: f"{r.figures.yardstick:.4f}",
        "Micro-batches of a rank": lambda r: f"{r.figures.microbatches:.2f}",
        "Gap to the lower bound": lambda r: "" if r.gap is None else f"{100 * r.gap:.2f} %",
        "Order bias": lambda r: f"{r.figures.order_bias:+.4f}",
        "Samples dropped + repeated": lambda r: f"{r.figures.dropped} + {r.figures.repeated}",
        "Samples per step, standard deviation": lambda r: f"{100 * r.figures.samples_cv:.1f} %",
    }
    for title, show in figures.items():
        cells = {
            arm: ["skipped" if seeds[0].skipped else _mean([show(row) for row in seeds]) for seeds in traces]
            for arm, traces in shown.items()
        }
        yield from table(cells, title)
    for arm, traces in by_arm.items():
        if traces[0][0].skipped:
            yield f"\n`{arm}`: skipped: {traces[0][0].skipped}"


def _mean(texts: list[str]) -> str:
    """Return the mean of the numbers, in their format; the first text where all are equal or no numbers."""
    if len(set(texts)) == 1:
        return texts[0]
    try:
        places = len(texts[0].rpartition(".")[2])
        return f"{statistics.mean(map(float, texts)):{'+' if texts[0][0] in '+-' else ''}.{places}f}"
    except ValueError:
        return texts[0]


def main() -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(
        prog="python -m experiments.benchmarks.yardstick",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("folder", type=Path)
    parser.add_argument("--alpha", type=float, default=0.0, help="fixed cost of a micro-batch, in padded tokens")
    parser.add_argument("--lookahead", type=int, default=1)
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--peer", action="append", default=[], help="a peer's name, or all")
    options = parser.parse_args()
    peers = tuple(PEERS) if "all" in options.peer else tuple(options.peer)
    lengths = lengths_of(options.folder)
    cost = {"kind": "padded_tokens", "alpha": options.alpha}
    rows = [
        [
            list(compare(Question(lengths[name], g, b, seed=s, cost=cost, lookahead=options.lookahead), (), peers))
            for s in np.arange(options.seeds).tolist()
        ]
        for name, g, b in TRACES
    ]
    print("\n".join(report(rows)))


if __name__ == "__main__":
    main()
