"""The evaluations of a run, and its totals: tokens, padding, runs of each sample."""

import logging
import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from ddpsched.costs.rank_speed import Speed
from ddpsched.data.lengths import Lengths
from ddpsched.decode import decode_json
from ddpsched.planning.plan_spec import PlanSpec
from ddpsched.planning.record_columns import rank_cost
from ddpsched.records import StepRecord
from ddpsched.recovery.ledger import entries
from ddpsched.run_folder import RunFolder
from ddpsched.step_plan import StepPlan

if TYPE_CHECKING:
    from ddpsched.training.learner import Evaluation

log = logging.getLogger("ddpsched")


@dataclass(frozen=True)
class Evaluations:
    """The file of evaluations, which rank 0 writes. ``every``: steps between two; 0 for the last step alone."""

    folder: RunFolder
    is_main: bool
    every: int
    total_steps: int

    def are_due(self, done: int) -> bool:
        """Return whether to evaluate after so many steps, before the last."""
        return bool(self.every) and done % self.every == 0 and done < self.total_steps

    def last(self) -> int:
        """Return the step of the last one in the file; 0 where there is none."""
        path = self.folder.path / "evaluations.jsonl"
        lines = path.read_bytes().splitlines() if path.exists() else []
        return int(decode_json(lines[-1])["step"]) if lines else 0

    def add(self, step: int, sums: "Evaluation | None") -> None:
        """Write and log the evaluation after a step; nothing where there was none."""
        if sums is None or not self.is_main:
            return
        loss, accuracy = sums.loss_sum / sums.count, sums.num_correct / sums.count
        num_targets = None if sums.num_targets is None else int(sums.num_targets)
        row = {
            "step": step,
            "loss": loss,
            "accuracy": accuracy,
            "num_samples": int(sums.num_samples),
            "majority": sums.majority,
            "perplexity": None if num_targets is None else _perplexity(loss),
            "num_targets": num_targets,
        }
        self.folder.add_evaluation(row)
        log.info("after step %d: dev loss %.4f, accuracy %.4f (majority %.4f)", step, loss, accuracy, sums.majority)


@dataclass
class Tally:
    """The tokens and samples of a run in this process, and the speed of each rank here, where plans follow it."""

    spec: PlanSpec
    lengths: Lengths
    speeds: Sequence[Speed]
    num_tokens: int = 0
    padded_tokens: int = 0

    def __post_init__(self) -> None:
        self.num_runs = np.zeros(len(self.lengths) if self.spec.policy.repeats else 0, dtype=np.int64)  # of each sample

    def count(self, folder: Path) -> None:
        """Count the runs of samples in the steps before this process, as the ledger in ``folder`` has them."""
        for entry in entries(folder) if len(self.num_runs) else ():
            for ids in entry.ranks:
                self.num_runs[ids] += 1

    def add(self, plan: StepPlan, records: Sequence[StepRecord]) -> None:
        """Count the tokens of a step, and measure its speeds, which are for the plan after next."""
        self.num_tokens += sum(record.num_tokens for record in records)
        self.padded_tokens += sum(record.padded_tokens for record in records)
        if len(self.num_runs):
            self.num_runs[plan.ids] += 1
        for speed, record in zip(self.speeds, records, strict=bool(self.speeds)):
            speed.add(rank_cost(self.spec.cost, plan, record.rank, self.lengths), record.compute_s or 0.0)

    def summary(self) -> dict[str, Any]:
        """Log the share of padding, and what ran never or again; return the latter, for environment.json."""
        if self.padded_tokens:  # none where no step was left to a run that went on
            share = 1 - self.num_tokens / self.padded_tokens
            log.info("%.1f %% of the %d tokens computed here were padding", 100 * share, self.padded_tokens)
        if not len(self.num_runs):
            return {}
        again, never = int(np.maximum(self.num_runs - 1, 0).sum()), int((self.num_runs == 0).sum())
        log.info("of %d samples %d never ran, and %d runs were of one again", len(self.num_runs), never, again)
        return {"num_never_run": never, "num_run_again": again}


def _perplexity(loss: float) -> float | None:
    """Return exp(loss); None where it is beyond float64, or the loss is NaN."""
    return math.exp(loss) if loss < 700 else None
