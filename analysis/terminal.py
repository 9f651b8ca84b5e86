"""The comparison of a setting's arms as a table for the terminal."""

from typing import Any

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from ddpsched.terminal import plain_console

# heading, key of the arm row, factor, format
COLUMNS = (
    ("mean\nglobal\nbatch", "batch_mean", 1, ".1f"),
    ("\nstep\nms", "step_mean_s", 1e3, ".4g"),
    ("step\nP95\nms", "step_p95_s", 1e3, ".4g"),
    ("max\ncompute\nms", "max_compute_mean_s", 1e3, ".4g"),
    ("\nsamples\n/s", "samples_per_s", 1, ".4g"),
    ("\nwaiting\n%", "wait_share", 100, ".1f"),
    ("real\ntokens\n%", "padding_efficiency", 100, ".1f"),
    ("largest\nrank /\neven", "yardstick", 1, ".2f"),
    ("plan\nwait P95\nµs", "plan_wait_p95_s", 1e6, ".0f"),
    ("dev\nacc.\n%", "dev_accuracy", 100, ".1f"),
)


def console() -> Console:
    """Return the terminal with its width; 120 columns in a pipe or a log, which have none."""
    terminal = plain_console()
    return terminal if terminal.is_terminal else plain_console(width=120)


def comparison(tables: dict[str, Any]) -> Table:
    """Return a row per arm; the last column is max compute time over static's with its 95 % interval.

    The mean global batch is shown where arms differ in it.
    """
    batches = [arm.get("batch_mean") or 0.0 for arm in tables["arms"]]
    varies = max(batches) > 1.01 * min(batches)
    columns = [column for column in COLUMNS if column[1] != "batch_mean" or varies]
    table = Table(title=tables["label"], title_justify="left", box=SIMPLE_HEAD, collapse_padding=True)
    table.add_column("\n\narm (runs)")  # the one column that may wrap
    for heading, *_ in columns:
        table.add_column(heading, justify="right", no_wrap=True)
    table.add_column("max compute\n/ static\n" + "[95 % interval]", justify="right", no_wrap=True)
    for arm in tables["arms"]:
        cells = [number(arm.get(key), factor, form) for _, key, factor, form in columns]
        table.add_row(f"{arm['arm']} ({arm['num_runs']})", *cells, against_static(tables, arm["arm"]))
    return table


# of the arms of a comparison: heading, key, factor, format
SIDE_BY_SIDE = (
    ("mean\nglobal\nbatch", "batch_mean", 1, ".1f"),
    ("real\ntokens\n/s", "tokens_per_s", 1, ".0f"),
    ("\n/\nstatic", "speed_ratio", 1, ".2f"),
    ("pad-\nding\n%", "padding", 100, ".1f"),
    ("imba-\nlance\ntokens", "imbalance_tokens", 1, ".2f"),
    ("imba-\nlance\ncompute", "imbalance_compute", 1, ".2f"),
    ("\norder\nbias", "order_bias", 1, ".3f"),
    ("loss at\nequal\nsamples", "loss_at_equal", 1, ".3f"),
    ("loss at\nequal\ntime", "loss_at_equal_s", 1, ".3f"),
    ("\ndev\nloss", "dev_loss", 1, ".3f"),
)


def side_by_side(tables: dict[str, Any]) -> Table:
    """Return a row per arm of one setting's comparison."""
    table = Table(title=tables["label"], title_justify="left", box=SIMPLE_HEAD, collapse_padding=True)
    table.add_column("\n\narm", min_width=24)
    for heading, *_ in SIDE_BY_SIDE:
        table.add_column(heading, justify="right", no_wrap=True)
    for arm in tables["arms"]:
        cells = [number(arm.get(key), factor, form) for _, key, factor, form in SIDE_BY_SIDE]
        table.add_row(arm["arm"], *cells)
    return table


def number(value: float | None, factor: float, form: str) -> str:
    """Return a cell, ``value * factor`` in this format; a dash for None, what was not measured."""
    return "-" if value is None else format(value * factor, form)


def against_static(tables: dict[str, Any], arm: str) -> str:
    """Return ``0.71 [0.69, 0.73]``, or a dash for static itself and for arms without a ratio to it."""
    wanted = (arm, "static", "max_compute_s")
    row = next((r for r in tables["ratios"] if (r["arm"], r["baseline"], r["column"]) == wanted), None)
    if row is None or row["ratio"] is None:
        return "-"
    interval = "" if row["low"] is None else f" [{row['low']:.2f}, {row['high']:.2f}]"
    return f"{row['ratio']:.2f}{interval}"
