"""Policy auto: the time of what it takes against the best of all its candidates, each measured, as Markdown.

    python -m experiments.benchmarks.auto DIR [--steps 60] [--models tiny distilbert-base-uncased] [--data sst2 gsm8k]
                                          [--ranks gloo virtual] [--global-batch 32] [--shapes N] [--launches 5]
                                          [--freeze]

DIR holds `sst2/`, `gsm8k/` and `bert-uncased/`. A launch of a setting is one `ddpsched advise --steps 0`, for which
nothing is kept, and one in which static, static again (A/A) and all candidates run in turn, with what the first kept;
2 gloo ranks or 4 virtual ones. `--shapes`: padded candidates compiled for a menu of so many shapes are among them.
Times are over static's: of what was taken, of the fastest candidate, and of A/A; then the largest error of a
prediction, and whose it is; the seconds of the first call, its start and compiling included; and the largest time of
choosing in the second, as a share of 300 steps of what was taken. DistilBERT has no head of a language model, so on
GSM8K DistilGPT-2, of about its size, is in its place. `--freeze` writes each setting into `report/results/auto/` as
it ends, where it takes the place of an earlier one.
"""

import argparse
import itertools
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter
from typing import Any

from ddpsched.command_exit import guarded
from ddpsched.costs.step_times import KEPT
from ddpsched.errors import RunError
from ddpsched.records import write_json
from experiments.reliability.findings import stamp
from report.auto import HEADINGS, cells
from report.results import AUTO

FROZEN = Path(__file__).parents[2] / "report" / "results" / AUTO
RANKS = {"gloo": (2, "distributed"), "virtual": (4, "virtual")}
DATA = {
    "sst2": ("sst2/train.tsv", {"text": "sentence"}, "classification"),
    "gsm8k": ("gsm8k/train.jsonl", {"text": "answer", "prompt": "question", "max_length": "256"}, "causal_lm"),
}
STEPS = 300  # of the run that advice is for
LANGUAGE_MODELS = {"distilbert-base-uncased": "distilgpt2"}  # of about the same size, where the task is another


@dataclass(frozen=True)
class Setting:
    """A setting of the table. ``shapes``: of the compiled candidates' menus, or None where nothing is compiled."""

    model: str
    data: str
    ranks: str
    global_batch: int
    steps: int
    shapes: int | None = None
    launches: int = 5

    @property
    def trained(self) -> str:
        """The model that is trained: on answers a language model."""
        return LANGUAGE_MODELS.get(self.model, self.model) if DATA[self.data][2] == "causal_lm" else self.model

    @property
    def file(self) -> str:
        """The name of its file."""
        compiled = "" if self.shapes is None else f"-{self.shapes}-shapes"
        return f"{self.trained}-{self.data}-{self.ranks}{compiled}.json"

    def command(self, folder: Path | str = "DIR") -> list[str]:
        """Return the words of the command that measures this setting alone."""
        words = [
            "experiments.benchmarks.auto", str(folder), "--models", self.model, "--data", self.data,
            "--ranks", self.ranks, "--global-batch", str(self.global_batch), "--steps", str(self.steps),
            "--launches", str(self.launches),
        ]  # fmt: skip
        return words if self.shapes is None else [*words, "--shapes", str(self.shapes)]

    def advice(self, folder: Path, output: Path, steps: int) -> dict[str, Any]:
        """Return what `ddpsched advise` prints, ``steps`` of each arm measured. Raises RunError where it fails.

        What it measures and searches for later runs is kept in ``output``.
        """
        size, executor = RANKS[self.ranks]
        path, columns, task = DATA[self.data]
        config = output / "run.toml"
        config.write_text(f"steps = {STEPS}\nglobal_batch = {self.global_batch}\n")
        words = [
            f"world_size={size}", f"executor.kind={executor}", f"data.path={folder / path}", f"outputs={output}",
            f"data.tokenizer={folder / 'bert-uncased'}", f"model.task={task}", f"model.name={self.trained}",
            *(f"data.{key}={value}" for key, value in columns.items()),
            *([] if self.shapes is None else ["compile.kind=static", f"compile.shapes={self.shapes}"]),
        ]  # fmt: skip
        start = [sys.executable, "-m", "ddpsched"]
        if executor == "distributed":
            rendezvous = ["--standalone", f"--nproc-per-node={size}"]
            start = [sys.executable, "-m", "torch.distributed.run", *rendezvous, "-m", "ddpsched"]
        command = [*start, "advise", str(config), *words, "--steps", str(steps), "--first", "9", "--json"]
        environ = {**os.environ, KEPT: str(output / "kept")}
        done = subprocess.run(command, capture_output=True, text=True, check=False, env=environ)
        if done.returncode:
            raise RunError(f"{' '.join(command)}\n{done.stderr[-3000:]}")
        found: dict[str, Any] = json.loads(done.stdout[done.stdout.index("{\n") :])
        return found


def launch(setting: Setting, folder: Path) -> dict[str, Any]:
    """Return what one launch predicted, took and measured."""
    with tempfile.TemporaryDirectory() as output:
        begin = perf_counter()
        setting.advice(folder, Path(output), 0)
        first_s = perf_counter() - begin
        found = setting.advice(folder, Path(output), setting.steps)
    step_s = next(each["step_s"] for each in found["ranking"] if each["name"] == found["chosen"])
    return {
        "first_s": round(first_s, 1), "choosing": found["seconds"] / (STEPS * step_s),
        **{name: found[name] for name in ("chosen", "ranking", "measured")},
    }  # fmt: skip


def measure(setting: Setting, folder: Path) -> dict[str, Any]:
    """Return a setting with all its launches, and the hours that they took."""
    begin = perf_counter()
    launches = [launch(setting, folder) for _ in range(setting.launches)]
    return {
        "model": setting.trained, "data": setting.data, "world_size": RANKS[setting.ranks][0], "ranks": setting.ranks,
        "global_batch": setting.global_batch, "steps": setting.steps, "shapes": setting.shapes,
        "command": f"python -m {' '.join(setting.command())}", "hours": round((perf_counter() - begin) / 3600, 2),
        **stamp(), "launches": launches,
    }  # fmt: skip


def main(words: Sequence[str] | None = None) -> int:
    """Print the table, and freeze its rows; return the exit code."""
    parser = argparse.ArgumentParser(
        prog="python -m experiments.benchmarks.auto", description="Policy auto against the best of its candidates."
    )
    parser.add_argument("folder", type=Path, metavar="DIR")
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--models", nargs="+", default=["tiny", "distilbert-base-uncased"])
    parser.add_argument("--data", nargs="+", default=[*DATA], choices=[*DATA])
    parser.add_argument("--ranks", nargs="+", default=[*RANKS], choices=[*RANKS])
    parser.add_argument("--global-batch", type=int, default=32)
    parser.add_argument("--shapes", type=int, help="compile padded candidates for a menu of so many shapes, too")
    parser.add_argument("--launches", type=int, default=5)
    parser.add_argument("--freeze", action="store_true", help="write each setting into report/results/auto/")
    given = parser.parse_args(words)

    def body() -> None:
        print(f"| {' | '.join(HEADINGS)} |\n|{'|'.join(['--:'] * len(HEADINGS))}|")
        for model, data, ranks in itertools.product(given.models, given.data, given.ranks):
            setting = Setting(model, data, ranks, given.global_batch, given.steps, given.shapes, given.launches)
            row = measure(setting, given.folder)
            print(f"| {' | '.join(cells(row))} |", flush=True)
            if given.freeze:
                FROZEN.mkdir(parents=True, exist_ok=True)
                write_json(FROZEN / setting.file, row)

    return guarded(body)


if __name__ == "__main__":
    sys.exit(main())
