"""Step time of split samples beside packed ones on real gloo ranks of this machine, and what gathering costs.

    python -m experiments.benchmarks.split_steps [--long 4096] [--short 128] [--samples 16] [--ranks 2] [--rounds 12]
        [--launches 3]

Each global batch has one sample of ``--long`` tokens among short ones; a small GPT learns every token. In a launch, a
fresh group of ranks, packed, packed again (A/A) and split take turns step by step, each with a model of its own:
forward and backward of the rank's micro-batches, and one all-reduce of the gradients. A step lasts from a barrier to
the end of its last rank. Intervals are of launches. *Gathering*: of a step, the largest rank's seconds in collectives
of keys, values and their gradients, with waiting for the others, and the bytes that it sends.
"""

import argparse
import sys
from collections.abc import Sequence
from typing import Any

import numpy as np
from rich import box
from rich.table import Table

from ddpsched.cli import guarded
from ddpsched.costs.cost_model import CostModel
from ddpsched.data.lengths import KnownLengths
from ddpsched.exchange import LocalExchange
from ddpsched.local_ranks import answers, join_group, run_ranks
from ddpsched.orders.config import OrderConfig
from ddpsched.orders.epoch_order import Order
from ddpsched.planning.plan_spec import PlanSpec
from ddpsched.planning.planner import plan_steps
from ddpsched.planning.policies.packed import Packed
from ddpsched.planning.policies.split import Split
from ddpsched.step_plan import StepPlan
from ddpsched.terminal import plain_console
from experiments.benchmarks.bench import AA, LEFT_OUT, Seconds, add_options, in_turn, judged

WORDS, WIDTH, LAYERS, HEADS = 512, 64, 2, 2
COST = CostModel(0, 1, 1 / (6 * WIDTH), scale=1000)  # attention costs as much as the rest at 6 * width tokens


def plans(policy: str, lengths: Any, ranks: int, batch: int) -> list[StepPlan]:
    """Return the plans of an epoch in order."""
    kind = Packed() if policy == "packed" else Split()
    order = Order(OrderConfig(kind="sequential"))  # so each step has its one long sample
    spec = PlanSpec(world_size=ranks, global_batch=batch, policy=kind, epochs=1, cost=COST, order=order)
    return list(plan_steps(spec, KnownLengths(lengths), LocalExchange(ranks)))


class Ids:
    """Samples of random tokens, all learnt."""

    def __init__(self, lengths: Any) -> None:
        draw = np.random.default_rng(0)
        self._rows = [draw.integers(1, WORDS, length).astype(np.int32) for length in lengths.tolist()]

    def row(self, id: int) -> Any:
        return self._rows[id]

    labels = row


def times(lengths: Any, batch: int, rounds: int, seed: int) -> tuple[Seconds, list[tuple[float, int]]]:
    """Return the step times by arm, and this rank's seconds and bytes of gathering in split's; runs on each rank."""
    import torch
    import torch.distributed as dist
    from transformers import GPT2Config, GPT2LMHeadModel

    from ddpsched.training.clock import Clock
    from ddpsched.training.collate import CPU, Collator
    from ddpsched.training.loss import loss_sum
    from ddpsched.training.packed import enable_packing
    from ddpsched.training.part_groups import PartGroups
    from ddpsched.training.sync.synchroniser import CollectiveLog

    join_group()
    torch.set_num_threads(1)
    rank, clock, table = dist.get_rank(), Clock(CPU), Ids(lengths)
    collate = Collator(table, None, 0, CPU)
    log, groups = CollectiveLog(clock), PartGroups(rank, 8, 120.0)
    shape = GPT2Config(
        vocab_size=WORDS, n_positions=int(lengths.max()), n_embd=WIDTH, n_layer=LAYERS, n_head=HEADS, resid_pdrop=0,
        embd_pdrop=0, attn_pdrop=0, use_cache=False,
    )  # fmt: skip
    gathered: list[tuple[float, int]] = []

    def arm(policy: str) -> Any:
        torch.manual_seed(0)
        model = GPT2LMHeadModel(shape)
        enable_packing(model)
        steps = iter(plans(policy, lengths, dist.get_world_size(), batch))

        def step() -> float:
            plan = next(steps)
            shares = groups.shares(plan, CPU, log)
            dist.barrier()
            begin = clock.mark()
            for micro in plan.ranks[rank]:
                id = int(micro.ids[0])
                row = collate(micro.ids, packed=True) if micro.part is None else collate.parts(id, *shares[id])
                loss_sum(model(**row.inputs).logits, row.labels).backward()
            gradients = [torch.zeros_like(p) if p.grad is None else p.grad for p in model.parameters()]
            dist.all_reduce(torch.cat([each.reshape(-1) for each in gradients]))
            took = torch.tensor(clock.seconds(begin, clock.mark()), dtype=torch.float64)
            model.zero_grad(set_to_none=True)
            dist.all_reduce(took, dist.ReduceOp.MAX)
            collectives, _ = log.take()
            if policy == "split":
                seconds = sum(clock.seconds(each.launched, each.done) for each in collectives)
                gathered.append((seconds, sum(each.num_bytes for each in collectives)))
            return float(took)

        return step

    found = in_turn({"packed": arm("packed"), AA: arm("packed"), "split": arm("split")}, rounds, seed, LEFT_OUT)
    dist.barrier()
    return found, gathered[LEFT_OUT:]


def show(launches: Sequence[Sequence[tuple[Seconds, list[tuple[float, int]]]]]) -> Table:
    """Return the table. ``launches``: of each the answers of its ranks."""
    (arms,) = judged([[ranks[0][0] for ranks in launches]])
    seconds = np.array([[[each[0] for each in gathered] for _, gathered in ranks] for ranks in launches]).max(1)
    sent = max(each[1] for ranks in launches for _, gathered in ranks for each in gathered)
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for head in ("arm", "step ms", "over packed", "verdict", "gathering ms", "sent MB"):
        table.add_column(head, justify="left" if head in ("arm", "verdict") else "right")
    for name, each in arms.items():
        more = (f"{1e3 * seconds.mean():.1f}", f"{sent / 1e6:.1f}") if name == "split" else ("", "")
        table.add_row(name, f"{1e3 * each.seconds:.1f}", each.text, each.verdict, *more)
    return table


def main(words: Sequence[str]) -> int:
    """Measure, and print the table; return the exit code."""
    parser = argparse.ArgumentParser(
        prog="python -m experiments.benchmarks.split_steps",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--long", type=int, default=4096)
    parser.add_argument("--short", type=int, default=128)
    parser.add_argument("--samples", type=int, default=16)
    parser.add_argument("--ranks", type=int, default=2)
    add_options(parser, rounds=12)
    given = parser.parse_args(words)

    def body() -> None:
        lengths = np.full((given.rounds + LEFT_OUT + 1) * given.samples, given.short, dtype=np.int64)
        lengths[:: given.samples] = given.long
        launches = [
            answers(run_ranks(times, given.ranks, lengths, given.samples, given.rounds, seed, timeout_s=1200))
            for seed in range(given.launches)
        ]
        plain_console(at_least=110).print(show(launches))
        planned = {name: plans(name, lengths, given.ranks, given.samples) for name in ("packed", "split")}
        sums = {name: sum(max(plan.predicted_cost or ()) for plan in each) for name, each in planned.items()}
        print(
            f"one sample of {given.long} tokens and {given.samples - 1} of {given.short} a step, {given.ranks} gloo "
            f"ranks, one thread each; planned split over packed: {sums['split'] / sums['packed']:.3f}"
        )

    return guarded(body)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
