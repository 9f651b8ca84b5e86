"""Values that are measured once for all launches: the cost for policy auto, and online-dynamic-batching's budget."""

import os
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

from ddpsched.local_ranks import answers, run_ranks
from ddpsched.peers import PEERS, Problem
from experiments.trainers.setting import GLOBAL_BATCH, RANKS, Setting


def measured_cost(setting: Setting) -> dict[str, Any]:
    """Return [cost] in seconds, calibrated on this machine with one thread, for policy auto."""
    (coefficients,) = answers(run_ranks(_calibrate, 1, setting, limit_s=3600.0))
    return {"kind": "affine_quadratic", **coefficients}


def _calibrate(setting: Setting) -> dict[str, float]:
    from ddpsched.training.calibrate import calibrate_to

    with tempfile.TemporaryDirectory() as folder:
        config = setting.config.model_copy(update={"world_size": 1})
        os.environ.pop("RANK", None)
        return calibrate_to(Path(folder, "calibration.json"), config).seconds.model_dump()


def odb_budget(setting: Setting) -> int:
    """Return the tokens of a micro-batch with which a step of online-dynamic-batching has 32 samples on average."""
    order = np.random.default_rng(0).permutation(len(setting.lengths))
    peer = PEERS["online_dynamic_batching"]
    assert peer.budget is not None
    return peer.budget(Problem(setting.lengths, order, RANKS, GLOBAL_BATCH))
