"""A comparison as a table in the terminal, and as a figure."""

import json
import math
from collections.abc import Callable, Sequence
from pathlib import Path
from textwrap import fill

from rich import box
from rich.table import Table

from ddpsched.compare.arms import Row
from ddpsched.planning.yardstick import Yardstick
from ddpsched.terminal import WIDEST, fitting, plain_console, sized_console
from ddpsched.visible_text import figure_label

INK, PAD, WAIT = "#0072B2", "#E69F00", "#CC79A7"  # of the Okabe-Ito palette, for colour-blind readers too
TITLE_WIDTH = 64  # characters beside the longest arm's name


# The text of each column for a row that has figures. WORDS explains the columns below the table.
COLUMNS: dict[str, Callable[[Row, Yardstick], str]] = {
    "yardstick": lambda row, figures: f"{figures.yardstick:.4f}",
    "times static": lambda row, figures: "" if row.times_static is None else f"{row.times_static:.3f}",
    "same gradient": lambda row, figures: {True: "yes", False: "no", None: ""}[row.same_gradient],
    "real tokens": lambda row, figures: f"{figures.padding_efficiency:.1%}",
    "imbalance": lambda row, figures: f"{figures.imbalance:.3f}",
    "gap": lambda row, figures: "" if row.gap is None else f"{row.gap:.2%}",
    "micro-batches": lambda row, figures: f"{figures.microbatches:.2f}",
    "split": lambda row, figures: "" if figures.split is None else f"{figures.split:.1%}",
    "gathering": lambda row, figures: "" if figures.gathered is None else f"{figures.gathered:.2%}",
    "order bias": lambda row, figures: "" if math.isnan(figures.order_bias) else f"{figures.order_bias:+.4f}",
    "dropped": lambda row, figures: f"{figures.dropped:,}",
    "repeated": lambda row, figures: f"{figures.repeated:,}",
    "steps": lambda row, figures: f"{figures.steps:,}",
    "B varies": lambda row, figures: f"{figures.samples_cv:.1%}",
    "planning us/sample": lambda row, figures: "" if row.planning_us is None else f"{row.planning_us:.2f}",
    "step s": lambda row, figures: "" if figures.step_seconds is None else f"{figures.step_seconds:.4g}",
}
WORDS = (
    "yardstick: largest rank's cost / even share of the real tokens; 1.0 is no padding and perfect balance",
    "times static: over static's yardstick; same gradient: that of static, as each step has the same samples",
    "imbalance: largest rank / mean; gap: makespan over its lower bound; order bias: 0 as shuffled, 1 as sorted",
    "B varies: standard deviation of samples per step; micro-batches: of a rank in a step",
)
SPLIT = (
    "split: samples split over ranks; gathering: what the largest rank receives for them / even share, beside the rest"
)


def table(rows: Sequence[Row], title: str) -> Table:
    """Return a table of ``rows``, a line for each arm; a column that is equal for several is written once, below."""
    done = [(row, row.figures) for row in rows if row.figures is not None]
    texts = {name: [show(row, figures) for row, figures in done] for name, show in COLUMNS.items()}
    alike = {name: column[0] for name, column in texts.items() if len(set(column)) == 1 and len(done) > 1}
    kept = {name: column for name, column in texts.items() if name not in alike and any(column)}
    same = ", ".join(f"{name} {value}" for name, value in alike.items() if value)
    words = [*WORDS, *([SPLIT] if "split" in kept else [])]
    caption = "\n".join([f"all arms: {same}", *words] if same else words)
    shown = Table(title=title, caption=caption, box=box.SIMPLE_HEAD, title_justify="left", pad_edge=False)
    shown.caption_justify = "left"
    shown.add_column("arm", no_wrap=True)
    for name in kept:
        shown.add_column(name.replace(" ", "\n", 1), justify="right", no_wrap=True)
    for (row, _), *cells in zip(done, *kept.values(), strict=True):
        shown.add_row(row.arm, *cells)
    return shown


def text(rows: Sequence[Row], title: str, last: str) -> str:
    """Return the table, its notes and a last line as one text; as wide as it needs to be, but on a narrow terminal."""
    shown = table(rows, title)
    if plain_console().is_terminal:
        shown = fitting(shown, sized_console())
    # in a file figures cut off are worse than long lines
    console = plain_console(at_least=plain_console(width=WIDEST).measure(shown).maximum)
    with console.capture() as captured:
        for each in (shown, *notes(rows), last):
            console.print(each)
    return captured.get().rstrip("\n")


def notes(rows: Sequence[Row]) -> list[str]:
    """Return lines for below the table: options that were searched, as TOML has them, packages, and skipped arms.

    >>> notes([Row("pool", options={"kind": "pool", "pool_size": 512}), Row("verl", skipped="not installed")])
    ['pool: policy = { kind = "pool", pool_size = 512 }', 'verl: skipped: not installed']
    """
    searched = [(row.arm, row.options.items()) for row in rows if row.options is not None]
    tables = [(arm, ", ".join(f"{key} = {json.dumps(value)}" for key, value in items)) for arm, items in searched]
    return [
        *(f"{arm}: policy = {{ {table} }}" for arm, table in tables),
        *(f"{row.arm}: of {row.package}" for row in rows if row.package and not row.skipped),
        *(f"{row.arm}: skipped: {row.skipped}" for row in rows if row.skipped),
    ]


def draw(rows: Sequence[Row], title: str, path: Path) -> None:
    """Write a figure of a bar for each arm, in parts: real tokens, padding, and waiting for the largest rank."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    drawn = [(row.arm, row.figures) for row in rows if row.figures is not None]
    figure, axes = plt.subplots(figsize=(7.5, 1.3 + 0.36 * len(drawn)), layout="constrained")
    for place, (_, figures) in enumerate(drawn):
        whole, mean = figures.yardstick, figures.yardstick / figures.imbalance
        parts = ((min(1.0, mean), INK, "real tokens"), (max(0.0, mean - 1), PAD, "padding and fixed costs"))
        left = 0.0
        for width, colour, label in (*parts, (whole - mean, WAIT, "waiting for the largest rank")):
            axes.barh(place, width, left=left, color=colour, label=label if place == 0 else None)
            left += width
        axes.text(whole, place, f" {whole:.3f}", va="center", fontsize=9)
    axes.set_yticks(range(len(drawn)), [figure_label(arm) for arm, _ in drawn])
    axes.invert_yaxis()
    axes.axvline(1.0, color="black", linewidth=0.8, linestyle=":")
    axes.set_xlim(0, 1.12 * max(figures.yardstick for _, figures in drawn))
    axes.set_xlabel("largest rank's cost / even share of the real tokens")
    axes.set_title(fill(figure_label(title), TITLE_WIDTH), loc="left", fontsize=10)
    axes.legend(loc="lower right", fontsize=8, frameon=True)
    axes.spines[["top", "right"]].set_visible(False)
    figure.savefig(path, dpi=160)
    plt.close(figure)
