"""The price of a menu of few shapes, by policy, as Markdown: SST-2, 4 ranks, 32 samples a step.

    python -m experiments.benchmarks.shape_menus DIR [--seeds 3]

DIR holds `sst2/train.tsv` and `bert-uncased/`. Each cell is what the slowest rank pays in an epoch on a menu of N
shapes, over what it pays without a menu, planned anew on the menu; in brackets the same for finished plans that are
rounded up to a menu which was chosen for them. The last column is what plans without a menu pay, over an even share of
the real tokens. `static, all ranks` adds the padding of all ranks, in place of the slowest.
"""

import argparse
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from ddpsched.config import RunConfig, parse
from ddpsched.costs.cost_model import CostModel, Int, padded_tokens
from ddpsched.costs.shape_menu import Shape, on_menu
from ddpsched.data.lengths import KnownLengths
from ddpsched.exchange import LocalExchange
from ddpsched.planning.planner import plan_steps
from ddpsched.planning.shapes.choose import NO_MENU, Menu
from ddpsched.planning.shapes.search import search_shapes
from experiments.benchmarks.yardstick import lengths_of

SHAPES = (4, 8, 16, 32)
ARMS: dict[str, dict[str, object]] = {
    "static": {"kind": "static"},
    "minmax": {"kind": "minmax"},
    "balanced": {"kind": "balanced"},
    "balanced, M = 2": {"kind": "balanced", "max_microbatches": 2},
    "balanced, M = 4": {"kind": "balanced", "max_microbatches": 4},
    "token_budget": {"kind": "token_budget", "max_tokens_for_batch": 256},
    "bins": {"kind": "bins", "median_batch": 8},
    "pool": {"kind": "pool", "max_tokens_for_batch": 160},
}
Steps = list[list[list[Shape]]]  # count and longest of each step's, rank's and micro-batch


@dataclass(frozen=True)
class FinishedSteps:
    """Plans that are there already; a menu only rounds their micro-batches up. ``steps``: as ``Steps``."""

    cost: CostModel
    steps: Steps

    @property
    def _table(self) -> tuple[Int, Int, Int]:
        rows = [(s, r, *micro) for s, step in enumerate(self.steps) for r, rank in enumerate(step) for micro in rank]
        each = np.array(rows, dtype=np.int64)
        return each[:, 0] * (each[:, 1].max() + 1) + each[:, 1], each[:, 2], each[:, 3]

    @property
    def lengths(self) -> Int:
        return self._table[2]

    @property
    def work(self) -> int:
        return 3000 * len(self.steps)

    def typical(self) -> float:
        """Return what the slowest ranks pay."""
        return slowest(self.steps, self.cost) / len(self.steps)

    def judge(self, shapes: list[Shape]) -> float:
        """Return the mean of the slowest rank's price on a menu."""
        place, counts, longest = self._table
        price = on_menu(self.cost, shapes).padded(counts, longest).astype(np.float64)
        ranks = np.bincount(place, price, minlength=len(self.steps) * len(self.steps[0]))
        return float(ranks.reshape(len(self.steps), -1).max(1).mean())


def planned(config: RunConfig, lengths: KnownLengths, menu: Menu = NO_MENU) -> Steps:
    """Return the micro-batches of an epoch."""
    plans = plan_steps(config.plan_spec(menu=menu), lengths, LocalExchange(config.world_size))
    return [
        [[(len(micro), int(lengths.lengths(micro.ids).max())) for micro in rank] for rank in plan.ranks]
        for plan in plans
    ]


def slowest(steps: Steps, cost: CostModel) -> int:
    """Return the sum over steps of what the slowest rank pays."""
    return sum(max(sum(int(cost.padded(*micro)) for micro in rank) for rank in step) for step in steps)


def everything(steps: Steps, cost: CostModel) -> int:
    """Return what all ranks pay in all steps."""
    return sum(int(cost.padded(*micro)) for step in steps for rank in step for micro in rank)


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(
        prog="python -m experiments.benchmarks.shape_menus", description="The price of a menu of few shapes, by policy."
    )
    parser.add_argument("folder", type=Path, metavar="DIR")
    parser.add_argument("--seeds", type=int, default=3)
    given = parser.parse_args()
    lengths = KnownLengths(np.minimum(lengths_of(given.folder)["SST-2"], 128))
    even = int(lengths.lengths(np.arange(len(lengths))).sum()) / 4
    print("| policy | " + " | ".join(f"N = {shapes}" for shapes in SHAPES) + " | without, over an even share |")
    print("|:--|" + "--:|" * (len(SHAPES) + 1))
    for arm, policy in ARMS.items():
        cells: dict[int, list[tuple[float, float, float]]] = {shapes: [] for shapes in SHAPES}
        without = []
        for seed in range(given.seeds):
            table = {"epochs": 1, "seed": seed, "global_batch": 32, "world_size": 4, "policy": policy}
            finished = planned(parse(table), lengths)
            free, sums = slowest(finished, padded_tokens), everything(finished, padded_tokens)
            without.append(free / even)
            worst = (max(c for step in finished for rank in step for c, _ in rank), 66)
            for shapes in SHAPES:
                config = parse({**table, "compile": {"kind": "static", "shapes": shapes}})
                menu = config.menu(lengths)
                steps = planned(config, lengths, menu)
                cost = on_menu(padded_tokens, menu.shapes)
                laid = float("nan")
                if arm.startswith("balanced"):
                    trial = FinishedSteps(padded_tokens, finished[::4])
                    over = on_menu(padded_tokens, search_shapes(trial, shapes, worst))
                    laid = slowest(finished, over) / free
                cells[shapes].append((slowest(steps, cost) / free, laid, everything(steps, cost) / sums))
        means = {shapes: np.mean(values, axis=0) for shapes, values in cells.items()}
        shown = [f"{m[0]:.3f}" + ("" if np.isnan(m[1]) else f" ({m[1]:.3f})") for m in means.values()]
        print(f"| {arm} | " + " | ".join(shown) + f" | {np.mean(without):.3f} |", flush=True)
        if arm == "static":
            print("| static, all ranks | " + " | ".join(f"{m[2]:.4f}" for m in means.values()) + " | |", flush=True)


if __name__ == "__main__":
    main()
