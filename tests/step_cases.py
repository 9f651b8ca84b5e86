"""Steps for ``assert_gradient_exact``, run one after another in the same ranks, as starting ranks costs seconds."""

import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch.distributed as dist

from ddpsched import assert_gradient_exact
from ddpsched.certify import capture, certify_step
from ddpsched.local_ranks import Outcome, answers, join_group, run_ranks

Case = tuple[Any, Any, list[list[Any]]]  # train_step, build_model, batches


def _on_rank(cases: list[Case], folder: Path) -> list[Outcome]:
    """Run a rank's part of ``assert_gradient_exact``, case by case."""
    join_group()
    certify_step.join_group = lambda timeout_s: None  # type: ignore # it has
    outcomes = []
    for index, (step, build, batches) in enumerate(cases):
        posts: list[Any] = []
        capture.post = posts.append  # type: ignore[assignment]
        left = certify_step._on_rank(step, build, batches, folder / f"{index}.npy", 60.0)
        outcomes.append(Outcome(dist.get_rank(), "answered", left, posts=posts))
    return outcomes


class StepCases:
    """Runs cases in ranks that are started once."""

    def __init__(self, cases: Mapping[str, Case], world_size: int, folder: Path) -> None:
        self._cases, self._folder = dict(cases), folder
        self._ran = answers(run_ranks(_on_rank, world_size, list(cases.values()), folder))

    def certify(self, name: str, monkeypatch: pytest.MonkeyPatch, **options: Any) -> Any:
        """Return ``assert_gradient_exact`` of a case, from the results of the ranks that ran."""
        index = list(self._cases).index(name)

        def ranks(function: Any, size: int, step: Any, build: Any, batches: Any, path: Path, *_: Any, **__: Any) -> Any:
            if (self._folder / f"{index}.npy").exists():
                shutil.copy(self._folder / f"{index}.npy", path)
            return [outcomes[index] for outcomes in self._ran]

        monkeypatch.setattr(certify_step, "run_ranks", ranks)
        step, build, batches = self._cases[name]
        return assert_gradient_exact(step, build, batches, **options)
