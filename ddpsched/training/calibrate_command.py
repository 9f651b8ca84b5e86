"""`ddpsched calibrate`: a model's times and memory on this device, or the network between ranks."""

from collections.abc import Sequence
from pathlib import Path

from ddpsched.config import load
from ddpsched.costs.fit_calibration import summary, table
from ddpsched.terminal import plain_console
from ddpsched.training.calibrate import calibrate_to
from ddpsched.training.network_times import calibrate_network
from ddpsched.visible_text import visible
from ddpsched.world import World


def answer(
    config: str, words: Sequence[str], output: Path, overwrite: bool, passes: int | None, tokens: int | None,
    network: bool,
) -> None:  # fmt: skip
    """Measure, write the file, and print what it holds; with ``network`` every rank calls it, and rank 0 prints."""
    run = load(config, words)
    if network:
        found = calibrate_network(output, run, overwrite)
        if World.detect().is_main:
            print(visible(f"{found}\nwritten to {output}", lines=True))
        return
    calibration = calibrate_to(output, run, overwrite, passes, tokens)
    plain_console().print(table(calibration))
    print(visible(f"{summary(calibration)}\nwritten to {output}", lines=True))
