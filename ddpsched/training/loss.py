r"""The one scale that keeps the gradient exact, derived.

Target (``sample_mean``): every sample of the global batch weighs the same,

    g = 1/B * sum_r sum_{i in rank r} grad l_i        B = sum_r b_r

*Adding ranks*: rank r backpropagates s * sum_i l_i of each micro-batch, and the
gradients of micro-batches and ranks add up: equal to g exactly when s = 1/B. So
do the synchronisers here, and all ranks on one device. It does not depend on how a
rank cuts its samples into micro-batches: sums add up, means do not.

*Averaging ranks* (DDP as torch ships it): 1/G * sum_r s * sum_i grad l_i, so
s = G/B. Said with rank r's mean loss, which is 1/b_r of its sum, the factor is

    G * b_r / B

the report's scale.

A rank without samples contributes a sum over nothing, 0; a mean over nothing
would be NaN. So code sums and divides by the global count, never averages.
"""

import torch
import torch.nn.functional as F


def loss_sum(logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    """Cross-entropy summed over samples. ``logits``: (count, num_labels); ``labels``: (count,)."""
    # float64 stays float64; half precisions are summed in float32
    return F.cross_entropy(logits.float() if logits.dtype.itemsize < 4 else logits, labels, reduction="sum")


def sum_scale(global_batch: int) -> float:
    """What the summed loss of each micro-batch is multiplied by, where gradients of ranks are added."""
    return 1.0 / global_batch
