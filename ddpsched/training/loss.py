r"""The one scale that keeps the gradient exact, derived.

Target (``sample_mean``): every sample of the global batch weighs the same,

    g = 1/B * sum_r sum_{i in rank r} grad l_i        B = sum_r b_r

*Averaging ranks* (DDP). Rank r backpropagates s * sum_i l_i and the group
averages: 1/G * sum_r s * sum_i grad l_i. Equal to g exactly when s = G/B. Said
with rank r's mean loss, which is 1/b_r of its sum, the factor is

    G * b_r / B

the report's scale. It does not depend on how the rank cuts its samples into
micro-batches: sums add up, means do not.

*Adding ranks* (all ranks on one device, gradients adding up in place): s = 1/B.

A rank without samples contributes a sum over nothing, 0; a mean over nothing
would be NaN. So code sums and divides by the global count, never averages.
"""

import torch
import torch.nn.functional as F


def loss_sum(logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    """Cross-entropy summed over samples. ``logits``: (count, num_labels); ``labels``: (count,)."""
    # float64 stays float64; half precisions are summed in float32
    return F.cross_entropy(logits.float() if logits.dtype.itemsize < 4 else logits, labels, reduction="sum")


def sum_scale(global_batch: int, averaged_over: int = 1) -> float:
    """What the summed loss is multiplied by: G/B where gradients are averaged over G ranks, 1/B where they add up."""
    return averaged_over / global_batch
