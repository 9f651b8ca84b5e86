"""Wrong attention, for tests that must notice it."""

from typing import Any

import torch

from ddpsched.training import packed


def whole_row(module: Any, row: Any, packing: Any, sliding_window: Any, options: Any) -> torch.Tensor:
    """Attend from every token to every token of the row, as without packing's mask."""
    query, key, value = (tensor.transpose(0, 1).unsqueeze(0) for tensor in row)
    return packed.sdpa_attention_forward(module, query, key, value, None, **options)[0].squeeze(0)
