"""Memory and time of attention masks: a mask of tokens, one of pairs of tokens, and one triangle for all samples.

    python -m experiments.benchmarks.masks [shape=COUNTxLONGEST ...] [CONFIG] [key=value ...] [--rounds 8]
        [--launches 3]

Measures the model and task of CONFIG; without one the tiny classifier and the tiny causal language model. Lengths of
samples go from a quarter of the longest up to it. *Mask*: the bytes of the mask itself, as the model gets it. *Peak*:
memory that a forward and backward needs above what the process holds before, the median over the first launch's rounds.
*Apart*: the largest difference of outputs at real tokens from those with key_padding. *Time*: collation, forward and
backward over that of key_padding, which runs twice in each round (A/A); intervals are of launches, each a process that
measures all masks in turn, and the verdicts' family is the whole table.
"""

import argparse
import sys
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from rich import box
from rich.table import Table

from ddpsched.cli import guarded
from ddpsched.config import RunConfig, apply_overrides, load, parse
from ddpsched.data.embedded.sentences import embedded_tokenizer
from ddpsched.errors import ConfigError
from ddpsched.terminal import plain_console
from ddpsched.training.clock import Clock, PeakMemory, pick_device, return_freed_memory
from ddpsched.training.collate import Batch, pad
from ddpsched.training.loss import loss_sum
from ddpsched.training.masks import enable_mask
from ddpsched.training.model import build_model
from experiments.benchmarks.bench import AA, ROUNDS, Judged, Seconds, add_options, in_turn, judged, launched

SHAPES = ((8, 128), (8, 512), (32, 128))
KINDS = ("key_padding", "per_sample", "shared")  # the first is what the others are compared with
TASKS = ("classification", "causal_lm")
Row = dict[str, Any]
Shape = tuple[int, int]
Section = tuple[list[Row], Seconds]  # of one model and shape in one launch: a row a mask, and the times by mask


class Runner:
    """A config's model on its device, with ``count`` samples of up to ``longest`` tokens.

    Attributes:
        kinds: the masks that the model can take.
        refused: the reasons for the others.
    """

    def __init__(self, config: RunConfig, count: int, longest: int) -> None:
        torch.set_num_threads(config.executor.threads)
        torch.manual_seed(config.seed)
        vocab_size = embedded_tokenizer().get_vocab_size()
        self.device = pick_device(config, 0)
        self._model: Any = build_model(config.model, config.data.num_labels, vocab_size, 0)
        self.kinds, self.refused = [KINDS[0]], dict[str, str]()
        for kind in KINDS[1:]:
            if kind == "shared" and config.model.task != "causal_lm":
                continue  # a classifier cannot share one mask
            try:
                enable_mask(self._model, config.model.name, kind, longest)
                self.kinds.append(kind)
            except ConfigError as error:
                self.refused[kind] = str(error)
        self._model.to(self.device)
        random = np.random.default_rng(config.seed)
        lengths = np.linspace(longest // 4, longest, count).round().astype(int)
        self._rows = [random.integers(1, vocab_size, length) for length in lengths]
        self._labels = self._rows if config.model.task == "causal_lm" else np.arange(count) % config.data.num_labels
        self._clock, self._memory = Clock(self.device), PeakMemory(self.device)

    def batch(self, kind: str) -> Batch:
        """Return the padded batch with this mask."""
        return pad(self._rows, self._labels, 0, self.device, mask=kind)

    @torch.no_grad()
    def outputs(self, kind: str) -> torch.Tensor:
        """Return logits without dropout: (samples, classes), or (real tokens, vocabulary) of a causal_lm."""
        logits = self._model.eval()(**self.batch(kind).inputs).logits
        real = self.batch(KINDS[0]).attention_mask
        assert real is not None
        return logits if logits.dim() == 2 else logits[real > 0]

    def work(self, kind: str) -> tuple[float, int | None]:
        """Run a forward and backward; return its seconds, and its peak in bytes above what was held before.

        None for the peak where the device does not report it.
        """
        self._model.train()
        self._model.zero_grad(set_to_none=False)  # gradients are part of what is held
        return_freed_memory()
        self._memory.reset()
        held, begin = self._memory.read(), self._clock.mark()
        batch = self.batch(kind)
        loss_sum(self._model(**batch.inputs).logits, batch.labels).backward()
        seconds, peak = self._clock.seconds(begin, self._clock.mark()), self._memory.read()
        return seconds, None if peak is None or held is None else peak - held


def measure(config: RunConfig, count: int, longest: int, rounds: int = ROUNDS, seed: int = 0) -> Section:
    """Return a row for each mask, with its bytes and the largest difference of outputs from the first's; and the times.

    A mask that the model cannot take has a row with the reason, and no time. ``seed``: of the order of turns.
    """
    runner = Runner(config, count, longest)
    peaks: dict[str, list[int | None]] = {kind: [] for kind in runner.kinds}

    def work(kind: str) -> float:
        taken, peak = runner.work(kind)
        peaks[kind].append(peak)
        return taken

    seconds = in_turn({kind: partial(work, kind) for kind in runner.kinds}, rounds, seed)
    base = {"task": config.model.task, "model": config.model.name, "count": count, "longest": longest}
    rows: list[Row] = []
    expected = runner.outputs(KINDS[0])
    for kind in runner.kinds:
        mask, known = runner.batch(kind).attention_mask, [peak for peak in peaks[kind] if peak is not None]
        assert mask is not None
        rows.append(
            {
                **base,
                "kind": kind,
                "mask_bytes": mask.nbytes,
                "peak_bytes": int(np.median(known)) if known else None,
                "apart": float((runner.outputs(kind) - expected).abs().max()),
                "refused": None,
            }
        )
    rows += [{**base, "kind": kind, "refused": why} for kind, why in runner.refused.items()]
    return rows, seconds


def measure_all(configs: Sequence[RunConfig], shapes: Sequence[Shape], rounds: int, seed: int) -> list[Section]:
    """Return what ``measure`` returns for each config and shape: one launch."""
    return [measure(config, *shape, rounds, seed) for config in configs for shape in shapes]


def report(launches: Sequence[Sequence[Section]]) -> Table:
    """Return the table of all sections: times over the launches, memory and outputs of the first one."""
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for name in ("task", "model", "B x T", "mask"):
        table.add_column(name, no_wrap=True)
    for name in ("mask bytes", "peak MB", f"peak\n/ {KINDS[0]}", "apart", "seconds", f"time\n/ {KINDS[0]} (95 %)"):
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column("time is")
    sections = list(zip(*launches, strict=True))
    times = judged([[seconds for _, seconds in section] for section in sections])
    for section, found in zip(sections, times, strict=True):
        for cells in _cells(section[0][0], found):
            table.add_row(*cells)
    return table


def _cells(rows: Sequence[Row], times: dict[str, Judged]) -> Iterator[list[str]]:
    """Yield the cells of a section's lines: its masks, with the A/A after the first."""
    for row in rows:
        cells = [row["task"], Path(row["model"]).name, f"{row['count']} x {row['longest']}", row["kind"]]
        if row["refused"]:
            yield [*cells, "refused"]
            continue
        peak, base, time = row["peak_bytes"], rows[0]["peak_bytes"], times[row["kind"]]
        yield [
            *cells,
            f"{row['mask_bytes']:,}",
            "" if peak is None else f"{peak / 1e6:.1f}",
            "" if not peak or not base or row is rows[0] else f"{peak / base:.2f}",
            f"{row['apart']:.1e}",
            f"{time.seconds:.3f}",
            time.text,
            time.verdict,
        ]
        if row is rows[0]:
            again = times[AA]
            yield [*cells[:3], AA, "", "", "", "", f"{again.seconds:.3f}", again.text, again.verdict]


def configs(words: Sequence[str]) -> Iterator[RunConfig]:
    """Yield the config that the words name, or the default ones of both tasks with the words' overrides."""
    if words and "=" not in words[0]:
        yield load(words[0], list(words[1:]))
        return
    for task in TASKS:
        base: dict[str, Any] = {"steps": 1, "model": {"task": task}, "executor": {"kind": "virtual", "device": "cpu"}}
        yield parse(apply_overrides(base, list(words)))


def main(words: Sequence[str]) -> int:
    """Measure, and print the table; return the exit code."""
    parser = argparse.ArgumentParser(
        prog="python -m experiments.benchmarks.masks",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("words", nargs="*", metavar="CONFIG, shape=COUNTxLONGEST or key=value")
    add_options(parser)
    options = parser.parse_intermixed_args(words)
    given = [word.removeprefix("shape=").split("x") for word in options.words if word.startswith("shape=")]
    shapes = [(int(count), int(longest)) for count, longest in given] or SHAPES
    rest = [word for word in options.words if not word.startswith("shape=")]

    def body() -> None:
        chosen = list(configs(rest))
        launches: list[list[Section]] = launched(measure_all, chosen, shapes, options.rounds, launches=options.launches)
        plain_console(at_least=160).print(report(launches))
        for rows, _ in launches[0]:
            for row in rows:
                if row["refused"]:
                    print(row["refused"])

    return guarded(body)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
