"""Lockstep plans on real ranks that gather weights for each micro-batch: hangs, gradients and step time.

    python -m experiments.benchmarks.resharding [--plans N] [--launches N] [--rounds N]

First, N random steps of rollouts (of any size, an epoch's last ones of a few samples among them) run under fully_shard
with resharding on two gloo ranks, and each gradient is compared with that of one process that has the whole model, in
float64. A hang ends the program with an error, as a rank's silence does. Then, the step time of our plans beside that
of capped longest-first (balance.py), in turn, in several launches, with an A/A pair. Lengths are rollouts' by 32, at
most 497 tokens, in rows of at most 512.
"""

import argparse
import json
import sys
import tempfile
from functools import partial
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np

from ddpsched.cli import guarded
from ddpsched.config import RunConfig, parse
from ddpsched.data.embedded.sentences import compose, embedded_tokenizer
from ddpsched.local_ranks import answers, join_group, run_ranks
from ddpsched.planning.policies.packed import Packed
from ddpsched.planning.steps.batches import GlobalBatch
from ddpsched.step_plan import StepPlan
from ddpsched.terminal import plain_console
from ddpsched.world import World
from experiments.benchmarks.balance import capped_longest_first
from experiments.benchmarks.bench import Seconds, add_options, in_turn, table
from experiments.benchmarks.rollouts import rollouts

RANKS, CAP, SHORTER = 2, 512, 32
SAMPLES, BATCH = 2048, 64
SHAPE = {  # of the model that is timed
    "model_type": "distilbert", "dim": 256, "n_layers": 4, "n_heads": 4, "hidden_dim": 1024,
    "max_position_embeddings": CAP, "dropout": 0.0, "attention_dropout": 0.0,
}  # fmt: skip


def write_data(folder: Path) -> None:
    """Write texts whose lengths are those of rollouts, shortened, with their tokenizer; and the model's shape."""
    words = [word for text in compose(400, 0)[0] for word in text.split()]
    counts = np.maximum(2, rollouts(SAMPLES, 0) // SHORTER - 2).tolist()  # [CLS] and [SEP] are tokens, too
    starts = np.random.default_rng(0).integers(0, len(words), SAMPLES).tolist()
    with (folder / "train.jsonl").open("w") as file:
        for number, (start, count) in enumerate(zip(starts, counts, strict=True)):
            text = " ".join(words[(start + place) % len(words)] for place in range(count))
            file.write(json.dumps({"sentence": text, "label": number % 2}) + "\n")
    tokenizer = embedded_tokenizer()
    tokenizer.save(str(folder / "tokenizer.json"))
    (folder / "config.json").write_text(json.dumps({**SHAPE, "vocab_size": tokenizer.get_vocab_size()}))


def config_of(folder: Path, model: str, precision: str) -> RunConfig:
    """Return the run whose learner both parts use."""
    return parse(
        {
            "epochs": 1, "global_batch": BATCH, "world_size": RANKS, "policy": {"kind": "packed", "lockstep": True},
            "data": {"path": str(folder / "train.jsonl"), "tokenizer": str(folder), "max_length": CAP},
            "model": {"name": model, "dropout": 0.0}, "sync": {"kind": "fsdp", "reshard": True},
            "executor": {"kind": "distributed", "device": "cpu"}, "train": {"precision": precision},
        }
    )  # fmt: skip


def planned(lengths: Any, ids: Any, step: int, cost: Any) -> StepPlan:
    """Return our plan of these samples."""
    chosen = Packed(lockstep=True, max_tokens=CAP).assign(GlobalBatch(lengths[ids], len(ids), RANKS, step, cost))
    return StepPlan.cut(0, step, ids[chosen.positions], chosen.sizes, packed=True)


def longest_first(lengths: Any, ids: Any, step: int) -> StepPlan:
    """Return the plan of capped longest-first, whose ranks have as many rows, too."""
    ranks = capped_longest_first(lengths[ids], RANKS, CAP)
    order = np.array([position for rank in ranks for row in rank for position in row])
    return StepPlan.cut(0, step, ids[order], [[len(row) for row in rank] for rank in ranks], packed=True)


def learner_of(config: RunConfig, synchronised: bool) -> Any:
    """Return the learner, sharded where ``synchronised``, and the samples."""
    import torch

    from ddpsched.training.learner import Learner

    samples = config.load_samples()
    learner = Learner(config, samples, torch.device("cpu"), synchronised=synchronised)
    learner.forward = learner.sync.module if synchronised else learner.model
    return learner, samples


def run_plan(learner: Any, plan: StepPlan, rank: int) -> Any:
    """Run this rank's share of a step, and return the RankStep; the gradient stays."""
    from ddpsched.training.distributed import meetings_of

    scale = 1.0 / plan.global_batch
    return learner.run(plan.ranks[rank], lambda: scale, seed=0, meetings=meetings_of(plan))


def errors_on_rank(folder: Path, plans: int) -> tuple[float, int, int]:
    """Return the largest relative error, the micro-batches, and the stand-ins, of one rank."""
    import torch

    from ddpsched.training.distributed import meetings_of

    join_group(60.0)
    rank = World.detect().rank
    config = config_of(folder, "tiny", "float64")
    whole, _ = learner_of(config, synchronised=False)
    sharded, samples = learner_of(config, synchronised=True)
    lengths, rng = samples.train.lengths(np.arange(SAMPLES)), np.random.default_rng(0)
    cost, worst, run, stand_ins = config.plan_spec().cost, 0.0, 0, 0
    for step in range(plans):
        size = int(rng.integers(1, 5) if step % 10 == 9 else rng.integers(2, BATCH))
        plan = planned(lengths, rng.choice(SAMPLES, size, replace=False), step, cost)
        run_plan(sharded, plan, rank)
        run += len(plan.ranks[rank])
        stand_ins += meetings_of(plan) - len(plan.ranks[rank])
        found = [parameter.grad.full_tensor().flatten() for parameter in sharded.model.parameters()]
        sharded.optimiser.clear()
        for micros in plan.ranks:
            for micro in micros:
                (whole.loss_sum(whole.collate(micro.ids, True)) / plan.global_batch).backward()
        expected = [parameter.grad.flatten() for parameter in whole.model.parameters()]
        error = torch.cat(found) - torch.cat(expected)
        worst = max(worst, float(error.norm() / torch.cat(expected).norm()))
        whole.model.zero_grad(set_to_none=False)
    return worst, run, stand_ins


def seconds_on_rank(folder: Path, rounds: int, seed: int) -> Seconds:
    """Return the step times of both plans, of one launch."""
    import torch
    import torch.distributed as dist

    join_group(120.0)
    rank = World.detect().rank
    config = config_of(folder, str(folder), "float32")
    learner, samples = learner_of(config, synchronised=True)
    lengths, cost = samples.train.lengths(np.arange(SAMPLES)), config.plan_spec().cost
    order = np.random.default_rng(seed).permutation(SAMPLES)
    turns = {"ours": 0, "capped longest first": 0}

    def step_s(name: str) -> float:
        # each arm runs the same samples in the same turn; ours twice, so that its turns are counted by pairs
        turn = turns[name] // (2 if name == "ours" else 1)
        turns[name] += 1
        ids = np.take(order, range(turn * BATCH, (turn + 1) * BATCH), mode="wrap")
        plan = planned(lengths, ids, 0, cost) if name == "ours" else longest_first(lengths, ids, 0)
        dist.barrier()
        begin = perf_counter()
        run_plan(learner, plan, rank)
        taken = torch.tensor(perf_counter() - begin)
        learner.optimiser.clear()
        dist.all_reduce(taken, dist.ReduceOp.MAX)
        return float(taken)

    return in_turn({name: partial(step_s, name) for name in turns}, rounds, seed, left_out=3)


def main() -> int:
    """Print both parts."""
    parser = argparse.ArgumentParser(
        prog="python -m experiments.benchmarks.resharding", description=str(__doc__).partition("\n")[0]
    )
    parser.add_argument("--plans", type=int, default=1000, help="random steps whose gradient is compared")
    add_options(parser)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        write_data(folder)
        ranks = answers(run_ranks(errors_on_rank, RANKS, folder, options.plans, timeout_s=900.0))
        worst, run, stand_ins = max(r[0] for r in ranks), sum(r[1] for r in ranks), sum(r[2] for r in ranks)
        print(
            f"{options.plans} plans on {RANKS} ranks, {run} micro-batches and {stand_ins} stand-ins: 0 hangs, largest "
            f"relative error of a gradient {worst:.1e}",
            flush=True,
        )
        launches = [
            answers(run_ranks(seconds_on_rank, RANKS, folder, options.rounds, seed, timeout_s=1800.0))[0]
            for seed in range(options.launches)
        ]
    plain_console().print(table(launches, f"step of {BATCH} samples, rows of {CAP} tokens", "ms", 1e3))
    return 0


if __name__ == "__main__":
    sys.exit(guarded(main))
