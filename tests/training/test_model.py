"""Models by shape, by folder, and by a name that cannot be reached."""

from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch

from ddpsched.config import ModelConfig, parse
from ddpsched.errors import ConfigError, DataError
from ddpsched.training.learner import Learner
from ddpsched.training.model import build_model
from ddpsched.training.optimise import Optimiser
from ddpsched.training.variable_lr import linear_warmup


def tiny(**values: Any) -> torch.nn.Module:
    return build_model(ModelConfig(**values), num_labels=3, vocab_size=100, pad_id=0)


def test_the_tiny_default_is_distilbert_shaped() -> None:
    model = tiny()
    assert type(model).__name__ == "DistilBertForSequenceClassification"
    assert model(input_ids=torch.ones((2, 5), dtype=torch.int64)).logits.shape == (2, 3)


def test_dropout_can_be_switched_off() -> None:
    for rate, count in ((0.0, 1), (0.5, 2)):
        model = tiny(dropout=rate).train()
        outputs = {
            float(model(input_ids=torch.ones((1, 5), dtype=torch.int64)).logits[0, 0].detach()) for _ in range(3)
        }
        assert (len(outputs) > 1) == (count > 1)


def test_pretrained_weights_from_a_folder(tmp_path: Path) -> None:
    made = tiny()
    made.save_pretrained(tmp_path)
    found = tiny(name=str(tmp_path), weights="pretrained", dropout=0.0)
    for (name, one), two in zip(made.named_parameters(), found.parameters(), strict=True):
        assert torch.equal(one, two), name
    anew = tiny(name=str(tmp_path), weights="random")
    weights = "distilbert.embeddings.word_embeddings.weight"
    assert not torch.equal(made.state_dict()[weights], anew.state_dict()[weights])
    with pytest.raises(ConfigError, match=r"200 tokens, the weights of .* only 100"):
        build_model(ModelConfig(name=str(tmp_path), weights="pretrained"), 3, vocab_size=200, pad_id=0)


def test_pickled_weights_are_refused(tmp_path: Path) -> None:
    made = tiny()
    made.save_pretrained(tmp_path)
    torch.save(made.state_dict(), tmp_path / "pytorch_model.bin")
    (tmp_path / "model.safetensors").unlink()
    with pytest.raises(DataError, match=r"model\.safetensors"):
        tiny(name=str(tmp_path), weights="pretrained")


def test_a_model_that_cannot_be_reached(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ddpsched.data.hub._reachable", lambda: False)
    with pytest.raises(DataError, match=r"two ways out.*local folder.*built-in shapes"):
        tiny(name="nobody/there-is-no-such-model", weights="pretrained")
    with pytest.raises(ConfigError, match="no pretrained weights"):
        tiny(name="tiny", weights="pretrained")


def language_model(**values: Any) -> Any:
    return build_model(ModelConfig(task="causal_lm", **values), num_labels=3, vocab_size=100, pad_id=0)


def test_the_tiny_language_model_is_gpt2_shaped() -> None:
    model = language_model()
    assert type(model).__name__ == "GPT2LMHeadModel"
    outputs = model(input_ids=torch.ones((2, 5), dtype=torch.int64))
    assert outputs.logits.shape == (2, 5, 100)
    assert outputs.past_key_values is None, "only generating reads them"
    shape = model.config
    assert (shape.n_embd, shape.n_layer, shape.n_head, shape.n_positions) == (64, 2, 4, 512)


@pytest.mark.parametrize(("name", "layers"), [("distilgpt2", 6), ("gpt2", 12)])
def test_known_shapes_with_random_weights_need_no_network(
    monkeypatch: pytest.MonkeyPatch, name: str, layers: int
) -> None:
    monkeypatch.setattr("ddpsched.data.hub._reachable", lambda: False)
    shape = language_model(name=name).config
    assert (shape.n_embd, shape.n_layer, shape.vocab_size) == (768, layers, 100)


def test_a_language_models_dropout_is_the_configs() -> None:
    for rate, count in ((0.0, 1), (0.5, 2)):
        model = language_model(dropout=rate).train()
        outputs = {
            float(model(input_ids=torch.ones((1, 5), dtype=torch.int64)).logits[0, 0, 0].detach()) for _ in range(3)
        }
        assert (len(outputs) > 1) == (count > 1)
    rates = {key: rate for key, rate in model.config.to_dict().items() if "pdrop" in key}
    assert set(rates.values()) == {0.5}, rates


def test_a_pretrained_language_model_from_a_folder(tmp_path: Path) -> None:
    made = language_model()
    made.save_pretrained(tmp_path)
    found = language_model(name=str(tmp_path), weights="pretrained")
    for (name, one), two in zip(made.named_parameters(), found.parameters(), strict=True):
        assert torch.equal(one, two), name
    assert found.config.use_cache is False
    with pytest.raises(ConfigError, match=r"200 tokens, the weights of .* only 100"):
        build_model(ModelConfig(task="causal_lm", name=str(tmp_path), weights="pretrained"), 3, 200, 0)
    torch.save(made.state_dict(), tmp_path / "pytorch_model.bin")
    (tmp_path / "model.safetensors").unlink()
    with pytest.raises(DataError, match=r"model\.safetensors"):
        language_model(name=str(tmp_path), weights="pretrained")


def test_a_language_model_that_cannot_be_had(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ddpsched.data.hub._reachable", lambda: False)
    with pytest.raises(DataError, match=r"two ways out.*built-in shapes \['distilgpt2', 'gpt2', 'tiny'\]"):
        language_model(name="nobody/there-is-no-such-model")
    with pytest.raises(ConfigError, match="no pretrained weights"):
        language_model(weights="pretrained")


def test_texts_longer_than_the_models_positions_are_refused() -> None:
    for task in ("classification", "causal_lm"):
        config = parse({"steps": 1, "data": {"max_length": 600, "size": 20}, "model": {"task": task}})
        with pytest.raises(ConfigError, match=r"600.*512 positions"):
            Learner(config, config.load_samples(), torch.device("cpu"))


def test_the_schedule_rises_and_falls() -> None:
    rule = linear_warmup(100, 0.1)
    rates = [rule(step) for step in range(100)]
    assert rates[9] == max(rates) == 1.0
    assert rates[0] == pytest.approx(0.1)
    assert all(a > b for a, b in pairwise(rates[10:]))
    assert linear_warmup(10, 0.0)(0) == 1.0


def test_clipping_and_decay() -> None:
    config = parse({"steps": 1}).train.model_copy(update={"max_grad_norm": 1.0, "warmup": 0.0})
    model = torch.nn.Linear(3, 2)
    optimiser = Optimiser(model, config, total_steps=10)
    model(torch.full((1, 3), 100.0)).sum().backward()
    norm = optimiser.gradient_norm()
    left = torch.cat([p.grad.reshape(-1) for p in model.parameters()]).norm()
    assert norm > 100
    assert float(left) == pytest.approx(1.0, rel=1e-4)
    assert optimiser.step() == pytest.approx(config.learning_rate)
    assert all(p.grad is None for p in model.parameters())
