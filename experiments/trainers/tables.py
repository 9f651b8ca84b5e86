"""Rows as tables of a terminal, and the sentences below them."""

from collections.abc import Iterable, Iterator

from rich import box
from rich.table import Table

from experiments.trainers.frozen import Frozen, PeerRow, PeersFile, StepsFile, TargetFile
from experiments.trainers.rows import label, step_rows, target_rows

WIDTH = 116  # columns of the widest table


def shown(file: Frozen) -> Iterator[Table | str]:
    """Yield a file's tables and sentences."""
    if isinstance(file, StepsFile):
        yield _steps(file)
        yield from _below_steps(file)
    elif isinstance(file, TargetFile):
        yield _target(file)
        yield from _reasons(row.verdict for row in target_rows(file))
        yield from _below(file)
    elif isinstance(file, PeersFile):
        for trace, rows in file.traces.items():
            yield _peers(trace, rows)
            yield from (f"{row.arm}: left out: {row.skipped}" for row in rows if row.skipped)


def _table(title: str, right: list[str], last: str) -> Table:
    table = Table(title=title, title_justify="left", box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0))
    table.add_column("arm", no_wrap=True)
    for heading in right:
        table.add_column(heading, justify="right", no_wrap=True)
    table.add_column(last)
    return table


def _steps(file: StepsFile) -> Table:
    of = file.experiment
    counts = f"{len(file.launches)} x {of['rounds']} x {of['steps']}"
    title = f"{of['model']}, {of['data']}, {counts} steps an arm (launches x rounds x steps)"
    headings = ["s a step", "samples", "s an epoch", "/ random (95 %)", "error", "own loss"]
    table = _table(title, headings, "verdict")
    for row in step_rows(file):
        errors = ["" if error is None else f"{error:.1e}" for error in (row.error, row.own_error)]
        figures = [f"{row.step_s:.4f}", f"{row.samples:.1f}", f"{row.epoch_s:,.0f}", row.ratio, *errors]
        table.add_row(label(row.arm), *figures, _word(row.verdict))
    return table


def _word(verdict: str) -> str:
    """Return a verdict without the reason of a missing interval, which stands below the table."""
    return verdict.partition(":")[0]


def _reasons(verdicts: Iterable[str]) -> Iterator[str]:
    yield from sorted({f"{each}." for each in verdicts if ":" in each})


def _below_steps(file: StepsFile) -> Iterator[str]:
    yield (
        "s an epoch: extrapolated, the mean seconds of a sample times the samples of an epoch. error: of the first "
        "step's gradient; own loss: the same with the loss as Trainer or the package has it."
    )
    if takes := {launch.auto for launch in file.launches} - {None}:
        yield f"auto took {', '.join(sorted(filter(None, takes)))}."
    yield from _reasons(row.verdict for row in step_rows(file))
    yield from _below(file)


def _below(file: StepsFile | TargetFile) -> Iterator[str]:
    yield from (f"{note}." for note in file.notes)
    if file.odb_tokens is not None:
        yield f"online-dynamic-batching: {file.odb_tokens} tokens a micro-batch, for 32 samples a step on average."
    yield from (f"{label(name)}: left out: {why}" for name, why in file.left_out.items())


def _target(file: TargetFile) -> Table:
    of = file.experiment
    title = f"{of['model']}, {of['data']}, to a dev loss of {file.target:.4f}, {len(file.seeds)} seeds"
    table = _table(title, ["reached", "s", "samples", "s / random (95 %)", "samples / random"], "verdict")
    for row in target_rows(file):
        seconds = "" if row.seconds is None else f"{row.seconds:.2f}"
        samples = "" if row.samples is None else f"{row.samples:,.0f}"
        reached = f"{row.reached} of {row.seeds}"
        table.add_row(label(row.arm), reached, seconds, samples, row.ratio, row.samples_ratio, _word(row.verdict))
    return table


def _peers(trace: str, rows: list[PeerRow]) -> Table:
    table = _table(trace, ["yardstick", "/ static", "gap", "order bias", "same gradient"], "package")
    for row in rows:
        if row.skipped is None:
            values = [
                _number(row.yardstick, ".4f"), _number(row.times_static, ".3f"), _number(row.gap, ".2%"),
                _number(row.order_bias, "+.4f"), {True: "yes", False: "no", None: ""}[row.same_gradient],
            ]  # fmt: skip
            table.add_row(row.arm, *values, row.package or "ddpsched")
    return table


def _number(value: float | None, form: str) -> str:
    return "" if value is None else format(value, form)
