"""The first 200 plans of every policy, order and world size, on real lengths, are those of ``plan_digests.json``.

A change of planning fails here, case by case: each holds a digest of the plans and the sum of their makespans. Write
an improved case anew, with its cost before and after in the commit:

    python tests/planning/test_plan_digests.py DIR [CASE ...]          # DIR holds sst2/, gsm8k/ and bert-uncased/

By default each policy and each order runs at least once per data set; ``-m slow`` runs all cases.
"""

import itertools
import json
import sys
from collections.abc import Iterator
from functools import cache
from hashlib import blake2b
from pathlib import Path
from typing import Any

import pytest

from ddpsched.config import parse
from ddpsched.exchange import LocalExchange
from ddpsched.planning.planner import plan_steps

FILE = Path(__file__).with_name("plan_digests.json")
STEPS = 200
DATA: dict[str, dict[str, Any]] = {
    "sst2": {"data": {"path": "sst2/train.tsv"}},
    "gsm8k": {
        "data": {"path": "gsm8k/train.jsonl", "prompt": "question", "text": "answer", "max_length": 512},
        "model": {"task": "causal_lm"},
    },
}
BUDGET = {"sst2": 512, "gsm8k": 2048}
POLICIES: dict[str, dict[str, Any]] = {
    "static": {"kind": "static"},
    "minmax": {"kind": "minmax", "prefetch": 40},
    "balanced": {"kind": "balanced"},
    "balanced M=4": {"kind": "balanced", "max_microbatches": 4},
    "balanced W=2": {"kind": "balanced", "lookahead": 2},
    "packed": {"kind": "packed"},
    "packed W=2": {"kind": "packed", "lookahead": 2},
    "token_budget": {"kind": "token_budget"},
    "token_budget real": {"kind": "token_budget", "budget": "real", "batches_per_optimizer_step": 2},
    "token_budget same_shape": {"kind": "token_budget", "same_shape": True, "batches_per_optimizer_step": 2},
    "bins": {"kind": "bins"},
    "bins per_rank": {"kind": "bins", "per_rank_bins": True},
    "bins replacement": {"kind": "bins", "replacement": True},
    "pool": {"kind": "pool"},
    "pool first": {"kind": "pool", "strategy": "prefer_first", "batches_per_optimizer_step": 2},
    "pool packing": {"kind": "pool", "sequence_packing": True},
}
ORDERS: dict[str, dict[str, Any]] = {
    "shuffled": {"kind": "shuffled"},
    "sequential": {"kind": "sequential"},
    "length_grouped": {"kind": "length_grouped"},
    "curriculum": {"kind": "curriculum"},
    "curriculum_local": {"kind": "curriculum_local"},
    "curriculum window": {"kind": "curriculum", "window": 960},
    "curriculum pacing": {"kind": "curriculum", "pacing": "root"},
}
WORLDS = (1, 2, 3, 4, 8)
CASES = list(itertools.product(DATA, POLICIES, ORDERS, WORLDS))


def quick() -> Iterator[tuple[str, str, str, int]]:
    """Yield every policy and every order once per data set, at alternating world sizes, and shuffled at one more."""
    for data in DATA:
        for number, policy in enumerate(POLICIES):
            order, size = list(ORDERS)[number % len(ORDERS)], WORLDS[number % len(WORLDS)]
            yield data, policy, order, size
            yield data, policy, "shuffled", WORLDS[(number + 2) % len(WORLDS)]


QUICK = sorted(set(quick()))


@cache
def samples(data: str, folder: Path) -> Any:
    values = DATA[data]
    table = {**values["data"], "path": str(folder / values["data"]["path"]), "tokenizer": str(folder / "bert-uncased")}
    return parse({**values, "data": table, "epochs": 1}).load_samples().train


def digest_of(case: tuple[str, str, str, int], folder: Path) -> list[str | int]:
    """Return [hexadecimal digest, sum of makespans] of a case's plans, or its refusal."""
    data, policy, order, size = case
    options = dict(POLICIES[policy])
    if options["kind"] in ("token_budget", "pool"):
        options["max_tokens_for_batch"] = BUDGET[data]
    values = {**DATA[data], "seed": 5, "world_size": size, "global_batch": 32, "steps": STEPS}
    config = parse({**values, "policy": options, "order": ORDERS[order]})
    digest, makespans = blake2b(digest_size=8), 0
    for plan in plan_steps(config.plan_spec(), samples(data, folder), LocalExchange(size)):
        digest.update(plan.digest.to_bytes(8, "little", signed=True))
        makespans += max(plan.predicted_cost or (0,))
    return [digest.hexdigest(), makespans]


def name(case: tuple[str, str, str, int]) -> str:
    data, policy, order, size = case
    return f"{data} / {policy} / {order} / {size}"


@pytest.mark.parametrize("case", QUICK, ids=name)
def test_the_same_plans(case: tuple[str, str, str, int], data_dir: Path) -> None:
    assert digest_of(case, data_dir) == json.loads(FILE.read_text())[name(case)]


@pytest.mark.slow
@pytest.mark.parametrize("data", DATA)
@pytest.mark.parametrize("policy", POLICIES)
def test_the_same_plans_in_every_case(data: str, policy: str, data_dir: Path) -> None:
    expected = json.loads(FILE.read_text())
    cases = [case for case in CASES if case[:2] == (data, policy)]
    others = [name(case) for case in cases if digest_of(case, data_dir) != expected[name(case)]]
    assert not others


def test_all_cases_are_listed() -> None:
    assert sorted(json.loads(FILE.read_text())) == sorted(map(name, CASES))


if __name__ == "__main__":
    folder, chosen = Path(sys.argv[1]), sys.argv[2:]
    written = json.loads(FILE.read_text()) if chosen else {}
    written |= {name(case): digest_of(case, folder) for case in CASES if not chosen or name(case) in chosen}
    lines = ",\n".join(f"  {json.dumps(key)}: {json.dumps(value)}" for key, value in written.items())
    FILE.write_text("{\n" + lines + "\n}\n")
