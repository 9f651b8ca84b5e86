"""The kernel of attention on a GPU whose micro-batches have many shapes."""

import logging
from functools import cache

import torch

PREFERS_CUDNN = (9, 0)  # from this compute capability on, an H100's, torch takes cuDNN's attention where it is enabled
log = logging.getLogger("ddpsched")


def leave_cudnn_attention(device: torch.device) -> None:
    """Let attention on a GPU run by other kernels than cuDNN's, which torch prefers on some; in all of this process.

    cuDNN makes a plan for each (rows, length) that it has not met, forward and backward: on an H100 the first
    micro-batch of a shape then takes some ten times as long as the next one. ``python -m experiments.gpu`` measures
    that, in its part ``attention``.
    """
    if device.type == "cuda":
        torch.backends.cuda.enable_cudnn_sdp(False)


@cache
def warn_of_cudnn_attention() -> None:
    """Say once, for a loop of the user's own, that attention on this GPU makes a plan for each new shape."""
    if torch.cuda.is_initialized() and torch.backends.cuda.cudnn_sdp_enabled() and _prefers_cudnn():
        log.warning(
            "attention by cuDNN makes a plan for each new shape of a micro-batch, which takes some ten times as long "
            "as the micro-batch itself; call torch.backends.cuda.enable_cudnn_sdp(False) before the loop"
        )


def _prefers_cudnn() -> bool:
    return torch.cuda.get_device_capability() >= PREFERS_CUDNN
