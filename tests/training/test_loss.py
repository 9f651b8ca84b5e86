"""The summed loss agrees with torch and transformers, and leaves out what is not learnt."""

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from transformers import GPT2Config, GPT2LMHeadModel

from ddpsched.training.loss import Counts, following, loss_sum, token_losses

ROWS, LENGTH, WORDS = 3, 7, 11


def random_logits(dtype: torch.dtype = torch.float64) -> torch.Tensor:
    torch.manual_seed(0)
    return torch.randn((ROWS, LENGTH, WORDS), dtype=torch.float64).to(dtype).requires_grad_()


def some_labels() -> torch.Tensor:
    labels = torch.arange(ROWS * LENGTH).view(ROWS, LENGTH) % WORDS
    labels[0, :4] = -100  # a prompt
    labels[1, 5:] = -100  # padding
    return labels


def test_next_tokens_are_shifted_by_one() -> None:
    logits, labels = random_logits().detach(), some_labels()
    by_hand = [
        -float(F.log_softmax(logits[i, j], -1)[labels[i, j + 1]])
        for i in range(ROWS)
        for j in range(LENGTH - 1)
        if labels[i, j + 1] != -100
    ]
    assert float(loss_sum(logits, labels)) == pytest.approx(sum(by_hand), rel=1e-12)
    assert np.count_nonzero(token_losses(logits, labels)) == len(by_hand) == 3 + 4 + 6


def test_transformers_own_mean() -> None:
    torch.manual_seed(0)
    ends = {"bos_token_id": None, "eos_token_id": None}
    config = GPT2Config(n_embd=16, n_layer=1, n_head=2, n_positions=16, vocab_size=WORDS, **ends)
    model = GPT2LMHeadModel(config).double().eval()
    tokens, labels = torch.randint(0, WORDS, (ROWS, LENGTH)), some_labels()
    mean = model(input_ids=tokens, labels=labels).loss
    summed = loss_sum(model(input_ids=tokens).logits, labels)
    count = int((labels[:, 1:] != -100).sum())
    assert float((summed / count - mean).abs().detach()) < 1e-6, "torch's is float32"


def test_weights_multiply_each_tokens_loss() -> None:
    logits, labels = random_logits(), some_labels()
    losses = token_losses(logits, labels)
    weights = torch.rand(labels.shape, dtype=torch.float64)
    expected = (losses[:, :-1] * weights[:, 1:]).sum()
    assert float(loss_sum(logits, labels, weights).detach()) == pytest.approx(float(expected.detach()), rel=1e-12)


def test_what_is_not_learnt_has_no_gradient() -> None:
    logits, labels = random_logits(), some_labels()
    loss_sum(logits, labels).backward()
    assert logits.grad is not None
    moved = logits.grad.abs().sum(-1) > 0
    assert torch.equal(moved, following(labels, -100) != -100)


def test_nothing_to_learn_is_a_loss_of_nothing() -> None:
    logits, labels = random_logits(), torch.full((ROWS, LENGTH), -100)
    loss = loss_sum(logits, labels)
    loss.backward()
    assert float(loss.detach()) == 0
    assert logits.grad is not None
    assert not logits.grad.any(), "nor NaN"


def test_half_precision_is_summed_in_float32_and_copied_once() -> None:
    logits, labels = random_logits(torch.bfloat16), some_labels()
    loss = loss_sum(logits, labels)
    assert loss.dtype == torch.float32
    exact = loss_sum(logits.detach().double(), labels)
    assert float(loss.detach()) == pytest.approx(float(exact), rel=1e-6)
    kept: list[torch.Tensor] = []
    with torch.autograd.graph.saved_tensors_hooks(lambda each: kept.append(each) or each, lambda each: each):
        loss_sum(logits, labels)
    large = {each.data_ptr() for each in kept if each.numel() >= logits.numel()}
    assert len(large) == 1, "of the size of all logits, backward needs their log-softmax alone"


def test_what_a_mean_is_over() -> None:
    counts = Counts(3, 40, 25)
    assert (counts.of("sample_mean"), counts.of("token_mean")) == (3, 25)
