r"""The summed loss, and the one scale that keeps the gradient exact, with its derivation.

:mod:`ddpsched.denominators` has all targets. ``sample_mean``: every sample of the global batch weighs the same,

    g = 1/B * sum_r sum_{i in rank r} grad l_i        B = sum_r b_r

``token_mean``, of language models: every label token t of the global batch does,

    g = 1/N * sum_r sum_{t in rank r} grad l_t        N = sum_r n_r

Both have the same form: *sum what counts, divide by the global count*. A sample's
loss l_i is, in a language model, the mean over its n_i label tokens: under
``sample_mean`` each token's loss weighs 1/n_i in the sum. The two targets differ as
soon as samples have different numbers of label tokens.

*Adding ranks*: rank r backpropagates s times the sum over each micro-batch, and the
gradients of micro-batches and ranks add up: equal to g exactly when s = 1/B (1/N). The
synchronisers here add, and so do all ranks on one device. It does not depend on how a
rank cuts its samples into micro-batches: sums add up, means do not.

B is known from the plan. N is not, where each rank knows the lengths of its samples
alone: it is added up over ranks while forward runs, and needed before backward.

*Averaging ranks* (DDP as torch ships it): 1/G * sum_r s * sum_i grad l_i, so
s = G/B. In terms of rank r's mean loss, which is 1/b_r of its sum, the factor is

    G * b_r / B        (G * n_r / N)

the report's scale.

A rank without samples contributes a sum over nothing, 0; a mean over nothing
would be NaN. So code sums and divides by the global count, never averages.
"""

from typing import NamedTuple

import torch
import torch.nn.functional as F


class Counts(NamedTuple):
    """Samples, real tokens and label tokens (0 for a classifier) of a rank, or of all ranks of a step."""

    samples: int
    tokens: int
    targets: int

    def of(self, target: str) -> int:
        """Return the count that a mean is over: label tokens for "token_mean", samples for "sample_mean"."""
        return self.targets if target == "token_mean" else self.samples


def loss_sum(logits: torch.Tensor, labels: torch.Tensor, weights: torch.Tensor | None = None) -> torch.Tensor:
    """Return the cross-entropy summed over samples, or over label tokens.

    A classifier's ``logits``: (count, num_labels), ``labels``: (count,). A language model's: (rows, length, words) and
    (rows, length) in place, that is the token at position i is predicted at i - 1, and -100 counts for nothing.
    ``weights``: shaped as ``labels``, the factor of each label's loss.
    """
    if labels.dim() == 1:
        # float64 stays float64; half precisions are summed in float32
        return F.cross_entropy(logits.float() if logits.dtype.itemsize < 4 else logits, labels, reduction="sum")
    losses = token_losses(logits, labels)
    if weights is None:
        return losses.sum()
    return (losses * following(weights, 0.0, losses.shape[1]).to(losses.dtype)).sum()


def token_losses(logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    """Return the cross-entropy of each next token: (rows, length), 0 where the next one has no label.

    ``logits``: (rows, length, vocabulary). ``labels``: (rows, length), -100 where a token is not learnt; (rows,
    length + 1) where the token after a row's last is known.
    """
    # the labels move, not the logits: those are the largest tensor of a step, and a slice of them would be a copy;
    # softmax reads half precisions as they are and writes float32
    wide = torch.float32 if logits.dtype.itemsize < 4 else None
    logs = F.log_softmax(logits.flatten(0, 1), -1, dtype=wide)
    targets = following(labels, -100, logits.shape[1])
    return F.nll_loss(logs, targets.flatten(), reduction="none", ignore_index=-100).view_as(targets)


def following(tokens: torch.Tensor, last: float, length: int | None = None) -> torch.Tensor:
    """Return ``tokens`` (rows, length) moved to where they are predicted; after a row's end there is ``last``.

    ``length``: of a row, where ``tokens`` go on behind it.
    """
    return F.pad(tokens[:, 1:], (0, (length or tokens.shape[1]) + 1 - tokens.shape[1]), value=last)
