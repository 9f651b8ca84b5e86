"""The yardstick of all policies and peers on SST-2 and GSM8K, by `ddpsched plan`'s own comparison, as a file."""

from collections.abc import Sequence
from pathlib import Path

from ddpsched.compare import Question, Row, compare
from ddpsched.costs.cost_model import Int
from ddpsched.peers import PEERS
from experiments.benchmarks.yardstick import TRACES, Trace, lengths_of
from experiments.trainers.frozen import PeerRow, PeersFile, begun, environment, write
from experiments.trainers.parts import Say, say


def freeze_peers(folder: Path, freeze: Path | None, say: Say = say, traces: Sequence[Trace] = TRACES) -> PeersFile:
    """Return the figures of one epoch of each trace; traces that the file has are not planned again."""
    lengths = lengths_of(folder)
    experiment = {name: [len(each), int(each.sum())] for name, each in lengths.items()}
    file = begun(freeze, PeersFile, experiment)
    if file is None:
        file = PeersFile(experiment=experiment, environment=environment(), traces={})
    for data, ranks, batch in traces:
        title = f"{data}, {ranks} ranks, global batch {batch}"
        if title not in file.traces:
            file = file.model_copy(update={"traces": {**file.traces, title: _rows(lengths[data], ranks, batch)}})
            write(freeze, file)
            missing = sum(row.skipped is not None for row in file.traces[title])
            say(f"{title}: {len(file.traces[title])} rows, {missing} left out")
    return file


def _rows(lengths: Int, ranks: int, batch: int) -> list[PeerRow]:
    return [_row(row) for row in compare(Question(lengths, ranks, batch), (), tuple(PEERS))]


def _row(row: Row) -> PeerRow:
    figures = row.figures
    return PeerRow(
        arm=row.arm,
        package=row.package,
        yardstick=None if figures is None else figures.yardstick,
        times_static=row.times_static,
        gap=row.gap,
        order_bias=None if figures is None else figures.order_bias,
        same_gradient=row.same_gradient,
        samples_cv=None if figures is None else figures.samples_cv,
        skipped=row.skipped,
    )
