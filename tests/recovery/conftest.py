"""Fixtures of recovery: a run that is stopped within."""

from collections.abc import Callable
from typing import Any

import pytest

from ddpsched.config import RunConfig
from ddpsched.run_loop import run
from ddpsched.training.virtual import VirtualExecutor


@pytest.fixture
def stopped(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Return a function that runs a config until a step, in which it is interrupted before anything is changed.

    Further words are those of ``run``.
    """
    execute = VirtualExecutor.execute

    def stop(config: RunConfig, at: int, **words: bool) -> None:
        def interrupted(self: VirtualExecutor, plan: Any) -> Any:
            if plan.step == at:
                raise KeyboardInterrupt
            return execute(self, plan)

        with monkeypatch.context() as patch:
            patch.setattr(VirtualExecutor, "execute", interrupted)
            with pytest.raises(KeyboardInterrupt):
                run(config, **words)

    return stop
