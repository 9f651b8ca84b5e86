"""Samples split over ranks: their gradient is that of one process, on virtual and on gloo ranks; faults are found.

``pytest -rP tests/training/test_split_samples.py`` prints the differences.
"""

import contextlib
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist
from ranks import run_ranks
from transformers import DistilBertConfig, DistilBertForSequenceClassification, GPT2Config, GPT2LMHeadModel

from ddpsched.config import parse
from ddpsched.errors import ConfigError, DataError
from ddpsched.exchange import LocalExchange
from ddpsched.local_ranks import join_group
from ddpsched.parts import Part, finish_times
from ddpsched.planning.planner import plan_steps
from ddpsched.step_plan import Microbatch, StepPlan
from ddpsched.training.clock import Clock
from ddpsched.training.collate import NOT_LEARNT, Collator
from ddpsched.training.loss import loss_sum
from ddpsched.training.packed import enable_packing
from ddpsched.training.part_groups import GroupParts, PartGroups
from ddpsched.training.part_rows import _mask
from ddpsched.training.split import enable_splitting, joined
from ddpsched.training.sync.synchroniser import CollectiveLog
from ddpsched.training.virtual import VirtualExecutor

CPU = torch.device("cpu")
SAMPLES, LONGEST, WORDS, CLASSES = 24, 40, 50, 3
EXACT, SEEN = 1e-12, 1e-10  # a hundred times that, for faults
FAULTS = [
    "label lost at the cut", "positions restarted", "key/value gradient dropped", "key/value gradient doubled",
    "local count",
]  # fmt: skip


class Table:
    """Random samples of 2 to 40 tokens; the first third of each is a prompt, which is not learnt."""

    def __init__(self) -> None:
        generator = np.random.default_rng(5)
        self.rows = [
            generator.integers(1, WORDS, int(n)).astype(np.int32) for n in generator.integers(2, LONGEST, SAMPLES)
        ]
        self.classes = generator.integers(0, CLASSES, SAMPLES)

    def row(self, id: int) -> Any:
        return self.rows[id]

    def labels(self, id: int) -> Any:
        labels = self.rows[id].copy()
        labels[: len(labels) // 3] = NOT_LEARNT
        return labels


TABLE = Table()


def model_of(kind: str) -> Any:
    torch.manual_seed(3)
    if kind == "gpt":
        model: Any = GPT2LMHeadModel(GPT2Config(
            vocab_size=WORDS, n_positions=64, n_embd=16, n_layer=2, n_head=2, resid_pdrop=0, embd_pdrop=0, attn_pdrop=0,
            use_cache=False,
        ))  # fmt: skip
    else:
        model = DistilBertForSequenceClassification(DistilBertConfig(
            vocab_size=WORDS, max_position_embeddings=64, dim=16, hidden_dim=32, n_layers=2, n_heads=2, dropout=0,
            attention_dropout=0, seq_classif_dropout=0, num_labels=CLASSES,
        ))  # fmt: skip
    enable_packing(model, kind, LONGEST)
    enable_splitting(model, kind, LONGEST)
    return model.double().train()


def collator(kind: str) -> Collator:
    return Collator(TABLE, None if kind == "gpt" else TABLE.classes, 0, CPU)


def random_plan(generator: np.random.Generator, world_size: int) -> StepPlan:
    """Return a plan whose parts are any ranges of any ranks, in an order that all ranks share."""
    ids = generator.permutation(SAMPLES)[: int(generator.integers(world_size, 12))]
    ranks: list[list[Microbatch]] = [[] for _ in range(world_size)]
    for id in ids.tolist():
        length = len(TABLE.rows[id])
        count = int(generator.integers(1, world_size + 1))
        if count == 1 or length < 2 * count:
            ranks[int(generator.integers(world_size))].append(Microbatch([id], packed=True))
            continue
        pieces = int(generator.integers(count, min(length, 3 * count) + 1))
        edges = [0, *np.sort(generator.choice(np.arange(1, length), pieces - 1, replace=False)).tolist(), length]
        owners = generator.permutation([*range(count), *generator.integers(0, count, pieces - count).tolist()])
        owners = (owners - owners[0]) % count  # the first token is part 0's
        members = generator.permutation(world_size)[:count].tolist()
        for index, rank in enumerate(members):
            ranges = tuple((edges[k], edges[k + 1]) for k in range(pieces) if owners[k] == index)
            ranks[rank].append(Microbatch([id], packed=True, part=Part(index, count, ranges)))
    return StepPlan(0, 0, tuple(tuple(rank) for rank in ranks))


def gradient(model: Any, kind: str, micros: Sequence[Microbatch], shares: Any, scale: float) -> torch.Tensor:
    model.zero_grad(set_to_none=True)
    collate = collator(kind)
    for micro in micros:
        id = int(micro.ids[0])
        batch = collate(micro.ids, packed=True) if micro.part is None else collate.parts(id, *shares[id])
        (scale * loss_sum(model(**batch.inputs).logits, batch.labels, batch.weights)).backward()
    return torch.cat([
        (torch.zeros_like(p) if p.grad is None else p.grad).reshape(-1) for p in model.parameters()
    ])  # fmt: skip


def of_one_process(model: Any, kind: str, plan: StepPlan, scale: float) -> torch.Tensor:
    """Return the gradient of whole samples, each padded and alone."""
    model.zero_grad(set_to_none=True)
    for id in plan.ids.tolist():
        batch = collator(kind)(np.array([id]))
        (scale * loss_sum(model(**batch.inputs).logits, batch.labels)).backward()
    return torch.cat([p.grad.reshape(-1) for p in model.parameters()])


def scale_of(kind: str, plan: StepPlan) -> float:
    if kind != "gpt":
        return 1 / plan.global_batch
    return 1 / sum(int(np.count_nonzero(TABLE.labels(id)[1:] != NOT_LEARNT)) for id in plan.ids.tolist())


def apart(found: torch.Tensor, expected: torch.Tensor) -> float:
    return float((found - expected).norm() / expected.norm())


@pytest.mark.parametrize("kind", ["gpt", "distilbert"])
@pytest.mark.parametrize("plans", [40, pytest.param(200, marks=pytest.mark.slow)])
def test_on_virtual_ranks_the_gradient_is_that_of_one_process(kind: str, plans: int) -> None:
    model, generator, errors = model_of(kind), np.random.default_rng(1), []
    for _ in range(plans):
        plan = random_plan(generator, int(generator.integers(2, 5)))
        shares, run = joined(plan, CPU)
        scale = scale_of(kind, plan)
        found = sum(gradient(model, kind, micros, shares, scale) for micros in run)
        errors.append(apart(found, of_one_process(model, kind, plan, scale)))
    print(f"{kind}, virtual: at most {max(errors):.1e}")
    assert max(errors) <= EXACT


def on_gloo(kind: str, plans: int, faults: Sequence[str | None] = (None,)) -> list[list[float]]:
    """Return for each fault the error of each plan's gradient, added up over ranks."""
    join_group()
    size, rank = dist.get_world_size(), dist.get_rank()
    model, groups = model_of(kind), PartGroups(rank, 3, 60.0)
    found = []
    for fault in faults:
        generator = np.random.default_rng(size)
        with planted(fault):
            found.append([_error(model, kind, random_plan(generator, size), groups, fault) for _ in range(plans)])
    assert len(groups) <= 3
    dist.barrier()
    return found


def _error(model: Any, kind: str, plan: StepPlan, groups: PartGroups, fault: str | None) -> float:
    rank, scale = dist.get_rank(), scale_of(kind, plan)
    if fault == "local count":
        scale = 1 / max(1, sum(len(micro.counted) for micro in plan.ranks[rank]))
    micros = plan.ranks[rank]
    while True:  # with more groups than may be kept, a split sample less
        try:
            shares = groups.shares(plan, CPU, CollectiveLog(Clock(CPU)))
            break
        except ConfigError:
            last = max(plan.parts)
            ranks = [[micro for micro in each if micro.part is None or micro.ids[0] != last] for each in plan.ranks]
            plan = StepPlan(0, 0, tuple(map(tuple, ranks)))
            micros, scale = plan.ranks[rank], scale_of(kind, plan)
    found = gradient(model, kind, micros, shares, scale)
    dist.all_reduce(found)
    return apart(found, of_one_process(model, kind, plan, scale_of(kind, plan)))


@contextlib.contextmanager
def planted(fault: str | None) -> Iterator[None]:
    """Let one of the things that make the gradient right be wrong."""
    with pytest.MonkeyPatch.context() as patch:
        parts, sums = Collator.parts, GroupParts.sum_of_own
        if fault == "label lost at the cut":

            def without_labels(self: Any, *args: Any) -> Any:
                batch = parts(self, *args)
                ends = np.cumsum([end - start for start, end in batch.packing.ranges])
                if batch.labels.dim() == 2:
                    batch.labels[0, ends] = NOT_LEARNT
                return batch

            patch.setattr(Collator, "parts", without_labels)
        elif fault == "positions restarted":

            def from_0(self: Any, *args: Any) -> Any:
                batch = parts(self, *args)
                batch.position_ids[0] = torch.arange(batch.position_ids.shape[1])
                return batch

            patch.setattr(Collator, "parts", from_0)
        elif fault == "key/value gradient dropped":
            patch.setattr(GroupParts, "sum_of_own", lambda self, gradient: 0 * sums(self, gradient))
        elif fault == "key/value gradient doubled":
            patch.setattr(GroupParts, "sum_of_own", lambda self, gradient: 2 * sums(self, gradient))
        yield


@pytest.mark.parametrize("kind", ["gpt", "distilbert"])
@pytest.mark.parametrize(
    ("world_size", "plans"), [(2, 50), *(pytest.param(n, 200, marks=pytest.mark.slow) for n in (2, 3, 4))]
)
def test_on_gloo_ranks_the_gradient_is_that_of_one_process(kind: str, world_size: int, plans: int) -> None:
    """No rank waits for ever, and groups beyond the limit are made anew."""
    errors = np.array(run_ranks(on_gloo, world_size, kind, plans, timeout_s=240))
    print(f"{kind}, {world_size} gloo ranks: at most {errors.max():.1e} over {errors.shape[2]} plans")
    assert errors.max() <= EXACT


@pytest.mark.parametrize("kind", ["gpt", "distilbert"])
def test_faults_are_found(kind: str) -> None:
    faults = [each for each in FAULTS if kind == "gpt" or "label" not in each]  # a classifier has none at a cut
    errors = np.array(run_ranks(on_gloo, 2, kind, 12, faults, timeout_s=120))[0]
    for fault, found in zip(faults, errors, strict=True):
        print(f"{kind}, {fault}: median {np.median(found):.1e}, at most {found.max():.1e}")
        assert np.median(found) >= SEEN, fault


def test_a_part_that_ends_behind_its_sample_is_refused() -> None:
    length = len(TABLE.rows[0])
    parts = [Part(0, 2, ((0, 1),)), Part(1, 2, ((1, length + 4),))]
    with pytest.raises(DataError, match=f"sample 0 has {length} tokens, and a part of it ends at {length + 4}"):
        collator("gpt").parts(0, parts, lambda own: own)


def test_a_model_that_cannot_is_refused_at_the_start() -> None:
    model = model_of("gpt")
    model.transformer.h[0].register_forward_hook(lambda module, args, output: output + output.mean(1, keepdim=True))
    with pytest.raises(ConfigError, match="cannot run split samples: its logits of a sample in parts differ"):
        enable_splitting(model, "gpt", LONGEST)
    model.transformer.drop.p = 0.1
    with pytest.raises(ConfigError, match=r"has dropout 0\.1; set model\.dropout = 0"):
        enable_splitting(model, "gpt", LONGEST)


def test_more_groups_in_a_step_than_may_be_kept_are_refused() -> None:
    ids = iter(range(SAMPLES))
    pairs = [(0, 1), (1, 2), (0, 2)]
    ranks: list[list[Microbatch]] = [[], [], []]
    for pair in pairs:
        id = next(ids)
        length = len(TABLE.rows[id])
        for index, rank in enumerate(pair):
            part = Part(index, 2, (((0, 1), (1, length))[index],))
            ranks[rank].append(Microbatch([id], packed=True, part=part))
    plan = StepPlan(0, 4, tuple(tuple(rank) for rank in ranks))
    with pytest.raises(ConfigError, match=r"step 4 splits samples over 3 groups of ranks, and executor.max_groups = 2"):
        PartGroups(0, 2, 60.0).shares(plan, CPU, CollectiveLog(Clock(CPU)))


@pytest.mark.parametrize("task", ["classification", "causal_lm"])
def test_virtual_ranks_share_the_time_and_the_loss_of_what_they_split(task: str) -> None:
    config = parse({
        "steps": 2, "global_batch": 12, "world_size": 3, "data": {"size": 100},
        "model": {"dropout": 0.0, "task": task}, "policy": {"kind": "split", "max_tokens": 16},
    })  # fmt: skip
    executor = VirtualExecutor(config, config.load_samples())
    spec = config.plan_spec()
    for plan in plan_steps(spec, executor.learner._samples.train, LocalExchange(3)):
        assert plan.parts, "some are split"
        records = executor.execute(plan)
        assert sum(record.num_samples for record in records) == 12
        tokens = executor.learner.lengths(plan.ids).sum()
        assert sum(record.num_tokens for record in records) == tokens
        losses = [record.loss for record in records if record.loss is not None]
        assert max(losses) < 2 * min(losses), "each its own mean"
        assert all(record.wait_s is None or record.wait_s >= -1e-9 for record in records)
        seconds = [record.compute_s or 0.0 for record in records]
        assert min(seconds) > 0
        assert all((record.step_s or 0.0) >= each for record, each in zip(records, seconds, strict=True))
    assert finish_times([[(1.5, None)], [(0.5, None)]]) == [1.5, 0.5]


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("window", [None, 1, 3, 40])
def test_masks_let_a_query_attend_to_what_the_whole_sample_lets_it(causal: bool, window: int | None) -> None:
    for start, end in [(0, 4), (3, 9), (5, 6)]:
        last = end if causal else 12
        mask = _mask(start, end, last, causal, window, torch.zeros(1))
        back = torch.arange(start, end)[:, None] - torch.arange(last)
        may = (back >= 0 if causal else back == back) & (back.abs() < (window or 100))
        expected = torch.zeros(end - start, last).masked_fill(~may, -torch.inf)
        assert torch.equal(torch.zeros_like(expected) if mask is None else mask[0, 0], expected)
