"""A state of two real ranks, continued by three: each loader's samples once, with and without worker processes."""

import itertools
import json
from collections import Counter
from typing import Any

import numpy as np
import pytest
import torch.distributed as dist
from ranks import run_ranks
from torch.utils.data import DataLoader

import ddpsched

LENGTHS = np.random.default_rng(0).integers(3, 60, 203).tolist()
DATA: Any = [[number] * length for number, length in enumerate(LENGTHS)]
STOP = 3  # steps of the first ranks
POLICIES: dict[str, dict[str, Any]] = {
    "micro-batches": {"policy": {"kind": "balanced", "max_microbatches": 3}, "global_batch": 24},
    "token budget": {"policy": {"kind": "token_budget", "max_tokens_for_batch": 200}},
    "lockstep": {"policy": {"kind": "packed", "lockstep": True, "max_tokens": 200}, "global_batch": 24},
}
KINDS = ["balanced", "sampler", "workers", *POLICIES]


def ids(samples: list[list[int]]) -> list[int]:
    return [sample[0] for sample in samples]


def loader_of(kind: str) -> Any:
    if kind in POLICIES:
        return ddpsched.scaled(ddpsched.StepLoader(DATA, LENGTHS, collate_fn=ids, **POLICIES[kind]))
    if kind == "balanced":
        return ddpsched.balanced(DataLoader(DATA, 8, shuffle=True, collate_fn=ids), global_batch=24).steps
    sampler = ddpsched.BatchSampler(LENGTHS, global_batch=24)
    workers = 2 if kind == "workers" else 0
    return ddpsched.scaled(DataLoader(DATA, batch_sampler=sampler, collate_fn=ids, num_workers=workers))


def run_some(states: dict[str, Any] | None, stop: int | None) -> dict[str, tuple[list[int], Any]]:
    """Return this rank's samples by kind of loader, and the loader's state."""
    dist.init_process_group("gloo")
    found = {}
    for kind in KINDS:
        loader, got = loader_of(kind), list[int]()
        if states is not None:
            loader.load_state_dict(ddpsched.for_world_size(states[kind], dist.get_world_size()))
        for batches, scale in itertools.islice(loader, stop):
            micros = batches if kind in POLICIES else [batches]
            got += [id for micro in micros for id in micro] if scale else []
        found[kind] = got, json.loads(json.dumps(loader.state_dict()))
        dist.barrier()  # no gradients meet here, and the first rank's store ends with it
    return found


@pytest.fixture(scope="module")
def ran() -> dict[str, Counter[int]]:
    first = run_ranks(run_some, 2, None, STOP, timeout_s=100)
    second = run_ranks(run_some, 3, {kind: first[0][kind][1] for kind in KINDS}, None, timeout_s=100)
    return {kind: Counter(id for rank in (*first, *second) for id in rank[kind][0]) for kind in KINDS}


@pytest.mark.parametrize("kind", KINDS)
def test_every_sample_once(ran: dict[str, Counter[int]], kind: str) -> None:
    assert (len(ran[kind]), set(ran[kind].values())) == (len(DATA), {1})
