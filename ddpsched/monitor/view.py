"""The table of a run: what its steps take, and a line for each rank, of compute against waiting."""

import math
from collections.abc import Sequence

from rich.console import Console, Group, RenderableType
from rich.table import Table
from rich.text import Text

from ddpsched.monitor.summary import RankSummary, Summary

WIDE = 80  # columns from which every column is shown
OTHER_LINES = 9  # of the terminal, beside those of ranks
LEAST_RANKS = 3
BAR, LEAST_BAR = "compute, waiting", 8


def view(heading: str, notes: Sequence[str], summary: Summary | None, console: Console) -> RenderableType:
    """Return a run's heading, its means, its ranks and notes, as large as the console."""
    parts: list[RenderableType] = [Text(heading)]
    if summary is not None:
        parts += [Text(line) for line in sentences(summary)]
        parts.append(_ranks(summary.ranks, console))
    parts += [Text(note, style="yellow") for note in notes]
    return Group(*parts)


def sentences(summary: Summary) -> list[str]:
    """Return the means of a summary in words, those that were measured."""
    step_ms, tokens = _scaled(summary.step_s, 1e3), summary.tokens_per_s
    lines = (
        (("loss {}", summary.loss, ".4f"), ("lr {}", summary.lr, ".3g"),
         ("gradient norm {}", summary.grad_norm, ".3g")),
        (("step {} ms", step_ms, ",.4g"), ("{} samples/s", summary.samples_per_s, ",.4g"),
         ("{} tokens/s", tokens, ",.0f")),
        (("padding {} %", 100 * summary.padding, ".1f"), ("waiting {} %", _scaled(summary.waiting, 100), ".1f"),
         ("slowest rank {} x mean", summary.max_over_mean_compute, ".2f")),
    )  # fmt: skip
    texts = [
        ", ".join(form.format(format(value, spec)) for form, value, spec in line if value is not None) for line in lines
    ]
    first, *others = filter(None, texts)  # the last has padding at least
    return [f"last {summary.num_steps:,} step{'s' * (summary.num_steps != 1)}: {first}", *others]


def _scaled(value: float | None, factor: float) -> float | None:
    return None if value is None else factor * value


def _ranks(ranks: Sequence[RankSummary], console: Console) -> RenderableType:
    """Return the table of ranks; where the terminal is too low for all, the slowest."""
    room = max(LEAST_RANKS, console.height - OTHER_LINES) if console.is_terminal else len(ranks)
    shown = sorted(sorted(ranks, key=lambda each: -(each.compute_s or 0.0))[:room], key=lambda each: each.rank)
    wide, step_s = console.width >= WIDE, max((each.step_s or 0.0 for each in ranks), default=0.0)
    measured = any(each.compute_s is not None for each in ranks)
    headings = ["rank", "b_g", *(["tokens"] * wide), *(["compute ms", "wait ms"] if measured else ["step ms"]), "loss"]
    table = Table(box=None, padding=(0, 2, 0, 0), pad_edge=False)
    for heading in headings:
        table.add_column(heading, justify="right", no_wrap=True)
    room_of_bar = console.width - sum(max(len(heading), 7) + 2 for heading in headings)
    has_bar = measured and room_of_bar >= LEAST_BAR
    if has_bar:
        table.add_column(BAR if room_of_bar >= len(BAR) else "", no_wrap=True)
    for each in shown:
        cells = [str(each.rank), f"{each.num_samples:.1f}"]
        cells += [f"{each.num_tokens:,.0f}"] * wide
        cells += [_ms(each.compute_s), _ms(each.wait_s)] if measured else [_ms(each.step_s)]
        cells.append("-" if each.loss is None else f"{each.loss:.4f}")
        bars = [_bar(each, step_s, min(room_of_bar, 40), console)] if has_bar else []
        table.add_row(*map(Text, cells), *bars)
    if len(shown) == len(ranks):
        return table
    rest = len(ranks) - len(shown)
    return Group(table, Text(f"and {rest:,} {'rank that computes' if rest == 1 else 'ranks that compute'} less"))


def _bar(rank: RankSummary, step_s: float, width: int, console: Console) -> Text:
    """Return a rank's compute and waiting as parts of the longest step; their characters differ as well as colours."""
    signs = "#." if console.options.ascii_only else "█░"
    parts = [each if each is not None and math.isfinite(each) else 0.0 for each in (rank.compute_s, rank.wait_s)]
    whole = max(step_s, sum(parts))
    compute, waiting = (round(width * each / whole) if whole > 0 else 0 for each in parts)
    return Text.assemble((signs[0] * compute, "green"), (signs[1] * min(waiting, width - compute), "yellow"))


def _ms(seconds: float | None) -> str:
    return "-" if seconds is None else f"{1e3 * seconds:,.4g}"
