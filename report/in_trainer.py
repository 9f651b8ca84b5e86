"""The section on transformers' Trainer: tables and sentences on the files of experiments.trainers."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace

from markupsafe import Markup

from analysis.settings import AA
from analysis.stats import Ratio
from analysis.style import STRONGEST
from experiments.benchmarks.bench import text
from experiments.trainers.arms import FIRST
from experiments.trainers.frozen import Frozen, StepsFile, TargetFile
from experiments.trainers.rows import StepRow, TargetRow, in_one_order, label, over_strongest, step_rows, target_rows
from report.sentences import code
from report.wording import JUDGED, listed, number, percent

NEAR = 1.05  # times the shortest epoch, up to which arms are named beside it


class Trainers:
    """Tables and sentences on the files of experiments.trainers."""

    def __init__(self, files: Mapping[str, Frozen]) -> None:
        self.steps = [each for each in files.values() if isinstance(each, StepsFile)]
        self.targets = [each for each in files.values() if isinstance(each, TargetFile)]

    def trainer_steps(self) -> str:
        """Return how many steps each arm's time is of."""
        numbers = []
        for file in self.steps:
            of = file.experiment
            each, launches = of["rounds"] * of["steps"], len(file.launches)
            numbers.append(
                f"{launches * each} steps, {each} in each of {launches} launches ({of['model']}, {of['machine']})"
            )
        return listed(numbers)

    def about_trainer(self) -> Markup:
        """Return, of each model but the tiny one, arms over the strongest, the shortest epochs, and what auto took."""
        said = []
        for file in self.steps:
            parts = [f"{code(name)} {_said(each, word)}" for name, (each, word) in over_strongest(file).items()]
            if parts and file.experiment["model"] != "tiny":
                said.append(f"Time over that of {code(STRONGEST)}: {'; '.join(parts)}.")
            rows = [] if file.experiment["model"] == "tiny" else [row for row in step_rows(file) if row.arm != AA]
            if rows:
                best = min(row.epoch_s for row in rows)
                near = sorted((row for row in rows if row.epoch_s <= NEAR * best), key=lambda row: row.epoch_s)
                names = listed([str(code(label(row.arm))) for row in near])
                said.append(f"Within {percent(NEAR - 1, 0)} of the shortest epoch: {names}.")
            taken = sorted({launch.auto for launch in file.launches if launch.auto})
            if rows and taken:
                said.append(
                    f"{code('auto')} took {listed(taken)}: it chooses among padded plans here, as packed rows need a "
                    "collator that makes them."
                )
        return Markup(" ".join(said))

    def close_in_trainer(self) -> Markup:
        """Return where the strongest batching of others took less time than balanced, though A/A differs by as much."""
        for file in self.steps:
            each, word = over_strongest(file).get("balanced", (None, ""))
            if each is not None and file.experiment["model"] != "tiny" and each.low > 1 and word not in JUDGED:
                return Markup(
                    f"In transformers' Trainer {code('balanced')} took {number(each.value, 3)} times as long as "
                    f"{code(STRONGEST)}, which is no farther from 1 than A/A reaches."
                )
        return Markup("")

    def trainer_notes(self) -> str:
        """Return what another way had to stand in for, and why."""
        return "; ".join(dict.fromkeys(note for file in self.steps for note in file.notes))

    def trainer_rows(self, tiny: bool = True) -> list[dict[str, str]]:
        """Return a row of cells an arm and model. ``tiny``: of the tiny model, too."""
        files = [file for file in self.steps if tiny or file.experiment["model"] != "tiny"]
        return [self._row(str(file.experiment["model"]), row) for file in files for row in step_rows(file)]

    @staticmethod
    def _row(model: str, row: StepRow) -> dict[str, str]:
        given = (row.error, row.own_error)
        errors = ["" if each is None else f"{each:.0e}" if each < 0.01 else percent(each, 0) for each in given]
        return {
            "model": model.rpartition("/")[2], "arm": label(row.arm), "epoch": f"{row.epoch_s:,.0f}",
            "ratio": row.ratio, "verdict": row.verdict.partition(":")[0], "error": errors[0], "own_error": errors[1],
        }  # fmt: skip

    def target_tables(self) -> list[tuple[str, list[TargetRow], Markup]]:
        """Return a heading, its rows and what arms of one order take for each file of times to a dev loss."""
        found = []
        for file in self.targets:
            title = f"{file.experiment['model']}, dev loss {file.target:.3f}, {len(file.seeds)} seeds"
            rows = [replace(row, arm=label(row.arm)) for row in target_rows(file) if row.arm != FIRST]
            found.append((title, rows, self._in_one_order(file)))
        return found

    @staticmethod
    def _in_one_order(file: TargetFile) -> Markup:
        values = [f"{code(name)} {text(each)}" for name, each in in_one_order(file).items() if not math.isnan(each.low)]
        begin = f"Over {code(label('static'))}, whose order and steps these arms share:"
        return Markup(f"{begin} {', '.join(values)}." if values else "")

    @staticmethod
    def about_target(rows: Sequence[TargetRow]) -> str:
        """Return which arms of such a table are told apart from A/A."""
        if any(row.arm == AA and row.verdict == "differs" for row in rows):
            return "The same arm with another order of samples (A/A) differs by itself, so nothing is concluded."
        told = [f"{row.arm} ({row.verdict})" for row in rows if row.verdict in ("faster", "slower")]
        return f"Told apart from A/A: {listed(told)}." if told else "None is told apart from A/A: nothing is concluded."


def _said(measured: Ratio, word: str) -> str:
    """Return a ratio with its verdict, and that its interval excludes 1 where A/A's reaches as far."""
    apart = measured.low > 1 or measured.high < 1
    beside = " although its interval excludes 1" if apart and word not in JUDGED else ""
    return f"{text(measured)}, {word}{beside}"


IN_TRAINER = (
    "trainer_steps", "about_trainer", "trainer_rows", "trainer_notes", "close_in_trainer",
    "target_tables", "about_target",
)  # fmt: skip
