"""The comparison of a setting's arms as a table for the terminal."""

import math
import sys
from collections.abc import Sequence
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from analysis.stats import steps_needed
from ddpsched.terminal import plain_console, sized_console

QUANTILES = {"p95": 0.95, "p99": 0.99}  # by the prefix of their ratios

# heading, key of the arm row, factor, format
COLUMNS = (
    ("mean\nglobal\nbatch", "batch_mean", 1, ".1f"),
    ("\nstep\nms", "step_mean_s", 1e3, ".4g"),
    ("step\nP95\nms", "step_p95_s", 1e3, ".4g"),
    ("step\nP99\nms", "step_p99_s", 1e3, ".4g"),
    ("max\ncompute\nms", "max_compute_mean_s", 1e3, ".4g"),
    ("\nsamples\n/s", "samples_per_s", 1, ".4g"),
    ("\nwaiting\n%", "wait_share", 100, ".1f"),
    ("real\ntokens\n%", "padding_efficiency", 100, ".1f"),
    ("largest\nrank /\neven", "yardstick", 1, ".2f"),
    ("plan\nwait P95\nus", "plan_wait_p95_s", 1e6, ".0f"),
    ("dev\nacc.\n%", "dev_accuracy", 100, ".1f"),
)


def console() -> Console:
    """Return the terminal with its width; 120 columns in a pipe or a log, which have none."""
    return sized_console() if plain_console().is_terminal else plain_console(width=120)


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

    The A/A row is the noise floor: the baseline over itself. Intervals stand below their ratios where quantiles have
    some, too, so that 100 columns are enough. Below the table: which quantiles have none, and why.
    """
    title = f"times over {tables['baseline']}'s, 95 % intervals of launches; the A/A row is noise alone"
    found = {(row["arm"], row["column"]): row for row in tables["ratios"] if row["baseline"] == tables["baseline"]}
    rows = [found[arm["arm"], "step_s"] for arm in tables["arms"] if (arm["arm"], "step_s") in found]
    notes = "\n".join([*quantile_note(rows), *tables.get("notes", ())])
    table = Table(title=title, title_justify="left", caption=notes or None, caption_justify="left", box=SIMPLE_HEAD)
    table.collapse_padding = True
    table.add_column("\narm", min_width=12)
    for heading in ("\nstep time", "\nP95", "\nP99", "pairs\n(launches)", "lag-1 r,\neffective"):
        table.add_column(heading, justify="right", no_wrap=True)
    table.add_column("verdict on\nthe step time", min_width=len("apart from A/A"))
    between = "\n" if any(row.get(f"{name}_low") is not None for row in rows for name in QUANTILES) else " "
    for row in rows:
        table.add_row(
            row["arm"],
            *(interval(row, prefix, between) for prefix in ("", *(f"{name}_" for name in QUANTILES))),
            f"{row['num_steps']} ({row['num_launches']})",
            f"{number(row['rho'], 1, '.2f')}, {number(row['effective_steps'], 1, '.0f')}",
            row["verdict"] or "-",
        )
    return table


def quantile_note(rows: Sequence[dict[str, Any]]) -> list[str]:
    """Return a line on the steps that intervals of quantiles need, where a row has too few of them; else none.

    >>> quantile_note([{"num_launches": 3, "least_steps": 24}])
    ['P95 needs 34 steps a launch for an interval, P99 167; this study has 24']
    """
    several = [row for row in rows if row["num_launches"] > 1 and "least_steps" in row]
    if not several:
        return []
    launches, has = (min(row[key] for row in several) for key in ("num_launches", "least_steps"))
    needs = [(name.upper(), steps_needed(launches, quantile)) for name, quantile in QUANTILES.items()]
    (first, few), (last, many) = needs
    text = f"{first} needs {few} steps a launch for an interval, {last} {many}; this study has {has}"
    return [text] if has < many else []


def interval(row: dict[str, Any], prefix: str = "", between: str = " ") -> str:
    """Return ``0.712 (0.690–0.734)`` of a row's ratio, or of its ``p95_`` one; a dash for what is not known."""
    value, low, high = (row.get(f"{prefix}{name}") for name in ("ratio", "low", "high"))
    if value is None or not math.isfinite(value):
        return "-"
    return f"{value:.3f}" if low is None or high is None else f"{value:.3f}{between}({low:.3f}–{high:.3f})"


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


def command(own: str) -> str:
    """Return the words that this command was called by: ``ddpsched ...``, or else its ``own``."""
    return sys.argv[0] if sys.argv[0].startswith("ddpsched ") else own
