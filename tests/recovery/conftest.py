"""Fixtures of recovery: a run that is stopped within."""

from collections.abc import Callable
from typing import Any

import pytest

from ddpsched.config import RunConfig
from ddpsched.run_loop import run
from ddpsched.training.virtual import VirtualExecutor


@pytest.fixture
def stopped(monkeypatch: pytest.MonkeyPatch) -> Callable[[RunConfig, int], None]:
    """Return a function that runs a config until a step, in which it is interrupted before anything is changed."""
    execute = VirtualExecutor.execute

    def stop(config: RunConfig, at: int) -> None:
        def interrupted(self: VirtualExecutor, plan: Any) -> Any:
            if plan.step == at:
                raise KeyboardInterrupt
            return execute(self, plan)

        with monkeypatch.context() as patch:
            patch.setattr(VirtualExecutor, "execute", interrupted)
            with pytest.raises(KeyboardInterrupt):
                run(config)

    return stop
