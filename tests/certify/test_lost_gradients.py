"""Steps that lose a little, or have a factor near 1, fail, and the cause names the loss."""

import functools
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.nn.functional as F
from step_cases import Case, StepCases

from ddpsched.certify import capture, reference
from ddpsched.certify.capture import CapturedGradient
from ddpsched.certify.command import Request, certify

Batch = dict[str, torch.Tensor]
VOCABULARY = 64
SMALL = {torch.float64: 1e-8, torch.float32: 1e-4}  # share of a gradient that has little weight
ROUNDING = ("rounding", "lower precision")


class Adapted(torch.nn.Module):
    """A classifier with an adapter that changes its features by a little, and so has a small gradient."""

    def __init__(self, dtype: torch.dtype) -> None:
        super().__init__()
        self.tokens, self.adapter = torch.nn.Embedding(VOCABULARY, 16), torch.nn.Linear(16, 16)
        self.head, self._small = torch.nn.Linear(16, 3), SMALL[dtype]
        self.to(dtype)

    def forward(self, input_ids: torch.Tensor) -> torch.Tensor:
        features = self.tokens(input_ids).mean(1)
        return self.head(torch.tanh(features + self._small * self.adapter(features)))


def losses(model: torch.nn.Module, batch: Batch) -> torch.Tensor:
    """Return the cross-entropy of each row, times its weight."""
    return batch["weight"] * F.cross_entropy(model(batch["input_ids"]), batch["labels"], reduction="none")


def batches_of(world_size: int, dtype: torch.dtype) -> list[list[Batch]]:
    """Return each rank's two micro-batches, of 4 and 3 rows.

    The last rank's second micro-batch and its very first row have little weight.
    """
    rng = torch.Generator().manual_seed(0)
    batches = [
        [
            {
                "input_ids": torch.randint(VOCABULARY, (count, 5), generator=rng),
                "labels": torch.randint(3, (count,), generator=rng),
                "weight": torch.ones(count, dtype=dtype),
            }
            for count in (4, 3)
        ]
        for _ in range(world_size)
    ]
    batches[-1][1]["weight"] *= SMALL[dtype]
    batches[-1][0]["weight"][0] *= SMALL[dtype]
    return batches


def step(model: torch.nn.Module, batches: list[Batch], fault: str = "") -> None:
    """Run an exact step but for the fault: summed losses over the global count, gradients added over ranks."""
    count = torch.tensor(sum(len(batch["labels"]) for batch in batches))
    dist.all_reduce(count)
    last = dist.get_rank() == dist.get_world_size() - 1
    factors = {"factor 1e-6": 1 + 1e-6, "factor 1e-4": 1 + 1e-4, "doubled": 2.0}
    lower = torch.nn.Module()
    if fault == "float32":
        lower = Adapted(torch.float32)
        lower.load_state_dict({name: value.float() for name, value in model.state_dict().items()})
        lower._small = model._small
    for number, batch in enumerate(batches):
        values = losses(lower if fault == "float32" else model, batch)
        if fault == "micro-batch" and last and number == 1:
            values = 0 * values
        if fault == "row" and last and number == 0:
            values = values[1:]
        (values.sum() * factors.get(fault, 1.0) / count).backward()
    for (name, parameter), twin in zip(model.named_parameters(), [*lower.parameters()] or [None] * 5, strict=True):
        if twin is not None:
            parameter.grad = twin.grad.double()
        if not (fault == "alone" and name == "head.weight"):
            dist.all_reduce(parameter.grad)
    spoil(model, fault)


def spoil(model: torch.nn.Module, fault: str) -> None:
    """Apply the faults that change a complete gradient."""
    if fault in ("adapter.weight", "adapter.bias", "head.bias"):
        model.get_parameter(fault).grad.zero_()
    if fault == "none":
        model.get_parameter("adapter.bias").grad = None
    if fault == "coordinates":
        model.get_parameter("head.weight").grad[1, :4] = 0
    if fault == "adapter doubled":
        model.get_parameter("adapter.weight").grad.mul_(2)


WEIGHTED = "the right samples, weighted wrongly; in units of the right weight, "
# words of the cause, by fault and precision
BOTH = {
    "adapter.weight": ["likely cause: the gradient of adapter.weight is missing: 0 everywhere, though the losses of"],
    "adapter.bias": ["likely cause: the gradient of adapter.bias is missing: 0 everywhere"],
    "head.bias": ["likely cause: the gradient of head.bias is missing: 0 everywhere"],
    "none": ["likely cause: the gradient of adapter.bias is missing: None"],
    "coordinates": ["likely cause: the gradient of head.weight is missing at 4 of its 48 coordinates"],
    "adapter doubled": ["likely cause: the gradient of adapter.weight, and no other's, is wrong: 2 times too large"],
    "factor 1e-4": ["likely cause: 1.0001 times what it should be"],
    "doubled": ["likely cause: 2 times too large"],
    "micro-batch": [f"likely cause: {WEIGHTED}micro-batch 1 of rank {{last}}: 0 (all others 1)"],
    "row": [f"likely cause: {WEIGHTED}row {{row}}: 0 (all others 1)"],
}
FAULTS = {
    torch.float64: BOTH
    | {
        "factor 1e-6": ["likely cause: 1.000001 times what it should be"],
        "float32": ["likely cause: rounding: computed, or added up, in a lower precision", "numbers of float32"],
    },
    torch.float32: BOTH,
}
OF_SEVERAL = {
    "alone": [
        "likely cause: the gradient of head.weight, and no other's, is wrong: ",
        "not synchronised: this is rank 0's own gradient",
    ]
}
OF_ONE = {"micro-batch": ["likely cause: only each rank's first micro-batch is in the gradient"]}


def cases_of(world_size: int) -> dict[str, Case]:
    cases: dict[str, Case] = {}
    for dtype, faults in FAULTS.items():
        batches = batches_of(world_size, dtype)
        for fault in ("", *faults, *OF_SEVERAL):
            case = functools.partial(step, fault=fault), functools.partial(Adapted, dtype), batches
            cases[f"{dtype}: {fault}"] = case
    return cases


@pytest.fixture(scope="module", params=[*(pytest.param(number, marks=pytest.mark.slow) for number in (1, 2, 3)), 4])
def ran(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[int, StepCases]:
    return request.param, StepCases(cases_of(request.param), request.param, tmp_path_factory.mktemp("lost"))


def test_what_is_lost_is_named(ran: tuple[int, StepCases], monkeypatch: pytest.MonkeyPatch) -> None:
    world_size, cases = ran
    certify: Callable[..., Any] = functools.partial(cases.certify, monkeypatch=monkeypatch, losses=losses)
    for dtype, faults in FAULTS.items():
        certify(f"{dtype}: ")  # holds
        for fault, words in (faults | (OF_SEVERAL if world_size > 1 else OF_ONE)).items():
            with pytest.raises(AssertionError) as caught:
                certify(f"{dtype}: {fault}")
            text = " ".join(str(caught.value).split())
            if fault == "float32" and world_size > 1:  # sums in float64 may hide that values were float32
                assert "likely cause: rounding: " in text or "nothing shows that it is rounding" in text
                continue
            for each in words:
                # the row is the first of the last rank's, behind 7 of each other rank
                assert each.format(last=world_size - 1, row=7 * (world_size - 1)) in text, f"{dtype}, {fault}: {text}"
            if fault != "float32":
                assert not any(word in text for word in ROUNDING), f"{dtype}, {fault}: {text}"


def spoilt(change: Callable[[torch.nn.Module], None], monkeypatch: pytest.MonkeyPatch) -> str:
    """Return the certificate's cause for a small run whose gradient ``change`` alters."""
    keep = capture.capture_gradient

    def changed(model: torch.nn.Module, *rest: Any) -> CapturedGradient:
        change(model)
        return keep(model, *rest)

    monkeypatch.setattr(capture, "capture_gradient", changed)
    words = ("executor.kind=virtual", "data.size=40", "world_size=2")
    (certificate,) = certify(Request(words=words, policy="balanced"))
    monkeypatch.undo()
    gradient = certificate.checks[0]
    assert [check.name for check in certificate.checks if not check.holds] == ["gradient"], certificate.text()
    return gradient.cause or ""


def test_steps_too_large_to_look_at_samples_say_so(monkeypatch: pytest.MonkeyPatch) -> None:
    def add_noise(model: torch.nn.Module) -> None:
        for parameter in model.parameters():
            if parameter.grad is not None:
                parameter.grad *= 1 + 1e-7 * torch.randn_like(parameter.grad)

    assert spoilt(add_noise, monkeypatch).endswith("and is as large as float32 leaves it")
    monkeypatch.setattr(reference, "SINGLY", 4)
    text = spoilt(add_noise, monkeypatch)
    assert "as this step has 13; up to 4 are: a lower global_batch shows whether one is lost" in text


def test_runs_of_ours_that_lose_a_gradient(monkeypatch: pytest.MonkeyPatch) -> None:
    """A key's bias changes no attention, so its gradient is rounding alone; its loss is named as well."""

    def scale(model: torch.nn.Module) -> None:
        for parameter in model.parameters():
            if parameter.grad is not None:
                parameter.grad *= 1 + 1e-6

    assert spoilt(scale, monkeypatch).startswith("1.000001 times what it should be: ")
    for name in ("distilbert.transformer.layer.0.attention.k_lin.bias", "classifier.bias"):
        for lose, how in ((lambda p: p.grad.zero_(), "0 everywhere"), (lambda p: setattr(p, "grad", None), "None")):
            text = spoilt(lambda model, lose=lose, name=name: lose(model.get_parameter(name)), monkeypatch)
            assert text.startswith(f"the gradient of {name} is missing: {how}"), text
