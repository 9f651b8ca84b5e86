"""Steps that are nearly right, and right ones that look odd: each is judged, and its cause told.

``pytest -rP`` prints the certificates.
"""

import functools

import pytest
import torch
import torch.distributed as dist
import torch.nn.functional as F
from step_cases import Case, StepCases
from test_certify_step import UNEQUAL, VOCABULARY, Batch, Classifier, loss_of, rows, scaled, total
from torch.nn.parallel import DistributedDataParallel as DDP

from ddpsched.certify import small_errors

THREE = rows([[6, 2], [3, 4]])


class Tiny(Classifier):
    """Has a parameter whose gradient is about a millionth of all, and a bias."""

    def __init__(self) -> None:
        super().__init__()
        self.tiny = torch.nn.Parameter(torch.tensor([0.5, -0.25, 1.0]))

    def forward(self, input_ids: torch.Tensor) -> torch.Tensor:
        return super().forward(input_ids) + 1e-6 * self.tiny


class Normed(Classifier):
    """Has batch norm, whose running statistics forward changes and does not read while it trains."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = torch.nn.BatchNorm1d(3)

    def forward(self, input_ids: torch.Tensor) -> torch.Tensor:
        return self.norm(super().forward(input_ids))


class Running(Classifier):
    """Divides by a running size, which forward changes and reads."""

    size: torch.Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("size", torch.ones(()))

    def forward(self, input_ids: torch.Tensor) -> torch.Tensor:
        logits = super().forward(input_ids)
        self.size = 0.5 * self.size + 0.5 * logits.detach().abs().mean()
        return logits / self.size


class Sparse(Classifier):
    def __init__(self) -> None:
        super().__init__()
        self.tokens = torch.nn.Embedding(VOCABULARY, 8, sparse=True)


class Weighted(Classifier):
    """Multiplies its logits by a buffer that is the same for ever."""

    factor: torch.Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("factor", torch.tensor(2.0))

    def forward(self, input_ids: torch.Tensor) -> torch.Tensor:
        return self.factor * super().forward(input_ids)


class Attending(Classifier):
    """Attends over its tokens; the same added to all keys changes nothing."""

    def __init__(self) -> None:
        super().__init__()
        self.query, self.key = torch.nn.Linear(8, 8), torch.nn.Linear(8, 8)

    def forward(self, input_ids: torch.Tensor) -> torch.Tensor:
        x = self.tokens(input_ids)
        weights = (self.query(x) @ self.key(x).transpose(1, 2)).softmax(-1)
        return self.head(torch.tanh(self.hidden((weights @ x).mean(-2))))


def attending() -> torch.nn.Module:
    return Attending()


def tiny() -> torch.nn.Module:
    return Tiny()


def normed() -> torch.nn.Module:
    return Normed().double()


def running() -> torch.nn.Module:
    return Running().double()


def sparse() -> torch.nn.Module:
    return Sparse().double()


def weighted() -> torch.nn.Module:
    return Weighted().double()


def single() -> torch.nn.Module:
    return Classifier()


def double() -> torch.nn.Module:
    return Classifier().double()


def summed(model: torch.nn.Module, batches: list[Batch], factor: float = 1.0, smoothing: float = 0.0) -> None:
    """Train on summed losses over the global count, without DDP."""
    count = total(sum(len(batch["labels"]) for batch in batches))
    for batch in batches:
        logits = model(batch["input_ids"])
        loss = F.cross_entropy(logits, batch["labels"], reduction="sum", label_smoothing=smoothing)
        (loss * factor / count).backward()
    for parameter in model.parameters():
        if parameter.grad is not None:
            parameter.grad = parameter.grad.to_dense() if parameter.grad.is_sparse else parameter.grad
            dist.all_reduce(parameter.grad)


def accumulated(model: torch.nn.Module, batches: list[Batch]) -> None:
    """Train on summed losses with DDP, each micro-batch of which synchronises."""
    ranks = DDP(model)
    scale = dist.get_world_size() / total(sum(len(batch["labels"]) for batch in batches))
    for batch in batches:
        (loss_of(ranks, batch) * scale).backward()


def unsynchronised(model: torch.nn.Module, batches: list[Batch], name: str = "tiny") -> None:
    """Leave one parameter's gradient as this rank has it."""
    own = dict(model.named_parameters())[name]
    own.register_hook(lambda gradient: kept.append(gradient.clone()))
    kept: list[torch.Tensor] = []
    summed(model, batches)
    own.grad = sum(kept) * dist.get_world_size()  # type: ignore[assignment]


def own_of_rank_0(model: torch.nn.Module, batches: list[Batch], name: str = "tiny") -> None:
    """Give all ranks one parameter's gradient of rank 0."""
    unsynchronised(model, batches, name)
    dist.broadcast(dict(model.named_parameters())[name].grad, 0)  # type: ignore[arg-type]


def zeroed(model: torch.nn.Module, batches: list[Batch], name: str) -> None:
    summed(model, batches)
    dict(model.named_parameters())[name].grad.zero_()  # type: ignore[union-attr]


def decayed(model: torch.nn.Module, batches: list[Batch]) -> None:
    summed(model, batches)
    for parameter in model.parameters():
        parameter.grad += 1e-3 * parameter.detach()


def autocast(model: torch.nn.Module, batches: list[Batch]) -> None:
    with torch.autocast("cpu", torch.bfloat16):
        scaled(model, batches)


def other_buffer(model: torch.nn.Module, batches: list[Batch]) -> None:
    summed(model, batches)
    model.factor.fill_(3.0 if dist.get_rank() else 2.0)  # type: ignore[operator,union-attr]


def not_shared(model: torch.nn.Module, batches: list[Batch]) -> None:
    scale = dist.get_world_size() / total(sum(len(batch["labels"]) for batch in batches))
    (loss_of(DDP(model, broadcast_buffers=False), batches[0]) * scale).backward()


def set_by_rank(model: torch.nn.Module, batches: list[Batch]) -> None:
    scaled(model, batches)
    for buffer in model.buffers():
        buffer.fill_(100.0 + dist.get_rank())


CASES: dict[str, Case] = {
    "batch norm": (scaled, normed, UNEQUAL),
    "running buffer": (scaled, running, UNEQUAL),
    "running buffer, by hand": (summed, running, THREE),
    "running buffer, not shared": (not_shared, running, UNEQUAL),
    "running buffer, set": (set_by_rank, running, UNEQUAL),
    "keys": (summed, attending, THREE),
    "sparse": (scaled, sparse, UNEQUAL),
    "sparse, accumulated": (accumulated, sparse, THREE),
    "autocast": (autocast, single, UNEQUAL),
    "tiny": (summed, tiny, THREE),
    "1e-6": (functools.partial(summed, factor=1 + 1e-6), single, THREE),
    "6e-7": (functools.partial(summed, factor=1 + 6e-7), single, THREE),
    "decayed": (decayed, single, THREE),
    "unsynchronised": (unsynchronised, tiny, THREE),
    "of rank 0": (own_of_rank_0, tiny, THREE),
    "lost": (functools.partial(zeroed, name="tiny"), tiny, THREE),
    "bias": (functools.partial(zeroed, name="head.bias"), tiny, THREE),
    "smoothed": (functools.partial(summed, smoothing=0.1), double, THREE),
    "smoothed, float32": (functools.partial(summed, smoothing=0.02), single, THREE),
    "other buffer": (other_buffer, weighted, THREE),
}


@pytest.fixture(scope="module")
def ran(tmp_path_factory: pytest.TempPathFactory) -> StepCases:
    return StepCases(CASES, 2, tmp_path_factory.mktemp("gradients"))


RIGHT = {
    "batch norm": "norm.running_mean, norm.running_var follow each rank's own samples",
    "running buffer": "size follow each rank's own samples",
    "autocast": "<= 0.02",
    "sparse": "", "sparse, accumulated": "", "tiny": "largest in", "keys": "",
}  # fmt: skip
WRONG = {
    "running buffer, by hand": ["size follow each rank's own samples, and nothing makes them equal again"],
    "running buffer, not shared": ["DDP(broadcast_buffers=False), or no DDP"],
    "running buffer, set": ["rank 0 has size other than forward of its samples leaves it", "train_step sets it"],
    "1e-6": ["1.000001", "times what it should be"],
    "6e-7": ["1.0000006", "times what it should be"],
    "unsynchronised": ["of tiny alone is wrong", "tiny is not synchronised"],
    "of rank 0": ["of tiny alone is wrong", "this is rank 0's own gradient"],
    "lost": ["the gradient of tiny is missing"],
    "bias": ["the gradient of head.bias is missing"],
    "smoothed": ["label smoothing of 0.1 in the loss"],
    "smoothed, float32": ["label smoothing of 0.02 in the loss"],
    "decayed": ["0.001 times the weights is added"],
    "other buffer": ["rank 1 changed factor, which the model's forward leaves as it is"],
}


@pytest.mark.parametrize("name", RIGHT)
def test_right_steps_hold(ran: StepCases, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    certificate = ran.certify(name, monkeypatch)
    print(certificate.text())
    assert RIGHT[name] in " ".join(check.says for check in certificate.checks)


@pytest.mark.parametrize("name", WRONG)
def test_nearly_right_steps_do_not(ran: StepCases, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(AssertionError) as caught:
        ran.certify(name, monkeypatch)
    print(caught.value)
    said = " ".join(str(caught.value).split())
    assert all(words in said for words in WRONG[name])


def test_autocast_is_judged_at_its_tolerance(ran: StepCases, monkeypatch: pytest.MonkeyPatch) -> None:
    certificate = ran.certify("autocast", monkeypatch)
    assert "forward ran under autocast in bfloat16, the target without it, within 0.02" in certificate.text()
    with pytest.raises(AssertionError, match=r"(?s)rounding: computed, or added up, in a lower precision"):
        ran.certify("autocast", monkeypatch, tolerance=1e-6)


def test_rounding_alone_is_no_wrong_parameter(ran: StepCases, monkeypatch: pytest.MonkeyPatch) -> None:
    """The gradient of keys' bias is 0 but for rounding; judged without its noise it would be called wrong."""
    monkeypatch.setattr(small_errors, "CLEAR", 0.0)
    with pytest.raises(AssertionError, match=r"(?s)of key.bias"):
        ran.certify("keys", monkeypatch)
