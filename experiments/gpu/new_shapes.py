"""The time of a shape's first micro-batch and of later ones, with cuDNN's attention and without it."""

from statistics import median
from time import perf_counter
from typing import Any

import torch

from ddpsched.config import RunConfig
from ddpsched.training.clock import pick_device
from ddpsched.training.model import build_model

SHAPES, WARM_UP = 16, 3
ROWS = {False: (8, 9), True: (10, 11)}  # of a micro-batch, by whether cuDNN is used: no shape is met twice


def first_and_later(config: RunConfig, vocabulary: int, shortest: int) -> dict[str, dict[str, float]]:
    """Return the milliseconds of forward and backward on a shape, the first time and the third, medians over shapes.

    By "cuDNN's attention" and "without it". Shapes: ``SHAPES`` lengths from ``shortest`` on, two numbers of rows each.
    """
    device = pick_device(config, 0)
    torch.manual_seed(config.seed)
    model = build_model(config.model, config.data.num_labels, vocabulary, 0).to(device).train()
    before, found = torch.backends.cuda.cudnn_sdp_enabled(), {}
    try:
        for on in (True, False):
            torch.backends.cuda.enable_cudnn_sdp(on)
            for _ in range(WARM_UP):
                _step(model, 4, shortest, config.model.task)
            times = [
                [_step(model, rows, length, config.model.task) for _ in range(3)]
                for rows in ROWS[on]
                for length in range(shortest + 1, shortest + 1 + SHAPES)
            ]
            first, _, later = map(median, zip(*times, strict=True))
            found["cuDNN's attention" if on else "without it"] = {"first_ms": first, "later_ms": later}
    finally:
        torch.backends.cuda.enable_cudnn_sdp(before)
    return found


def _step(model: Any, rows: int, length: int, task: str) -> float:
    """Return the milliseconds of forward and backward of a micro-batch, half of whose rows are half as long."""
    device = model.device
    ids = torch.randint(1, 500, (rows, length), device=device)
    mask = torch.ones_like(ids)
    mask[rows // 2 :, length // 2 :] = 0  # without padding another kernel would run
    labels = ids if task == "causal_lm" else ids[:, 0] % 2
    _wait(device)
    begin = perf_counter()
    with torch.autocast(device.type, torch.bfloat16):
        loss = model(input_ids=ids, attention_mask=mask, labels=labels).loss
    loss.backward()
    model.zero_grad()
    _wait(device)
    return 1e3 * (perf_counter() - begin)


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
