"""The detected rank and world size come from the process group first, then from a complete environment."""

import sys
from types import SimpleNamespace

import pytest

from ddpsched import World
from ddpsched.errors import ConfigError


@pytest.mark.parametrize(
    ("environ", "expected"),
    [
        ({}, World(0, 1, 0)),
        ({"RANK": "1", "WORLD_SIZE": "4", "LOCAL_RANK": "0"}, World(1, 4, 0)),
        ({"RANK": "1", "WORLD_SIZE": "4"}, World(1, 4, 1)),
        ({"WORLD_SIZE": "1"}, World(0, 1, 0)),
        ({"LOCAL_RANK": "1"}, World(0, 1, 0)),
    ],
)
def test_a_whole_environment(environ: dict[str, str], expected: World) -> None:
    assert World.detect(environ) == expected


@pytest.mark.parametrize(
    ("environ", "words"),
    [
        ({"WORLD_SIZE": "2"}, "WORLD_SIZE = 2, but RANK is not set, so this process's rank.*are unknown.*world=World"),
        ({"WORLD_SIZE": "2", "LOCAL_RANK": "1"}, "WORLD_SIZE = 2, but RANK is not set"),
        ({"RANK": "0"}, "RANK = 0, but WORLD_SIZE is not set"),
        ({"RANK": "a", "WORLD_SIZE": "2"}, "RANK = 'a': must be a whole number"),
        ({"RANK": "2", "WORLD_SIZE": "2"}, "rank = 2, size = 2: size must be at least 1"),
    ],
)
def test_half_an_environment(environ: dict[str, str], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        World.detect(environ)


def test_a_process_group_is_asked_before_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    group = SimpleNamespace(
        is_available=lambda: True, is_initialized=lambda: True, get_rank=lambda: 3, get_world_size=lambda: 8
    )
    monkeypatch.setitem(sys.modules, "torch.distributed", group)
    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.delenv("LOCAL_RANK", raising=False)
    assert World.detect() == World(3, 8, 3)
    monkeypatch.delitem(sys.modules, "torch.distributed")
    with pytest.raises(ConfigError, match="WORLD_SIZE = 2, but RANK is not set"):
        World.detect()
