"""transformers' Trainer, stopped and resumed from its checkpoints, in one process."""

from pathlib import Path
from typing import Any

import pytest
from torch_loops import BATCH, LENGTHS, Model, Sentences, plain

from ddpsched import BatchSampler, World
from ddpsched.integrations.losses import summed_cross_entropy


@pytest.mark.parametrize("stop", [2, 3, 4])
def test_a_resumed_trainer_goes_on_in_the_order_of_its_epoch(stop: int, tmp_path: Path) -> None:
    """One process stops within an epoch of four steps, or at its end."""
    pytest.importorskip("accelerate")
    whole = ids_of_trainer(tmp_path / "whole")
    first = ids_of_trainer(tmp_path / "part", stop=stop)
    rest = ids_of_trainer(tmp_path / "part", checkpoint=f"checkpoint-{stop}")
    assert first + rest == whole
    assert whole[:4] != whole[4:8]


def ids_of_trainer(folder: Path, stop: int | None = None, checkpoint: str | None = None) -> list[list[int]]:
    """Return the samples of each step of three epochs, or of the rest of them."""
    from transformers import Trainer, TrainerCallback, TrainerControl, TrainerState, TrainingArguments

    class Ours(Trainer):
        def get_train_dataloader(self) -> Any:
            return plain(BatchSampler(LENGTHS, global_batch=BATCH, world=World(0, 1), seed=8))

    class Stop(TrainerCallback):
        def on_step_end(self, a: Any, state: TrainerState, control: TrainerControl, **more: Any) -> None:
            steps.append(sorted(model.seen))
            model.seen.clear()
            control.should_save = control.should_training_stop = state.global_step == stop

    model, steps = Model(), list[list[int]]()
    arguments = TrainingArguments(
        output_dir=str(folder), num_train_epochs=3, use_cpu=True, report_to=[], save_strategy="no",
        logging_strategy="no", remove_unused_columns=False, disable_tqdm=True, gradient_accumulation_steps=1,
    )  # fmt: skip
    loss = summed_cross_entropy
    Ours(model, arguments, train_dataset=Sentences(), compute_loss_func=loss, callbacks=[Stop()]).train(
        resume_from_checkpoint=None if checkpoint is None else str(folder / checkpoint)
    )
    return steps
