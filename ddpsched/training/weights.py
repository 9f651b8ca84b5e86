"""A digest of a model's weights, which tells them from others."""

from hashlib import blake2b
from typing import Any

import numpy.typing as npt
import torch
from torch.distributed.tensor import DTensor


def weights_digest(model: torch.nn.Module) -> str:
    """Return the digest of all parameters and buffers; of a sharded model, all ranks must call it together."""
    digest = blake2b(digest_size=16)
    for name, tensor in [*model.named_parameters(), *model.named_buffers()]:
        digest.update(name.encode())
        digest.update(host_array(tensor.detach()).data)
    return digest.hexdigest()


def host_array(tensor: torch.Tensor) -> npt.NDArray[Any]:
    """Return the numbers as a flat array on the host; bfloat16, which numpy does not know, as float32."""
    whole = tensor.full_tensor() if isinstance(tensor, DTensor) else tensor
    flat = whole.detach().reshape(-1).cpu()
    return (flat.float() if flat.dtype == torch.bfloat16 else flat).numpy()
