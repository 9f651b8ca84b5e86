"""The comparison of a setting's arms as a table for the terminal."""

import math
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
    """Return a row per arm; the mean global batch is shown where arms differ in it."""
    batches = [arm.get("batch_mean") or 0.0 for arm in tables["arms"]]
    varies = max(batches) > 1.01 * min(batches)
    columns = [column for column in COLUMNS if column[1] != "batch_mean" or varies]
    table = Table(title=tables["label"], title_justify="left", box=SIMPLE_HEAD, collapse_padding=True)
    table.add_column("\n\narm (runs)")  # the one column that may wrap
    for heading, *_ in columns:
        table.add_column(heading, justify="right", no_wrap=True)
    for arm in tables["arms"]:
        cells = [number(arm.get(key), factor, form) for _, key, factor, form in columns]
        table.add_row(f"{arm['arm']} ({arm['num_runs']})", *cells)
    return table


def verdicts(tables: dict[str, Any]) -> Table:
    """Return a row per arm: its times over the baseline's with 95 % intervals of launches, and the verdict on its step.

    The A/A row is the noise floor: the baseline over itself.
    """
    title = f"times over {tables['baseline']}'s, 95 % intervals of launches; the A/A row is noise alone"
    table = Table(title=title, title_justify="left", box=SIMPLE_HEAD, collapse_padding=True)
    table.add_column("\narm")
    for heading in ("\nstep time", "P95 of\nstep time", "pairs\n(launches)", "lag-1 r,\neffective"):
        table.add_column(heading, justify="right", no_wrap=True)
    table.add_column("\nverdict on the step time", min_width=len("not told apart from A/A"))
    rows = {(row["arm"], row["column"]): row for row in tables["ratios"] if row["baseline"] == tables["baseline"]}
    for arm in (row["arm"] for row in tables["arms"] if (row["arm"], "step_s") in rows):
        step = rows[arm, "step_s"]
        independent = f"{number(step['rho'], 1, '.2f')}, {number(step['effective_steps'], 1, '.0f')}"
        table.add_row(
            arm,
            interval(step),
            interval(step, "p95_"),
            f"{step['num_steps']} ({step['num_launches']})",
            independent,
            step["verdict"] or "-",
        )
    return table


def interval(row: dict[str, Any], prefix: str = "") -> str:
    """Return ``0.712 (0.690–0.734)`` of a row's ratio, or of its ``p95_`` one; a dash for what is not known."""
    value, low, high = (row.get(f"{prefix}{name}") for name in ("ratio", "low", "high"))
    if value is None or not math.isfinite(value):
        return "-"
    return f"{value:.3f}" if low is None or high is None else f"{value:.3f} ({low:.3f}–{high:.3f})"


# of the arms of a comparison: heading, key, factor, format
SIDE_BY_SIDE = (
    ("mean\nglobal\nbatch", "batch_mean", 1, ".1f"),
    ("real\ntokens\n/s", "tokens_per_s", 1, ".0f"),
    ("\n/ base-\nline", "speed_ratio", 1, ".2f"),
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
    table.add_column("\n\nverdict on speed")
    for arm in tables["arms"]:
        cells = [number(arm.get(key), factor, form) for _, key, factor, form in SIDE_BY_SIDE]
        table.add_row(arm["arm"], *cells, arm["verdict"] or "-")
    return table


def number(value: float | None, factor: float, form: str) -> str:
    """Return a cell, ``value * factor`` in this format; a dash for None, what was not measured."""
    return "-" if value is None else format(value * factor, form)
