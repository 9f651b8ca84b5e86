"""``assert_gradient_exact`` on common training steps: exact ones hold, and the others get the right cause.

Most steps run one after another in the same two ranks and are certified from their results. ``pytest -rP`` prints the
certificates.
"""

import functools
import os
from collections.abc import Sequence
from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.nn.functional as F
from installed import SHARDS_ON_CPU, needs_sharding_on_cpu
from step_cases import Case, StepCases
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel as DDP

from ddpsched import assert_gradient_exact
from ddpsched.errors import ConfigError

Batch = dict[str, torch.Tensor]
VOCABULARY = 32


class Classifier(torch.nn.Module):
    """Classifies the mean of embeddings with one hidden layer."""

    def __init__(self, dropout: float = 0.0, num_labels: int = 3) -> None:
        super().__init__()
        self.tokens = torch.nn.Embedding(VOCABULARY, 8)
        self.hidden, self.head = torch.nn.Linear(8, 8), torch.nn.Linear(8, num_labels)
        self.dropout = torch.nn.Dropout(dropout)

    def forward(self, input_ids: torch.Tensor) -> torch.Tensor:
        return self.head(self.dropout(torch.tanh(self.hidden(self.tokens(input_ids).mean(-2)))))


class Causal(Classifier):
    """Predicts the next token from the mean of those before it."""

    def __init__(self) -> None:
        super().__init__(num_labels=VOCABULARY)

    def forward(self, input_ids: torch.Tensor) -> torch.Tensor:
        seen = torch.arange(1, input_ids.shape[1] + 1)[:, None]
        return self.head(torch.tanh(self.hidden(self.tokens(input_ids).cumsum(1) / seen)))


def classifier() -> torch.nn.Module:
    return Classifier().double()


def with_dropout() -> torch.nn.Module:
    return Classifier(dropout=0.5).double()


def single_precision() -> torch.nn.Module:
    return Classifier()


def other_on_every_rank() -> torch.nn.Module:
    torch.manual_seed(int(os.environ.get("RANK", "7")))
    return Classifier()


def causal() -> torch.nn.Module:
    return Causal().double()


def rows(counts: Sequence[Sequence[int]]) -> list[list[Batch]]:
    """Return a classifier's micro-batches, ``counts[r][m]`` rows each."""
    rng = torch.Generator().manual_seed(0)

    def batch(count: int) -> Batch:
        return {
            "input_ids": torch.randint(VOCABULARY, (count, 5), generator=rng),
            "labels": torch.randint(3, (count,), generator=rng),
        }

    return [[batch(count) for count in rank] for rank in counts]


def prompts(masked: Sequence[Sequence[Sequence[int]]]) -> list[list[Batch]]:
    """Return a causal model's micro-batches: each row of 12 tokens has its first ``masked[r][m][i]`` labels masked."""
    rng = torch.Generator().manual_seed(0)

    def batch(lengths: Sequence[int]) -> Batch:
        ids = torch.randint(VOCABULARY, (len(lengths), 12), generator=rng)
        labels = ids.clone()
        for row, length in enumerate(lengths):
            labels[row, :length] = -100
        return {"input_ids": ids, "labels": labels}

    return [[batch(lengths) for lengths in rank] for rank in masked]


UNEQUAL = rows([[5], [3]])
ACCUMULATED = rows([[5, 2], [3, 1]])
MASKED = prompts([[[1, 9], [4]], [[2], [11]]])


def loss_of(model: torch.nn.Module, batch: Batch, reduction: str = "sum") -> torch.Tensor:
    return F.cross_entropy(model(batch["input_ids"]), batch["labels"], reduction=reduction)


def token_loss(model: torch.nn.Module, batch: Batch) -> torch.Tensor:
    logits = model(batch["input_ids"])[:, :-1]
    return F.cross_entropy(logits.transpose(1, 2), batch["labels"][:, 1:], reduction="sum")


def total(number: int) -> int:
    """Return the sum over all ranks."""
    count = torch.tensor(number)
    dist.all_reduce(count)
    return int(count)


def scaled(model: torch.nn.Module, batches: list[Batch]) -> None:
    """Train on G*b_r/B times the rank's mean loss, averaged by DDP."""
    ranks, (batch,) = DDP(model), batches
    count = len(batch["labels"])
    (loss_of(ranks, batch, "mean") * (dist.get_world_size() * count / total(count))).backward()


def accumulated(model: torch.nn.Module, batches: list[Batch]) -> None:
    """Train on summed losses over the global count; only the last micro-batch synchronises."""
    ranks = DDP(model)
    scale = dist.get_world_size() / total(sum(len(batch["labels"]) for batch in batches))
    for index, batch in enumerate(batches):
        ranks.require_backward_grad_sync = index == len(batches) - 1
        (loss_of(ranks, batch) * scale).backward()


def sharded(model: torch.nn.Module, batches: list[Batch]) -> None:
    fully_shard(model)
    scale = dist.get_world_size() / total(sum(len(batch["labels"]) for batch in batches))
    (loss_of(model, batches[0]) * scale).backward()


def by_hand(model: torch.nn.Module, batches: list[Batch]) -> None:
    """Add gradients over ranks without DDP; a rank without micro-batches adds zeros."""
    count = total(sum(len(batch["labels"]) for batch in batches))
    for parameter in model.parameters():
        parameter.grad = torch.zeros_like(parameter)
    for batch in batches:
        (loss_of(model, batch) / count).backward()
    for parameter in model.parameters():
        dist.all_reduce(parameter.grad)


def tokens(model: torch.nn.Module, batches: list[Batch], by_samples: bool = False) -> None:
    """Train on summed token losses over the global label count, or on each rank's mean by its share of samples."""
    ranks = DDP(model)
    labels = sum(int((batch["labels"][:, 1:] != -100).sum()) for batch in batches)
    samples = sum(len(batch["labels"]) for batch in batches)
    scale = dist.get_world_size() / total(labels)
    if by_samples:
        scale = dist.get_world_size() * samples / total(samples) / labels
    for index, batch in enumerate(batches):
        ranks.require_backward_grad_sync = index == len(batches) - 1
        (token_loss(ranks, batch) * scale).backward()


def row_weighted(model: torch.nn.Module, batches: list[Batch]) -> None:
    """Train on each row's mean token loss, averaged over rows: sample weights on a token loss."""
    ranks = DDP(model)
    scale = dist.get_world_size() / total(sum(len(batch["labels"]) for batch in batches))
    for index, batch in enumerate(batches):
        ranks.require_backward_grad_sync = index == len(batches) - 1
        logits, labels = ranks(batch["input_ids"])[:, :-1], batch["labels"][:, 1:]
        each = F.cross_entropy(logits.transpose(1, 2), labels, reduction="none").sum(1) / (labels != -100).sum(1)
        (each.sum() * scale).backward()


def plain_mean(model: torch.nn.Module, batches: list[Batch]) -> None:
    ranks = DDP(model)
    loss_of(ranks, batches[0], "mean").backward()


def garbage(model: torch.nn.Module, batches: list[Batch]) -> None:
    """Run backward after DDP was garbage-collected, so that nothing synchronises."""
    loss_of(DDP(model), batches[0], "mean").backward()


def divided_by_steps(model: torch.nn.Module, batches: list[Batch]) -> None:
    """Train on each micro-batch's mean over the number of micro-batches."""
    ranks = DDP(model)
    for index, batch in enumerate(batches):
        ranks.require_backward_grad_sync = index == len(batches) - 1
        (loss_of(ranks, batch, "mean") / len(batches)).backward()


def alone(model: torch.nn.Module, batches: list[Batch]) -> None:
    loss_of(model, batches[0], "mean").backward()


def on_a_copy(model: torch.nn.Module, batches: list[Batch]) -> None:
    loss_of(Classifier().double(), batches[0], "mean").backward()


def stepping(model: torch.nn.Module, batches: list[Batch]) -> None:
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    by_hand(model, batches)
    optimizer.step()


def impatient(model: torch.nn.Module, batches: list[Batch]) -> None:
    """Return at once on a rank without micro-batches."""
    if batches:
        by_hand(model, batches)


def falling(model: torch.nn.Module, batches: list[Batch]) -> None:
    if dist.get_rank() == 1:
        raise KeyError("lr")
    by_hand(model, batches)


def freezing(model: torch.nn.Module, batches: list[Batch]) -> None:
    model.tokens.weight.requires_grad_(False)
    by_hand(model, batches)


def row_means(model: torch.nn.Module, batch: Batch) -> torch.Tensor:
    return F.cross_entropy(model(batch["input_ids"]), batch["labels"])


CASES: dict[str, Case] = {
    "scaled": (scaled, classifier, UNEQUAL),
    **({"sharded": (sharded, classifier, UNEQUAL)} if SHARDS_ON_CPU else {}),
    "dropout": (scaled, with_dropout, UNEQUAL),
    "other weights": (scaled, other_on_every_rank, UNEQUAL),
    "accumulated": (accumulated, single_precision, ACCUMULATED),
    "a rank without": (by_hand, classifier, rows([[4, 2], []])),
    "tokens": (tokens, causal, MASKED),
    "tokens by samples": (functools.partial(tokens, by_samples=True), causal, MASKED),
    "tokens by rows": (row_weighted, causal, MASKED),
    "plain mean": (plain_mean, classifier, UNEQUAL),
    "divided by steps": (divided_by_steps, classifier, rows([[5, 2], [2, 5]])),
    "alone": (alone, classifier, UNEQUAL),
    "garbage": (garbage, classifier, UNEQUAL),
    "on a copy": (on_a_copy, classifier, UNEQUAL),
    "stepping": (stepping, classifier, UNEQUAL),
}


@pytest.fixture(scope="module")
def ran(tmp_path_factory: pytest.TempPathFactory) -> StepCases:
    return StepCases(CASES, 2, tmp_path_factory.mktemp("gradients"))


@pytest.fixture
def certify(ran: StepCases, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Return ``assert_gradient_exact`` of a named case."""
    return lambda name, target="sample_mean": ran.certify(name, monkeypatch, target=target)


@pytest.mark.parametrize(
    "name", ["scaled", "accumulated", pytest.param("sharded", marks=needs_sharding_on_cpu), "a rank without", "tokens"]
)
def test_exact_steps_hold(certify: Any, name: str) -> None:
    certificate = certify(name, "token_mean" if name == "tokens" else "sample_mean")
    assert certificate.holds
    assert [check.name for check in certificate.checks] == [
        "gradient", "same gradient on all ranks", "same weights", "same collectives"
    ]  # fmt: skip
    print(certificate.text())


MISTAKES = [
    ("plain mean", "mean over its own samples (no scale G*b_r/B): rank 0's weigh 0.8, rank 1's weigh 1.33"),
    ("divided by steps", "every micro-batch weighs the same", "(loss / accumulation steps)"),
    ("alone", "not synchronised: this is rank 0's own gradient", "each rank steps along its own gradient"),
    ("garbage", "not synchronised: this is rank 0's own gradient"),
    ("on a copy", "ranks 0, 1 left no gradient in model.parameters()", "ran on a copy of the model"),
    ("stepping", "ranks 0, 1 moved tokens.weight, hidden.weight and 3 more", "train_step takes an optimizer's step",
     "does not hold: 1 of 4 checks failed (same weights)"),
    ("other weights", "ranks 0, 1 built other weights than this process", "1 of 2 checks failed (same weights)"),
    ("tokens by samples", "share of samples, not of what counts"),
    ("tokens by rows", "every sample weighs the same, however many of its tokens count: sample weights on a token"),
]  # fmt: skip


@pytest.mark.parametrize(("name", "words"), [(name, words) for name, *words in MISTAKES], ids=[m[0] for m in MISTAKES])
def test_mistakes_are_found_and_named(certify: Any, name: str, words: list[str]) -> None:
    with pytest.raises(AssertionError) as caught:
        certify(name, "token_mean" if name.startswith("tokens") else "sample_mean")
    print(caught.value)
    for each in words:
        assert each in unwrapped(caught)


def unwrapped(caught: pytest.ExceptionInfo[AssertionError]) -> str:
    return " ".join(str(caught.value).split())


def test_dropout_is_switched_off_with_a_warning(certify: Any) -> None:
    with pytest.warns(UserWarning, match=r"dropout 0.5 of the model is switched off"):
        certificate = certify("dropout")
    assert any("dropout 0.5" in fact for fact in certificate.facts)


def test_a_rank_that_does_not_join_is_named() -> None:
    with pytest.raises(AssertionError) as caught:
        assert_gradient_exact(impatient, classifier, rows([[3], []]), timeout_s=20)
    assert "rank 1, without micro-batches, must still join them, with zeros" in unwrapped(caught)
    assert "failed (gradient, same collectives)" in unwrapped(caught)


def test_a_rank_that_raises_is_named() -> None:
    with pytest.raises(AssertionError) as caught:
        assert_gradient_exact(falling, classifier, UNEQUAL, timeout_s=20)
    assert "the step did not end likely cause: rank 1 raised KeyError: 'lr'" in unwrapped(caught)


def test_a_step_that_freezes_a_parameter_is_told() -> None:
    with pytest.raises(AssertionError) as caught:
        assert_gradient_exact(freezing, classifier, UNEQUAL, timeout_s=20)
    assert "changed which parameters require a gradient: tokens.weight" in unwrapped(caught)


def test_arguments_that_cannot_be_used() -> None:
    for tolerance in (-1.0, float("inf"), float("nan")):
        with pytest.raises(ConfigError, match="a relative error between 0 and 1"):
            assert_gradient_exact(by_hand, classifier, UNEQUAL, tolerance=tolerance)
    with pytest.raises(ConfigError, match="it holds a list of micro-batches for each rank"):
        assert_gradient_exact(by_hand, classifier, [])
    for step in (lambda model, batches: None, functools.partial(lambda model, batches: None)):
        with pytest.raises(ConfigError, match=r"train_step cannot be sent to ranks .* define it at the top level"):
            assert_gradient_exact(step, classifier, UNEQUAL)
    with pytest.raises(ConfigError, match=r"build_model cannot be sent"):
        assert_gradient_exact(scaled, lambda: Classifier(), UNEQUAL)
    with pytest.raises(ConfigError, match=r"target = 'mean' is none of sample_mean, token_mean, constant_length"):
        assert_gradient_exact(scaled, classifier, UNEQUAL, target="mean")
    with pytest.raises(ConfigError, match=r"batches\[0\] is dict: it is the list of rank 0's micro-batches"):
        assert_gradient_exact(scaled, classifier, UNEQUAL[0])
    with pytest.raises(ConfigError, match=r"batches hold no micro-batch at all"):
        assert_gradient_exact(scaled, classifier, [[], []])
    with pytest.raises(ConfigError, match=r"batches\[0\]\[0\] has keys \['input_ids'\]"):
        assert_gradient_exact(scaled, classifier, [[{"input_ids": torch.zeros(1, 1)}]])
    with pytest.raises(ConfigError, match=r"has shape \(\): give one number for each that counts"):
        assert_gradient_exact(scaled, classifier, UNEQUAL, losses=row_means)
    with pytest.raises(ConfigError, match=r"build_model\(\) gave int"):
        assert_gradient_exact(scaled, functools.partial(int, 3), UNEQUAL)
    with pytest.raises(ConfigError, match=r"every label is -100"):
        assert_gradient_exact(tokens, causal, prompts([[[12]], [[12]]]), target="token_mean")
