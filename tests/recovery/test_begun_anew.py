"""Runs that are to begin anew: killed while they do so, or started again by torchrun."""

import json
from pathlib import Path
from typing import Any

import pytest
from runs import config_of

from ddpsched import run_folder
from ddpsched.config import RunConfig, parse
from ddpsched.errors import ConfigError, RunFinishedError
from ddpsched.recovery.audit import audit
from ddpsched.recovery.ledger import LEDGER
from ddpsched.run_folder import RunFolder, read_status
from ddpsched.run_loop import as_launched, run

STEPS = 9


def config(outputs: Path, **values: Any) -> RunConfig:
    base = config_of(outputs, steps=STEPS, data={"size": 60}, train={"checkpoint_every": 2})
    return parse(base.model_dump(exclude_none=True) | values)


def starts(folder: Path) -> list[int]:
    return [each["step"] for each in json.loads((folder / "environment.json").read_text())["starts"]]


@pytest.mark.parametrize("finished", [True, False])
@pytest.mark.parametrize("removed", range(5))
def test_killed_while_the_folder_is_cleared(
    tmp_path: Path, stopped: Any, monkeypatch: pytest.MonkeyPatch, finished: bool, removed: int
) -> None:
    """Whatever is left by then, the plain command begins anew, or finds the run that was to be replaced as it was."""
    one = config(tmp_path)
    run(one) if finished else stopped(one, 7)
    ledger, left, remove = (one.run_dir / LEDGER).read_bytes(), removed, run_folder.remove

    def killed(path: Path) -> None:
        nonlocal left
        if not left:
            raise KeyboardInterrupt
        left -= 1
        remove(path)

    with monkeypatch.context() as patch:
        patch.setattr(run_folder, "remove", killed)
        with pytest.raises(KeyboardInterrupt):
            run(one, overwrite=finished, restart=not finished)
    if removed == 0:  # the run before is whole
        assert (one.run_dir / LEDGER).read_bytes() == ledger
        if finished:
            assert read_status(one.run_dir)["state"] == "done"
            return
    run(one)
    assert starts(one.run_dir) == ([0, 6] if removed == 0 else [0])
    assert audit(one.run_dir).faults == []
    assert read_status(one.run_dir)["state"] == "done"


@pytest.mark.parametrize("run_id", ["job 7", "none"])
@pytest.mark.parametrize("words", [{"restart": True}, {"overwrite": True}])
def test_torchruns_restart_goes_on_with_what_it_began(
    tmp_path: Path, stopped: Any, monkeypatch: pytest.MonkeyPatch, run_id: str, words: dict[str, bool]
) -> None:
    """The words are of the launch, which torchrun gives to its ranks again each time that it starts them."""
    one = config(tmp_path)
    stopped(one, 5)
    for name, value in (("RUN_ID", run_id), ("RESTART_COUNT", "0")):
        monkeypatch.setenv(f"TORCHELASTIC_{name}", value)
    stopped(one, 7, **words)
    assert starts(one.run_dir) == [0], "the first attempt of a launch begins anew"
    monkeypatch.setenv("TORCHELASTIC_RESTART_COUNT", "1")
    run(one, **words)
    assert starts(one.run_dir) == [0, 6], "and the second goes on"
    if run_id != "none":
        with pytest.raises(RunFinishedError, match="was finished by an earlier attempt of this launch"):
            RunFolder(one.run_dir, "", overwrite=True)
    monkeypatch.setenv("TORCHELASTIC_RESTART_COUNT", "0")
    run(one, overwrite=True)
    assert starts(one.run_dir) == [0], "another launch of this name"


def test_an_attempt_that_never_began_is_not_gone_on_with(
    tmp_path: Path, stopped: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first attempt fails before it gives up the run before, so that the second still begins anew."""
    one = config(tmp_path)
    stopped(one, 5)
    monkeypatch.setenv("TORCHELASTIC_RUN_ID", "job")
    with monkeypatch.context() as patch:
        patch.setattr(RunFolder, "begin", interrupt)
        with pytest.raises(KeyboardInterrupt):
            run(one, restart=True)
    monkeypatch.setenv("TORCHELASTIC_RESTART_COUNT", "1")
    run(one, restart=True)
    assert starts(one.run_dir) == [0]


def interrupt(*_: Any, **__: Any) -> None:
    raise KeyboardInterrupt


def test_fewer_ranks_than_the_windows_of_minmax_can_fill(
    tmp_path: Path, stopped: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As the message tells, larger windows go on; an elastic run takes them by itself."""
    policy = {"kind": "minmax", "prefetch": 8}
    one = config(tmp_path, policy=policy, global_batch=12, world_size=2)
    stopped(one, 5)
    values = one.model_dump(exclude_none=True) | {"world_size": 1}
    with pytest.raises(ConfigError, match=r"raise policy\.prefetch to at least 12"):
        parse(values)
    run(parse(values | {"policy": policy | {"prefetch": 12}}))
    found = audit(one.run_dir)
    assert (found.faults, [start["world_size"] for start in found.starts]) == ([], [2, 1])
    monkeypatch.setenv("RANK", "0")
    monkeypatch.setenv("WORLD_SIZE", "1")
    elastic = parse(values | {"world_size": 2, "executor": {"kind": "distributed", "elastic": True}})
    assert as_launched(elastic).policy.prefetch == 12
    assert as_launched(parse(elastic.model_dump(exclude_none=True) | {"global_batch": 4})).policy.prefetch == 8
