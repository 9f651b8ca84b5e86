"""Under an elastic torchrun a run goes on with the ranks that are left."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from ranks import free_port

from ddpsched.config import parse
from ddpsched.errors import ConfigError
from ddpsched.recovery.audit import audit
from ddpsched.recovery.ledger import LEDGER
from ddpsched.run_loop import as_launched

ROOT = Path(__file__).parents[2]
CONFIG = """
outputs = "{outputs}"
steps = 150
global_batch = 12
world_size = 2
[executor]
kind = "distributed"
elastic = true
timeout_s = 30.0
[data]
size = 300
[policy]
kind = "{policy}"
[train]
checkpoint_every = 5
"""


def agent(config: Path, port: int) -> subprocess.Popen[bytes]:
    """Start one machine's torchrun, here beside the other's."""
    launcher = ["-m", "torch.distributed.run", "--nnodes", "1:2", "--nproc-per-node", "1", "--max-restarts", "3"]
    meeting = ["--rdzv-backend", "c10d", "--rdzv-endpoint", f"localhost:{port}", "--rdzv-id", "elastic"]
    patience = ["--rdzv-conf", "last_call_timeout=4"]
    # else torch's agents may look in vain for the store of the agent that is gone
    environ = {"OMP_NUM_THREADS": "1", "TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"}
    with (config.parent / "agents.log").open("ab") as log:
        return subprocess.Popen(
            [sys.executable, *launcher, *meeting, *patience, "-m", "experiments.train", str(config)],
            cwd=ROOT, stdout=log, stderr=log, env={**os.environ, **environ}, start_new_session=True,
        )  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("policy", ["balanced", "minmax"])
def test_run_goes_on_with_the_ranks_that_are_left(tmp_path: Path, policy: str) -> None:
    config, port = tmp_path / "config.toml", free_port()
    config.write_text(CONFIG.format(outputs=tmp_path, policy=policy))
    folder = tmp_path / "runs" / "run"
    first = agent(config, port)
    time.sleep(1.0)  # the first holds the store in which they meet
    second = agent(config, port)
    try:
        deadline = time.monotonic() + 90
        while not (folder / LEDGER).exists() or (folder / LEDGER).read_bytes().count(b"\n") < 20:
            assert time.monotonic() < deadline, (tmp_path / "agents.log").read_text()
            time.sleep(0.05)
        os.killpg(second.pid, signal.SIGKILL)
        assert first.wait(240) == 0, (tmp_path / "agents.log").read_text()
    finally:
        for each in (first, second):
            if each.poll() is None:
                os.killpg(each.pid, signal.SIGKILL)
    found = audit(folder)
    assert found.faults == []
    assert [start["world_size"] for start in found.starts] == [2, 1]
    assert found.num_steps == 150


def test_world_size_is_the_launchers(monkeypatch: pytest.MonkeyPatch) -> None:
    config = parse({"steps": 1, "world_size": 4, "executor": {"kind": "distributed", "elastic": True}})
    monkeypatch.setenv("RANK", "0")
    monkeypatch.setenv("WORLD_SIZE", "3")
    assert as_launched(config).world_size == 3
    assert as_launched(config.model_copy(update={"executor": parse({"steps": 1}).executor})).world_size == 4
    monkeypatch.setenv("WORLD_SIZE", "64")
    with pytest.raises(ConfigError, match=r"executor\.elastic, 64 ranks: .*global_batch = 32 is smaller"):
        as_launched(config)


def test_it_belongs_to_torchrun() -> None:
    with pytest.raises(ConfigError, match="use 'distributed', or leave it out"):
        parse({"steps": 1, "executor": {"elastic": True}})
