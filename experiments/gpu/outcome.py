"""The outcome in the folder of a measurement: of this call, and of earlier ones on the same kind of device."""

import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pandas as pd

from ddpsched.records import read_json, write_json
from experiments.gpu.measure import STEPS

MEASURED, CALIBRATIONS = "gpu.json", "calibration-*.json"
UNFINISHED = {"failed", "cut_off_s"}  # entries of a part that the next call measures anew


class Outcome:
    """The parts measured so far, and the records of all steps; each part added is written at once, with its date.

    ``device``: what the part of that name found. What the folder holds counts where it is of the same GPU and size,
    unless ``force`` is given. ``work``: where the parts write, and look for calibrations.
    """

    def __init__(self, folder: Path, device: Mapping[str, Any], smoke: bool, force: bool, work: Path) -> None:
        self.parts: dict[str, dict[str, Any]] = {}
        self._folder, self._smoke, self._work = folder, smoke, work
        self._steps: dict[str, pd.DataFrame] = {}
        file = folder / MEASURED
        before = read_json(file) if file.exists() and not force else {"smoke": None, "parts": {}}
        if before["smoke"] == smoke and before["parts"]["device"].get("gpu") == device.get("gpu"):
            self.parts |= before["parts"]
            for calibration in folder.glob(CALIBRATIONS):
                (work / calibration.name).write_bytes(calibration.read_bytes())
            if (folder / STEPS).exists():
                self._steps = {str(part): each for part, each in pd.read_parquet(folder / STEPS).groupby("part")}
        self.parts["device"] = dict(device)

    def is_whole(self, part: str) -> bool:
        """Whether a part was measured to its end."""
        return part in self.parts and not UNFINISHED & self.parts[part].keys()

    def add(self, part: str, found: Mapping[str, Any]) -> None:
        """Keep what a part has found, unless it failed where an earlier call had found something; write all."""
        if "failed" not in found or "failed" in self.parts.get(part, found):
            when = {"date": time.strftime("%Y-%m-%d"), "commit": self.parts["device"].get("commit")}
            self.parts[part] = {**found, **when}
            if (self._work / STEPS).exists():
                self._steps[part] = pd.read_parquet(self._work / STEPS).assign(part=part)
        (self._work / STEPS).unlink(missing_ok=True)
        for calibration in self._work.glob(CALIBRATIONS):
            (self._folder / calibration.name).write_bytes(calibration.read_bytes())
        if self._steps:
            pd.concat(self._steps.values()).to_parquet(self._folder / STEPS, index=False)
        written = {"smoke": self._smoke, "parts": self.parts}
        write_json(self._folder / MEASURED, written)
