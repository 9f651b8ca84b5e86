"""Numbers of the report's figures that follow from plans alone: one step, many ranks, a shift of lengths, slow ranks.

    python -m experiments.planned FOLDER [--data DIR] [--ranks 4096]    # draws all of them, in about a minute

Nothing is trained. DIR holds `sst2/train.tsv`, `gsm8k/train.jsonl` and `bert-uncased/`; without it lengths are drawn
from SST-2's histogram, and the shift of lengths is left out.
"""

import argparse
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from analysis.draw import save
from analysis.draw_scaling import draw_scaling
from analysis.draw_shift import draw_shift, draw_unequal
from analysis.draw_step_blocks import draw_step_blocks
from analysis.step_blocks import Micro, step_blocks
from ddpsched.compare import Question
from ddpsched.compare.arms import compare, measure
from ddpsched.costs.cost_model import CostModel, Int
from ddpsched.costs.rank_speed import Speed
from ddpsched.data.embedded.length_histogram import sst2_lengths
from ddpsched.data.lengths import KnownLengths
from ddpsched.errors import DdpschedError
from ddpsched.exchange import LocalExchange
from ddpsched.peers import PEERS, Problem
from ddpsched.planning.plan_spec import PlanSpec
from ddpsched.planning.planner import plan_steps
from ddpsched.planning.policies import POLICIES
from ddpsched.planning.record_columns import rank_cost
from experiments.batches import lengths_of

PEER = "batch_rebalance"
ARMS: dict[str, dict[str, Any]] = {
    "static": {"kind": "static"},
    "minmax": {"kind": "minmax"},
    "balanced": {"kind": "balanced"},
    "balanced (M = 4)": {"kind": "balanced", "max_microbatches": 4},
    "packed": {"kind": "packed"},
}
SEQUENTIAL = {"kind": "sequential"}
PER_RANK = 8  # samples of a rank in a step: B = 32 with G = 4
STEPS = 16  # of an epoch on each number of ranks
TYPICAL = 2  # seed of a step whose yardstick under static, 3.03, is about the mean
SLOWNESS = (1.0, 1.5, 2.0)
MOST_RANKS_OF_PEER = 256  # beyond, its hill climbing takes minutes


def one_step(lengths: Int, world_size: int = 4, arms: Sequence[str] = ("static", "balanced", "packed")) -> Any:
    """Return the blocks of one step of all these samples by arm, as ``analysis.step_blocks`` has them."""
    question, found = Question(lengths, world_size, len(lengths)), {}
    for arm in arms:
        spec = question.spec({"policy": ARMS[arm], "order": SEQUENTIAL})
        plan = next(plan_steps(spec, KnownLengths(lengths), LocalExchange(world_size)))
        found[arm] = step_blocks(
            [
                [Micro(of.tolist(), 0 if micro.packed else micro.padded_length(of)) for micro, of in rank]
                for rank in ([(micro, lengths[micro.ids]) for micro in micros] for micros in plan.ranks)
            ]
        )
    return found


def scaling(
    lengths: Int, world_sizes: Sequence[int], arms: Sequence[str] = (*ARMS, PEER), seed: int = 0
) -> pd.DataFrame:
    """Return ``arm``, ``world_size`` and ``yardstick``: an epoch on each number of ranks, 8 samples a rank and step.

    ``lengths``: (N,), of which each world size takes as many as make 16 steps, or all. The peer is left out beyond 256
    ranks.
    """
    rows = []
    for size in world_sizes:
        question = Question(lengths[: STEPS * PER_RANK * size], size, PER_RANK * size, seed=seed)
        for arm in arms:
            if arm in ARMS:
                row = measure(question, arm, question.spec({"policy": ARMS[arm]}))
            elif size <= MOST_RANKS_OF_PEER:
                *_, row = compare(question, ["static"], [arm])
            else:
                continue
            if row.figures is not None:
                rows.append({"arm": arm, "world_size": size, "yardstick": row.figures.yardstick})
    return pd.DataFrame(rows)


def shifting(segments: Sequence[tuple[str, Int]], world_size: int = 4, arms: Sequence[str] = (*ARMS, PEER)) -> Any:
    """Return the rows ``arm``, ``step`` and ``load``, and where laws change: the first step of each, with its name.

    ``segments``: the laws by name, in the order in which their lengths are trained, each (samples,). ``load`` is the
    largest rank's padded tokens over an even share of the step's real ones.
    """
    lengths = np.concatenate([each for _, each in segments])
    batch, begin, changes = PER_RANK * world_size, 0, []
    for name, each in segments:
        changes.append((begin // batch, name))
        begin += len(each)
    rows = []
    for arm in arms:
        for step, ranks in enumerate(_steps(arm, lengths, world_size, batch)):
            padded = [sum(len(of) * width if width else int(of.sum()) for of, width in rank) for rank in ranks]
            real = sum(int(of.sum()) for rank in ranks for of, _ in rank)
            rows.append({"arm": arm, "step": step, "load": max(padded) / (real / world_size)})
    return pd.DataFrame(rows), changes


Rank = list[tuple[Int, int]]  # lengths of each micro-batch's samples, and the tokens that they are padded to; 0: packed


def _steps(arm: str, lengths: Int, world_size: int, batch: int) -> Iterator[list[Rank]]:
    """Yield each step of the lengths in their own order."""
    if arm not in ARMS:
        problem = Problem(lengths, np.arange(len(lengths)), world_size, batch)
        for step in PEERS[arm].steps(problem):
            yield [[(lengths[ids], int(lengths[ids].max())) for ids in rank] for rank in step]
        return
    spec = Question(lengths, world_size, batch).spec({"policy": ARMS[arm], "order": SEQUENTIAL})
    for plan in plan_steps(spec, KnownLengths(lengths), LocalExchange(world_size)):
        yield [
            [(lengths[m.ids], 0 if m.packed else m.padded_length(lengths[m.ids])) for m in micros]
            for micros in plan.ranks
        ]


def unequal(
    lengths: Int, slowness: Sequence[float] = SLOWNESS, arms: Sequence[str] = ("static", "balanced", "packed")
) -> pd.DataFrame:
    """Return ``arm``, ``learning`` and ``step``: an epoch on ranks that take ``slowness`` times as long as the first.

    ``step`` is the sum over steps of the slowest rank's time, over that of the real tokens divided by speed without
    padding. With learning, each rank reports the speed of its last steps, as ``cost.online`` does; static follows no
    cost, so it has one row.
    """
    rows, cost = [], CostModel(0.0, 1e-6, 0.0)
    batch, known = 4 * PER_RANK * len(slowness), KnownLengths(lengths)
    even = float(cost.unpadded(lengths).sum()) / sum(1 / each for each in slowness)
    for arm in arms:
        for learning in (False, True) if arm != "static" else (False,):
            policy = POLICIES[ARMS[arm]["kind"]](**ARMS[arm])
            spec = PlanSpec(
                len(slowness), batch, policy, epochs=1, cost=cost, refined=learning, max_length=int(lengths.max())
            )
            speeds, total = [Speed() for _ in slowness], 0.0
            for plan in plan_steps(spec, known, LocalExchange(len(slowness)), speeds if learning else None):
                predicted = [rank_cost(cost, plan, rank, known) for rank in range(len(slowness))]
                took = [each * slow for each, slow in zip(predicted, slowness, strict=True)]
                for speed, nanoseconds, measured in zip(speeds, predicted, took, strict=True):
                    speed.add(nanoseconds, measured / 1e9)
                total += max(took)
            rows.append({"arm": arm, "learning": learning, "step": total / even})
    return pd.DataFrame(rows)


def draw(folder: Path, data: Path | None = None, ranks: int = 4096) -> list[Path]:
    """Write the figures into ``folder``, and return their paths; ``ranks``: the most that are planned for."""
    rng = np.random.default_rng(0)
    sizes = [4**power for power in range(1, 1 + int(np.log(ranks) / np.log(4) + 0.5))]
    known = sst2_lengths(STEPS * PER_RANK * sizes[-1], rng) if data is None else lengths_of(data, "SST-2")
    many = np.tile(known, -(-STEPS * PER_RANK * sizes[-1] // len(known)))
    figures = {
        "step-blocks": draw_step_blocks(one_step(sst2_lengths(4 * PER_RANK, np.random.default_rng(TYPICAL)))),
        "scaling": draw_scaling(scaling(rng.permutation(many), sizes)),
        "unequal": draw_unequal(unequal(rng.permutation(known)[:9600]), SLOWNESS),
    }
    if data is not None:
        short, long = rng.permutation(known), rng.permutation(lengths_of(data, "GSM8K"))
        laws = [("SST-2", short[:3200]), ("GSM8K", long[:3200]), ("SST-2", short[3200:6400])]
        figures["shift"] = draw_shift(*shifting(laws))
    for name, figure in figures.items():
        save(figure, folder / f"{name}.png")
    return [folder / f"{name}.png" for name in figures]


def main(words: Sequence[str] | None = None) -> int:
    """Draw the figures; return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--data", type=Path)
    parser.add_argument("--ranks", type=int, default=4096, choices=[4**power for power in range(1, 7)])
    options = parser.parse_args(words)
    try:
        paths = draw(options.folder, options.data, options.ranks)
    except DdpschedError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    print(*paths, sep="\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
