"""TensorBoard itself: a run's numbers, read back from its event files. `make peers` has the package."""

from pathlib import Path

import pytest
from runs import config_of, records_of

from ddpsched.run_loop import run

pytest.importorskip("tensorboard", reason="tensorboard is not installed: make peers")


def test_each_step_s_numbers_are_in_the_event_files(tmp_path: Path) -> None:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    config = config_of(tmp_path, steps=3, log={"sinks": ["tensorboard"]})
    run(config)
    events = EventAccumulator(str(config.run_dir / "tensorboard"))
    events.Reload()
    sent = {
        name: [each.tensor_proto.float_val[0] for each in events.Tensors(name)]
        for name in ("loss", "lr", "global_batch")
    }
    steps = records_of(config.run_dir).assign(summed=lambda row: row["loss"] * row["num_samples"]).groupby("step")
    assert sent["loss"] == pytest.approx(steps["summed"].sum() / 12)
    assert sent["lr"] == pytest.approx(steps["lr"].first())
    assert sent["global_batch"] == [12, 12, 12]
    assert {"step_s", "waiting_share"} <= set(events.Tags()["tensors"])
