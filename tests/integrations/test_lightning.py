"""The gradient of each step where ranks are started by Lightning, last steps included; and its checkpoints."""

import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
from launched import EPOCHS, LENGTHS, NUM_SAMPLES, gradient, model, sampler, summed_loss, worst_error
from torch.utils.data import DataLoader

from ddpsched import StepLoader, scaled
from ddpsched.errors import ConfigError
from ddpsched.integrations import tested_versions

pytest.importorskip("pytorch_lightning", exc_type=ImportError)
import pytorch_lightning as pl

from ddpsched.integrations.lightning import BalancedData

BUDGET = {"policy": {"kind": "token_budget", "max_tokens_for_batch": 60}, "global_batch": None}


class Module(pl.LightningModule):
    """Records what each step was."""

    def __init__(self, folder: Path) -> None:
        super().__init__()
        self.net, self.folder, self.record = model(), folder, list[Any]()
        self.share: Any = None

    def training_step(self, step: tuple[torch.Tensor, float], number: int) -> torch.Tensor:
        ids, scale = step
        self.share = ids.tolist(), scale
        return scale * summed_loss(self.net, ids)

    def on_before_optimizer_step(self, optimizer: Any) -> None:
        self.record.append((*self.share, gradient(self.net)))

    def configure_optimizers(self) -> Any:
        return torch.optim.SGD(self.parameters(), lr=0.0)

    def on_train_end(self) -> None:
        torch.save(self.record, self.folder / f"rank{self.trainer.global_rank}")


def fit(folder: Path, ranks: int = 1, most: int = -1, resumed: Path | None = None, **changes: Any) -> None:
    """Lightning as the README has it: the loader is ``scaled(...)``, whose state goes into its checkpoints."""
    loader = scaled(DataLoader(range(NUM_SAMPLES), batch_sampler=sampler(**changes)))  # type: ignore[arg-type]
    trainer = pl.Trainer(
        accelerator="cpu", devices=ranks, strategy="ddp_spawn" if ranks > 1 else "auto", max_epochs=EPOCHS,
        max_steps=most, logger=False, enable_progress_bar=False, enable_model_summary=False,
        use_distributed_sampler=False, callbacks=[
            pl.callbacks.ModelCheckpoint(folder, "{step}", every_n_train_steps=1, save_top_k=-1)
        ],
    )  # fmt: skip
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", category=UserWarning, module="pytorch_lightning")
        trainer.fit(Module(folder), loader, ckpt_path=None if resumed is None else str(resumed))


@pytest.mark.slow
@pytest.mark.parametrize("ranks", [2, 4])
def test_lightning(ranks: int, tmp_path: Path) -> None:
    fit(tmp_path, ranks)
    error = worst_error(tmp_path, ranks)
    print(f"Lightning, {ranks} ranks: {error:.1e}")
    assert error < 1e-12


@pytest.mark.parametrize("changes", [{}, BUDGET], ids=["balanced", "token_budget"])
def test_lightning_goes_on_within_an_epoch(changes: dict[str, Any], tmp_path: Path) -> None:
    fit(tmp_path, **changes)
    whole = [share[:2] for share in torch.load(tmp_path / "rank0")]
    for most in (1, 3, len(whole) // EPOCHS + 1):
        folder = tmp_path / str(most)
        fit(folder, most=most, **changes)
        first = [share[:2] for share in torch.load(folder / "rank0")]
        fit(tmp_path, resumed=folder / f"step={most}.ckpt", **changes)
        rest = [share[:2] for share in torch.load(tmp_path / "rank0")]
        assert first + rest == whole


class Manual(Module):
    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.automatic_optimization = False


def trainer(**changes: Any) -> Any:
    quiet = {name: False for name in ("logger", "enable_progress_bar", "enable_model_summary", "enable_checkpointing")}
    return pl.Trainer(accelerator="cpu", devices=1, max_steps=1, **quiet, **changes)


def steps_loader() -> StepLoader:
    return StepLoader(range(NUM_SAMPLES), LENGTHS, global_batch=16)


@pytest.mark.parametrize(
    ("changes", "manual", "make", "named"),
    [
        (
            {"accumulate_grad_batches": 2},
            False,
            sampler,
            r"accumulate_grad_batches=2\).*leave it out, and give a StepL",
        ),
        ({}, False, steps_loader, "Module: a StepLoader gives each step as a list.*automatic_optimization = False"),
        ({"strategy": "fsdp"}, True, steps_loader, "strategy|FSDP"),
    ],
)
def test_what_would_make_it_wrong_is_refused(
    changes: dict[str, Any], manual: bool, make: Any, named: str, tmp_path: Path
) -> None:
    module = Manual(tmp_path) if manual else Module(tmp_path)
    with pytest.raises((ConfigError, ValueError), match=named):
        trainer(**changes).fit(module, BalancedData(make()))


def test_validation_is_untouched(tmp_path: Path) -> None:
    seen: list[Any] = []

    class Validates(Module):
        def validation_step(self, batch: Any, number: int) -> None:
            seen.append(batch)

    loader = DataLoader(range(NUM_SAMPLES), batch_sampler=sampler())  # type: ignore[arg-type]
    trainer(num_sanity_val_steps=0, val_check_interval=1).fit(
        Validates(tmp_path),
        BalancedData(loader, val_loader=DataLoader([1, 2, 3])),  # type: ignore[arg-type]
    )
    assert seen == [1, 2, 3]


def test_another_version_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tested_versions, "version", lambda name: "3.0")
    with pytest.warns(UserWarning, match=r"tested with pytorch-lightning 2\.4 to 2\.6, not 3\.0"):
        trainer().fit(Module(tmp_path), BalancedData(DataLoader(range(NUM_SAMPLES), batch_sampler=sampler())))  # type: ignore[arg-type]
