"""StepLoader within split_samples: parts of samples in a loop of one's own, with the gradient of one process."""

from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist
import torch.nn.functional as F
from ranks import run_ranks
from torch.nn.parallel import DistributedDataParallel
from transformers import (
    BertConfig,
    BertForMaskedLM,
    DistilBertConfig,
    DistilBertForSequenceClassification,
    GPT2Config,
    GPT2LMHeadModel,
    LlamaConfig,
    LlamaForCausalLM,
)

import ddpsched
from ddpsched.errors import ConfigError, DataError, InfeasibleError
from ddpsched.integrations.split_samples import _cut
from ddpsched.local_ranks import join_group
from ddpsched.parts import head_and_tail
from ddpsched.training.collate import NOT_LEARNT

SAMPLES, WORDS = 40, 50


def data_of(task: str) -> list[dict[str, Any]]:
    draw = np.random.default_rng(0)
    lengths = np.where(draw.random(SAMPLES) < 0.2, draw.integers(30, 60, SAMPLES), draw.integers(2, 12, SAMPLES))
    rows = [draw.integers(1, WORDS, n) for n in lengths.tolist()]
    if task == "classes":
        return [{"input_ids": row, "label": int(draw.integers(3))} for row in rows]
    return [{"input_ids": row, "labels": np.where(np.arange(len(row)) < 2, NOT_LEARNT, row)} for row in rows]


def model_of(task: str) -> Any:
    torch.manual_seed(0)
    if task == "grouped heads":
        return LlamaForCausalLM(LlamaConfig(
            vocab_size=WORDS, max_position_embeddings=64, hidden_size=16, intermediate_size=32, num_hidden_layers=2,
            num_attention_heads=4, num_key_value_heads=2, use_cache=False,
        )).double()  # fmt: skip
    if task == "classes":
        return DistilBertForSequenceClassification(DistilBertConfig(
            vocab_size=WORDS, max_position_embeddings=64, dim=16, hidden_dim=32, n_layers=2, n_heads=2, num_labels=3,
            dropout=0, attention_dropout=0, seq_classif_dropout=0,
        )).double()  # fmt: skip
    return GPT2LMHeadModel(GPT2Config(
        vocab_size=WORDS, n_positions=64, n_embd=16, n_layer=2, n_head=2, resid_pdrop=0, embd_pdrop=0, attn_pdrop=0,
        use_cache=False,
    )).double()  # fmt: skip


def loader_of(data: Any, world_size: int, **more: Any) -> Any:
    return ddpsched.StepLoader(
        data, [len(each["input_ids"]) for each in data], policy={"kind": "split", "max_tokens": 64 // world_size},
        global_batch=20 // world_size, collate_fn=ddpsched.packed_collate, **more,
    )  # fmt: skip


def learnt(batch: Any) -> int:
    return int((batch["shift_labels"] != NOT_LEARNT).sum())


def summed(model: Any, batch: dict[str, Any]) -> torch.Tensor:
    batch = dict(batch)
    if "labels" in batch:
        labels = batch.pop("labels")
        return F.cross_entropy(model(**batch).logits, labels, reduction="sum")
    labels = batch.pop("shift_labels")
    return F.cross_entropy(model(**batch).logits[0], labels[0], reduction="sum")


def on_rank(task: str, workers: int) -> tuple[list[float], int, list[Any], int]:
    """Return each step's relative error, this rank's parts, its states, and its steps without a sample of its own."""
    join_group()
    data, model = data_of(task), model_of(task)
    loader = loader_of(data, dist.get_world_size(), num_workers=workers)
    ddp, errors, parts, states, uncounted = DistributedDataParallel(model), [], 0, [], 0
    with ddpsched.split_samples(ddp, loader):
        for batches, scale in ddpsched.scaled(loader, count=None if task == "classes" else learnt):
            for batch in ddpsched.micro_batches(ddp, batches):
                (scale * summed(ddp, batch)).backward()
            found = torch.cat([p.grad.reshape(-1) for p in model.parameters()])
            ddp.zero_grad()
            errors.append(float((found - expected(model, task, data, loader.plan.ids)).norm() / found.norm()))
            parts += sum(micro.part is not None for micro in loader.plan.ranks[dist.get_rank()])
            uncounted += bool(loader.step.rank_microbatches and not loader.step.rank_samples)
            states.append(loader.state_dict()["position"])
            assert loader.step.rank_tokens <= 10 * 32
    dist.barrier()
    return errors, parts, states, uncounted


def expected(model: Any, task: str, data: Any, ids: Any) -> torch.Tensor:
    """Return the gradient of whole samples, each alone in one process, of their mean or that of their label tokens."""
    rows = [data[id] for id in ids.tolist()]
    total = len(rows) if task == "classes" else sum(int((row["labels"][1:] != NOT_LEARNT).sum()) for row in rows)
    copy = model_of(task)
    copy.load_state_dict(model.state_dict())
    for row in rows:
        logits = copy(input_ids=torch.as_tensor(row["input_ids"])[None]).logits
        if task == "classes":
            loss = F.cross_entropy(logits, torch.tensor([row["label"]]))
        else:
            loss = F.cross_entropy(logits[0, :-1], torch.as_tensor(row["labels"])[1:], reduction="sum")
        (loss / total).backward()
    return torch.cat([p.grad.reshape(-1) for p in copy.parameters()])


@pytest.mark.parametrize(
    ("task", "workers", "ranks"), [("tokens", 1, 2), ("classes", 0, 2), ("tokens", 0, 4), ("grouped heads", 0, 4)]
)
def test_the_gradient_is_that_of_one_process(task: str, workers: int, ranks: int) -> None:
    found = run_ranks(on_rank, ranks, task, workers, timeout_s=120)
    for errors, parts, states, _ in found:
        assert len(errors) == SAMPLES * ranks // 20
        assert parts >= 3, "samples are split"
        assert max(errors) < 1e-12
        assert states == found[0][2]
    if ranks == 4:
        assert any(uncounted for *_, uncounted in found), "some rank has nothing but parts that other ranks count"


def test_a_split_loader_needs_a_model_that_gathers() -> None:
    data = data_of("tokens")
    loader = loader_of(data, 2, world=ddpsched.World(0, 2))
    with pytest.raises(ConfigError, match=r"iterate it within ddpsched.split_samples\(model, loader\)"):
        next(iter(loader))
    with ddpsched.split_samples(model_of("tokens"), loader), pytest.raises(ConfigError, match="torch's process group"):
        list(loader)
    packed = ddpsched.StepLoader(data, [4] * SAMPLES, policy="packed", global_batch=8, world=ddpsched.World(0, 2))
    with pytest.raises(ConfigError, match="the loader's policy is 'packed'; use policy='split'"):
        ddpsched.split_samples(model_of("tokens"), packed).__enter__()
    with pytest.raises(ConfigError, match="BatchSampler yields whole ones; use StepLoader within"):
        ddpsched.BatchSampler([4] * 8, global_batch=4, policy="split", world=ddpsched.World(0, 2))


def test_batches_of_another_form_are_refused() -> None:
    data = data_of("tokens")
    loader = ddpsched.StepLoader(
        data, [len(each["input_ids"]) for each in data], policy="split", global_batch=10, collate_fn=list,
        world=ddpsched.World(0, 1),
    )  # fmt: skip
    said = "a batch needs 'input_ids', 'position_ids', 'labels', 'packing', as packed_collate makes them; it has list"
    with ddpsched.split_samples(model_of("tokens"), loader), pytest.raises(DataError, match=said):
        list(loader)


def on_rank_wrapped(gathers: bool) -> float:
    """Return how far this rank's gradient is from the mean over ranks, of a model that DDP wraps before it packs."""
    join_group()
    ddp = DistributedDataParallel(model_of("tokens").float())
    if gathers:
        with ddpsched.split_samples(ddp, loader_of(data_of("tokens"), 2)):
            pass
    else:
        ddpsched.enable_packing(ddp)
    tokens = torch.arange(1, 9)[None] * (dist.get_rank() + 1)
    ddp(input_ids=tokens, attention_mask=torch.ones_like(tokens)).logits.sum().backward()
    found = torch.cat([p.grad.reshape(-1) for p in ddp.parameters()])
    mean = found.clone()
    dist.all_reduce(mean)
    dist.barrier()
    return float((found - mean / 2).norm() / found.norm())


@pytest.mark.parametrize("gathers", [True, False])
def test_a_model_that_is_wrapped_already_still_reduces_its_gradients(gathers: bool) -> None:
    assert max(run_ranks(on_rank_wrapped, 2, gathers, timeout_s=120)) < 1e-6


class Renamed(GPT2LMHeadModel):
    """A model of one's own, which predicts tokens as its base does."""


def llama(**options: Any) -> Any:
    return LlamaForCausalLM(LlamaConfig(
        vocab_size=WORDS, hidden_size=16, intermediate_size=32, num_hidden_layers=1, num_attention_heads=2,
        num_key_value_heads=1, **{"max_position_embeddings": 64, **options},
    ))  # fmt: skip


def masked() -> Any:
    return BertForMaskedLM(BertConfig(
        vocab_size=WORDS, hidden_size=16, intermediate_size=32, num_hidden_layers=1, num_attention_heads=2,
        hidden_dropout_prob=0, attention_probs_dropout_prob=0,
    ))  # fmt: skip


@pytest.mark.parametrize(
    ("build", "why"),
    [
        (lambda: llama(attention_dropout=0.3), r"has attention_dropout 0\.3; set model\.dropout = 0"),
        (lambda: llama(rope_scaling={"rope_type": "dynamic", "factor": 2.0}), r"rotary positions \('dynamic'\) depend"),
        (lambda: llama(max_position_embeddings=40), r"a sample has 5\d tokens, and LlamaForCausalLM has 40 positions"),
        (masked, "BertForMaskedLM is no model .* that predicts the next token or classifies"),
    ],
    ids=["dropout", "dynamic positions", "too few positions", "masked"],
)
def test_models_that_cannot_are_refused_at_the_start(build: Any, why: str) -> None:
    loader = loader_of(data_of("tokens"), 2, world=ddpsched.World(0, 2))
    with pytest.raises(ConfigError, match=why), ddpsched.split_samples(build(), loader):
        pass


def test_a_subclass_is_taken() -> None:
    loader = loader_of(data_of("tokens"), 2, world=ddpsched.World(0, 2))
    with ddpsched.split_samples(Renamed(model_of("tokens").config), loader):
        pass


def with_types(samples: Any) -> dict[str, Any]:
    batch = ddpsched.packed_collate(samples)
    return {**batch, "token_type_ids": torch.zeros_like(batch["input_ids"])}


def test_a_sample_over_all_ranks_and_keys_that_are_not_known_are_refused() -> None:
    data, world = data_of("tokens"), ddpsched.World(0, 2)
    lengths = [len(each["input_ids"]) for each in data]
    policy = {"kind": "split", "max_tokens": 20}
    loader = ddpsched.StepLoader(
        data, lengths, policy=policy, global_batch=10, collate_fn=ddpsched.packed_collate, world=world
    )
    with ddpsched.split_samples(model_of("tokens"), loader), pytest.raises(InfeasibleError, match="on all 2 ranks"):
        next(iter(loader))
    micro = np.arange(40)
    with pytest.raises(DataError, match="a batch has 'token_type_ids' beside what packed_collate makes"):
        _cut(with_types([{"input_ids": micro, "labels": micro}]), head_and_tail(40, 2)[0], None)
    with pytest.raises(DataError, match="labels are numbers of a regression"):
        _cut(ddpsched.packed_collate([{"input_ids": micro, "label": 0.5}]), head_and_tail(40, 2)[0], None)
