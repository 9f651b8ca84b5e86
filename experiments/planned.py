"""One step's plans, for the report's drawing of padding and waiting."""

from collections.abc import Iterator
from typing import Any

import numpy as np
import pandas as pd

from analysis.step_blocks import Micro, step_blocks
from analysis.style import STRONGEST
from ddpsched.compare import Question
from ddpsched.costs.cost_model import Int
from ddpsched.data.lengths import KnownLengths
from ddpsched.exchange import LocalExchange
from ddpsched.peers import PEERS, Problem
from ddpsched.planning.planner import plan_steps

ARMS = ("static", STRONGEST, "balanced", "packed")
SEQUENTIAL = {"kind": "sequential"}
TYPICAL = 32  # seed of a step whose yardsticks are within 4 % of an epoch's, of all arms


def one_step(lengths: Int, world_size: int = 4) -> dict[str, pd.DataFrame]:
    """Return the blocks of one step of all these samples by arm, as ``analysis.step_blocks`` has them."""
    found = {}
    for arm in ARMS:
        ranks = _of_peer(arm, lengths, world_size) if arm in PEERS else _planned({"kind": arm}, lengths, world_size)
        found[arm] = step_blocks(list(ranks))
    return found


def _planned(policy: dict[str, Any], lengths: Int, world_size: int) -> Iterator[list[Micro]]:
    spec = Question(lengths, world_size, len(lengths)).spec({"policy": policy, "order": SEQUENTIAL})
    plan = next(plan_steps(spec, KnownLengths(lengths), LocalExchange(world_size)))
    for micros in plan.ranks:
        of = [(micro, lengths[micro.ids]) for micro in micros]
        yield [Micro(each.tolist(), 0 if micro.packed else micro.padded_length(each)) for micro, each in of]


def _of_peer(name: str, lengths: Int, world_size: int) -> Iterator[list[Micro]]:
    problem = Problem(lengths, np.arange(len(lengths)), world_size, len(lengths))
    for rank in next(iter(PEERS[name].steps(problem))):
        yield [Micro(lengths[ids].tolist(), int(lengths[ids].max())) for ids in rank]
