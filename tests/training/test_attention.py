"""Attention on a GPU: runs leave cuDNN's kernel, and a loop of one's own is told of it once. No GPU is needed here."""

import logging

import pytest
import torch

from ddpsched.training import attention


@pytest.fixture(autouse=True)
def _unsaid() -> None:
    attention.warn_of_cudnn_attention.cache_clear()


@pytest.mark.parametrize(
    ("started", "enabled", "capability", "says"),
    [(True, True, (9, 0), 1), (True, True, (8, 0), 0), (True, False, (9, 0), 0), (False, True, (9, 0), 0)],
)
def test_a_loop_is_told_once(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, started: bool, enabled: bool,
    capability: tuple[int, int], says: int,
) -> None:  # fmt: skip
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: started)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda: capability)
    monkeypatch.setattr(torch.backends.cuda, "cudnn_sdp_enabled", lambda: enabled)
    with caplog.at_level(logging.WARNING, "ddpsched"):
        attention.warn_of_cudnn_attention()
        attention.warn_of_cudnn_attention()
    assert len(caplog.messages) == says
    assert all("enable_cudnn_sdp(False)" in message for message in caplog.messages)


def test_runs_leave_it_on_a_gpu_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[bool] = []
    monkeypatch.setattr(torch.backends.cuda, "enable_cudnn_sdp", asked.append)
    attention.leave_cudnn_attention(torch.device("cpu"))
    assert asked == []
    attention.leave_cudnn_attention(torch.device("cuda", 0))
    assert asked == [False]
