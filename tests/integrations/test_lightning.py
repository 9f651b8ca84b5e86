"""The gradient of each step where ranks are started by Lightning, last steps included; and its checkpoints."""

import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from launched import EPOCHS, LENGTHS, NUM_SAMPLES, gradient, model, sampler, summed_loss, worst_error
from torch.utils.data import DataLoader

from ddpsched import StepLoader, StreamScheduler, World, scaled
from ddpsched.errors import ConfigError
from ddpsched.integrations import tested_versions

pytest.importorskip("pytorch_lightning", exc_type=ImportError)
import pytorch_lightning as pl

from ddpsched.integrations.lightning import BalancedData

BUDGET = {"policy": {"kind": "token_budget", "max_tokens_for_batch": 110}, "global_batch": None}


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

    def validation_step(self, batch: Any, number: int) -> None:
        pass

    def on_train_end(self) -> None:
        self.folder.mkdir(exist_ok=True)
        torch.save(self.record, self.folder / f"rank{self.trainer.global_rank}")


class Stops(pl.Callback):
    """Saves a checkpoint at ``stop``, a hook and the optimizer step, and ends the training there."""

    def __init__(self, stop: tuple[str, int], path: Path) -> None:
        self.path = path
        hook, self.step = stop
        setattr(self, hook, self.save)

    def save(self, trainer: Any, *_: Any, **__: Any) -> None:
        if trainer.global_step == self.step:
            trainer.save_checkpoint(self.path)
            trainer.should_stop = True


def fit(
    folder: Path, ranks: int = 1, stop: tuple[str, int] | None = None, resumed: Path | None = None,
    trains: Mapping[str, Any] | None = None, **changes: Any,
) -> None:  # fmt: skip
    """Train with Lightning, from a checkpoint or to one. ``trains``: more for its Trainer; ``changes``: the sampler."""
    loader = DataLoader(range(NUM_SAMPLES), batch_sampler=sampler(**changes))  # type: ignore[arg-type]
    trainer = pl.Trainer(
        accelerator="cpu", devices=ranks, strategy="ddp_spawn" if ranks > 1 else "auto", max_epochs=EPOCHS,
        logger=False, enable_progress_bar=False, enable_model_summary=False, enable_checkpointing=False,
        use_distributed_sampler=False, num_sanity_val_steps=0,
        callbacks=[] if stop is None else [Stops(stop, folder / "stop.ckpt")], **(trains or {}),
    )  # fmt: skip
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", category=UserWarning, module="pytorch_lightning")
        data = BalancedData(loader, val_loader=DataLoader([1, 2]))  # type: ignore[arg-type]
        trainer.fit(Module(folder), data, ckpt_path=None if resumed is None else str(resumed))


@pytest.mark.slow
@pytest.mark.parametrize("ranks", [2, 4])
def test_lightning(ranks: int, tmp_path: Path) -> None:
    fit(tmp_path, ranks)
    error = worst_error(tmp_path, ranks)
    print(f"Lightning, {ranks} ranks: {error:.1e}")
    assert error < 1e-12


def steps_of(folder: Path) -> list[tuple[list[int], float]]:
    return [share[:2] for share in torch.load(folder / "rank0")]


VARYING = sampler(**BUDGET)
STEPS = {"balanced": [4, 4], "token_budget": [len(list(VARYING)), len(list(VARYING))]}  # of each epoch
CHANGES: dict[str, dict[str, Any]] = {"balanced": {}, "token_budget": BUDGET}


@pytest.mark.parametrize("policy", CHANGES)
def test_every_epoch_has_all_its_steps(policy: str, tmp_path: Path) -> None:
    """Also where one has more than another, which Lightning counts only where a loader is loaded again."""
    fit(tmp_path, **CHANGES[policy])
    found, first = steps_of(tmp_path), STEPS[policy][0]
    assert len(found) == sum(STEPS[policy])
    for epoch in (found[:first], found[first:]):
        assert sorted(id for ids, _ in epoch for id in ids) == list(range(NUM_SAMPLES))


@pytest.mark.parametrize("policy", CHANGES)
@pytest.mark.parametrize("hook", ["on_train_batch_end", "on_validation_end", "on_train_epoch_end"])
@pytest.mark.parametrize("step", [1, 3, "last", "first of the next"])
def test_lightning_goes_on(policy: str, hook: str, step: Any, tmp_path: Path) -> None:
    """Wherever it saves: Lightning gives a loader its state back only within an epoch."""
    last = STEPS[policy][0]
    at = {"last": last, "first of the next": last + 1}.get(step, step)
    if hook == "on_train_epoch_end" and at != last:
        return  # that hook is called after the last step
    changes, validates = CHANGES[policy], {"val_check_interval": 1 if hook == "on_validation_end" else None}
    fit(tmp_path, **changes)
    whole = steps_of(tmp_path)
    fit(tmp_path / "first", stop=(hook, at), trains=validates, **changes)
    fit(tmp_path / "rest", resumed=tmp_path / "first" / "stop.ckpt", trains=validates, **changes)
    assert steps_of(tmp_path / "first") + steps_of(tmp_path / "rest") == whole


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


def test_a_stream_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"StreamScheduler: a stream has no length.*use torch's own loop"):
        trainer().fit(Module(tmp_path), BalancedData(StreamScheduler([], len, global_batch=4)))


def test_a_checkpoint_without_a_position_is_named(tmp_path: Path) -> None:
    loader = DataLoader(range(NUM_SAMPLES), batch_sampler=sampler())  # type: ignore[arg-type]
    plain = trainer()
    pairs = DataLoader([0, 1], collate_fn=lambda ids: (torch.tensor(ids), 1.0))  # type: ignore[arg-type,var-annotated]
    plain.fit(Module(tmp_path), pairs)
    plain.save_checkpoint(tmp_path / "plain.ckpt")
    with pytest.warns(UserWarning, match=r"plain.ckpt holds no position of BalancedData"):
        trainer().fit(Module(tmp_path), BalancedData(loader), ckpt_path=str(tmp_path / "plain.ckpt"))


def test_a_position_of_another_number_of_ranks() -> None:
    steps = scaled(DataLoader(range(NUM_SAMPLES), batch_sampler=sampler(world=World(0, 2))))  # type: ignore[arg-type]
    for _ in zip(range(2), steps, strict=False):
        pass
    alone = DataLoader(range(NUM_SAMPLES), batch_sampler=sampler(world=World(0, 1)))  # type: ignore[arg-type]
    data = BalancedData(alone)
    data.load_state_dict(steps.state_dict())
    seen = [int(number) for batch, _ in data._steps for number in batch]
    assert len(seen) == len(set(seen)) == NUM_SAMPLES - 2 * 16


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
    with pytest.warns(UserWarning, match=r"tested with pytorch-lightning 2\.5 to 2\.6, not 3\.0"):
        trainer().fit(Module(tmp_path), BalancedData(DataLoader(range(NUM_SAMPLES), batch_sampler=sampler())))  # type: ignore[arg-type]
