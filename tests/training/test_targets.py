"""Each target of label tokens, trained: the gradient is that of the plain definition, by every division of a step.

``pytest -rP tests/training/test_targets.py`` prints the differences.
"""

import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from gradients import kept_gradients
from prompted import write_prompted
from ranks import free_port, run_ranks

from ddpsched.config import RunConfig, parse
from ddpsched.errors import ConfigError, DataError
from ddpsched.exchange import LocalExchange
from ddpsched.planning.planner import plan_steps
from ddpsched.run_loop import run
from ddpsched.training.denominator import Denominator
from ddpsched.training.model import build_model

LENGTH, SEPARATOR = 17.0, 3
TARGETS = ("constant_length", "group_mean", "window_token_mean")
POLICIES: dict[str, dict[str, Any]] = {
    "static": {"kind": "static"},
    "accumulation": {"kind": "balanced", "max_microbatches": 3},
    "packed": {"kind": "packed"},
    "token budget": {"kind": "token_budget", "max_tokens_for_batch": [190, 190], "batches_per_optimizer_step": 2},
}


def config_of(outputs: Path, target: str, policy: str, executor: str = "virtual", world_size: int = 4) -> RunConfig:
    group = {"group": "group"} if target in ("group_mean", "window_token_mean") else {}
    train = {"precision": "float64", "learning_rate": 1e-30, "max_grad_norm": 1e9, "target": target}
    train |= {"save_model": False}
    return parse(
        {
            "name": f"{target}-{executor}-{world_size}", "outputs": str(outputs), "steps": 3,
            "global_batch": 13, "world_size": world_size, "data": write_prompted(outputs / "data") | group,
            "model": {"task": "causal_lm", "dropout": 0.0}, "policy": POLICIES[policy], "executor": {"kind": executor},
            "train": train | ({"length": LENGTH} if target == "constant_length" else {}),
        }
    )  # fmt: skip


def gradients(config: RunConfig) -> list[np.ndarray]:
    with kept_gradients() as kept:
        run(config, overwrite=True)
    return kept


def reference(config: RunConfig) -> list[np.ndarray]:
    """One process, one sample after another, the mean by its definition; prompts are recognised by their [SEP]."""
    samples = config.load_samples()
    with Path(str(config.data.path)).open() as file:
        groups = [json.loads(line)["group"] for line in file]
    torch.manual_seed(config.seed)
    model = build_model(config.model, 2, samples.vocab_size, samples.pad_id).double()

    def texts_tokens(id: int) -> int:
        row = samples.train.row(id)
        return len(row) - 1 - int(np.flatnonzero(row == SEPARATOR)[0])

    found = []
    for plan in plan_steps(config.plan_spec(), samples.train, LocalExchange(config.world_size)):
        losses, of_group = list[torch.Tensor](), dict[int, list[torch.Tensor]]()
        for id in plan.ids.tolist():
            row = torch.from_numpy(samples.train.row(id).astype(np.int64))
            logits = model(input_ids=row[None], attention_mask=torch.ones_like(row)[None]).logits[0]
            first = len(row) - texts_tokens(id)
            losses.append(F.cross_entropy(logits[first - 1 : -1], row[first:], reduction="none"))
            of_group.setdefault(groups[id], []).append(losses[-1])
        if config.target == "constant_length":
            loss = torch.stack([each.sum() / LENGTH for each in losses]).mean()
        elif config.target == "group_mean":
            loss = torch.stack([torch.cat(each).mean() for each in of_group.values()]).mean()
        else:  # each sample's sum, by the mean length of what was generated with it, in any step
            window = {g: np.mean([texts_tokens(i) for i in range(len(groups)) if groups[i] == g]) for g in of_group}
            means = [each.sum() / window[groups[id]] for each, id in zip(losses, plan.ids.tolist(), strict=True)]
            loss = torch.stack(means).mean()
        model.zero_grad()
        loss.backward()
        found.append(torch.cat([p.grad.reshape(-1) for p in model.parameters()]).numpy())
    return found


def distance(found: list[np.ndarray], expected: list[np.ndarray]) -> float:
    assert len(found) == len(expected) == 3
    return max(float(np.linalg.norm(f - e) / np.linalg.norm(e)) for f, e in zip(found, expected, strict=True))


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("target", TARGETS)
def test_virtual_ranks(tmp_path: Path, target: str, policy: str) -> None:
    config = config_of(tmp_path, target, policy)
    expected = reference(config)
    error = distance(gradients(config), expected)
    print(f"{target}, {policy}, 4 virtual ranks: {error:.1e}")
    assert error <= 1e-12
    if target != "group_mean":  # which has no weights of its own step without its counts
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(Denominator, "scale", lambda self: 1 / self._size)
            patch.setattr(Denominator, "weigh", lambda _, __, counts: np.ones(len(counts)))
            assert distance(gradients(config), expected) > 1e-2


def on_ranks(outputs: Path, cases: list[tuple[str, str]], ports: list[int], size: int) -> list[list[np.ndarray]]:
    found = []
    for port, (target, policy) in zip(ports, cases, strict=True):
        os.environ["MASTER_PORT"] = str(port)  # a rendezvous is not used twice
        found.append(gradients(config_of(outputs, target, policy, "distributed", size)))
    return found


CASES = [(target, policy) for target in TARGETS for policy in ("static", "accumulation")]


@pytest.mark.parametrize("size", [2, pytest.param(4, marks=pytest.mark.slow)])
def test_gloo_ranks(tmp_path: Path, size: int) -> None:
    """Groups lie across ranks, so that each knows a part of their label tokens alone."""
    write_prompted(tmp_path / "data")
    ranks = run_ranks(on_ranks, size, tmp_path, CASES, [free_port() for _ in CASES], size, timeout_s=240)
    for (target, policy), found, *others in zip(CASES, *ranks, strict=True):
        error = distance(found, reference(config_of(tmp_path, target, policy, "distributed", size)))
        print(f"{target}, {policy}, {size} gloo ranks: {error:.1e}")
        assert error <= 1e-12
        for other in others:
            np.testing.assert_array_equal(found[0], other[0])


def test_equal_prompts_are_a_group(tmp_path: Path) -> None:
    keys = write_prompted(tmp_path / "data")
    path = Path(keys["path"])
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    for number, row in enumerate(rows):
        row["question"] = rows[number // 3]["question"]
        row["group"] = row["question"]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    named = config_of(tmp_path, "group_mean", "static")
    by_prompt = named.model_copy(update={"data": named.data.model_copy(update={"group": None})})
    assert distance(gradients(by_prompt), gradients(named)) == 0


def test_a_group_that_is_missing(tmp_path: Path) -> None:
    keys = write_prompted(tmp_path / "data")
    rows = Path(keys["path"]).read_text().splitlines()
    rows[4] = json.dumps(json.loads(rows[4]) | {"group": None})
    Path(keys["path"]).write_text("\n".join(rows))
    config = config_of(tmp_path, "group_mean", "static")
    with pytest.raises(DataError, match="row 5, column 'group': None is null, and no group"):
        config.load_samples()
    skipping = config.model_copy(update={"data": config.data.model_copy(update={"on_bad": "skip"})})
    split = skipping.load_samples().dataset.train
    assert (len(split), len(split.groups)) == (63, 63)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("values", "named"),
    [
        ({"train": {"target": "self_normalised"}}, "target = 'self_normalised' is a ratio of sums over the batch"),
        ({"train": {"target": "group_mean"}}, "'group_mean' needs the group of each sample; name a column, data.group"),
        ({"train": {"target": "window_token_mean"}}, "'window_token_mean' needs the group of each sample"),
        ({"train": {"target": "constant_length"}}, "target = 'constant_length' and length belong together"),
        ({"train": {"length": 9.0}}, "target = 'constant_length' and length belong together"),
        ({"data": {"group": "g"}}, "data.group = 'g' is for train.target = 'group_mean' or 'window_token_mean'"),
        ({"data": {"group": "g", "concatenate": True}, "train": {"target": "group_mean"}}, "cuts samples of several"),
        (
            {"data": {"group": "g", "lengths": "online"}, "train": {"target": "window_token_mean"}},
            "'window_token_mean' divides by label tokens of samples that come later",
        ),
        ({"model": {"task": "classification"}, "train": {"target": "group_mean"}}, "of which a classifier has none"),
    ],
)
def test_refused(values: dict[str, Any], named: str) -> None:
    with pytest.raises(ConfigError, match=named):
        parse({"steps": 1, "model": {"task": "causal_lm"}, **values})
