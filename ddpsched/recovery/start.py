"""The start of a run: its beginning, or the last checkpoint of a run of the same config and data that was stopped."""

import logging
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from hashlib import file_digest
from pathlib import Path
from typing import Annotated, Any

from pydantic import Field, ValidationError

from ddpsched.config import RunConfig
from ddpsched.costs.rank_speed import Speed
from ddpsched.data.order_file import OrderedFile
from ddpsched.data.samples import Samples
from ddpsched.decode import decode_json, shown
from ddpsched.errors import ConfigError, DataError
from ddpsched.recovery.checkpoints import STATE, Checkpoints
from ddpsched.recovery.earlier import starts_in, whole_records
from ddpsched.recovery.ledger import Head, committed, cut
from ddpsched.regular_file import check_regular
from ddpsched.step_plan import Position
from ddpsched.table import PositiveFloat, Ranks, Table, first_fault

log = logging.getLogger("ddpsched")
# keys of a config that may differ when a run goes on: what is trained does not follow from them, or, as from minmax's
# windows, only which of an epoch's samples come when
FREE = {
    "": ("outputs", "aa", "world_size"),
    "executor": ("timeout_s", "timeline", "slowness", "elastic"),
    "train": ("checkpoint_every", "keep", "save_model", "eval_every"),
    "policy": ("prefetch",),
    "log": ("sinks",),
}
LINES = {"timeline-rank*.jsonl": 0, "evaluations.jsonl": 1}  # by file beside the records, what to add to a step

Room = Annotated[int, Field(ge=1, lt=2**62)]  # bytes or tokens


class State(Table):
    """``state.json`` of a checkpoint: what a run goes on from beside its tensors.

    ``ledger``: its steps and the digest of its last line. ``speeds``: what each rank's was measured from. ``rooms``:
    the memory left to each rank, where one has run out of it.
    """

    config: dict[str, Any]
    world_size: Ranks
    batch_ranks: Ranks
    position: dict[str, Any]
    ledger: Annotated[list[Any], Field(min_length=2, max_length=2)]
    speeds: list[list[PositiveFloat]] | None
    rooms: list[Room | None] | None = None


@dataclass(frozen=True)
class Start:
    """The start of a run in ``folder``, at ``position``.

    ``identity``: what stays the same when the run goes on. ``checkpoint``: the folder of the one that it goes on from,
    with its ``state``; None for the run's beginning.
    """

    folder: Path
    identity: Mapping[str, Any]
    checkpoint: Path | None = None
    position: Position = field(default_factory=Position)
    state: State | None = None

    @property
    def goes_on(self) -> bool:
        """Whether an earlier process did some of the steps."""
        return self.checkpoint is not None

    @property
    def head(self) -> Head:
        """The end of the ledger so far."""
        return Head() if self.state is None else Head(*self.state.ledger)

    @property
    def ranks_before(self) -> int | None:
        """The number of ranks that wrote the checkpoint."""
        return None if self.state is None else self.state.world_size

    @property
    def batch_ranks(self) -> int | None:
        """The number of ranks that the run began with, for which its global batches are made."""
        return None if self.state is None else self.state.batch_ranks

    def restore_speeds(self, speeds: Sequence[Speed], ranks: Sequence[int], world_size: int) -> None:
        """Let the measured speeds of these ranks go on, if there were ``world_size`` ranks before, too."""
        stored = (self.state.speeds if self.state else None) or []
        for speed, rank in zip(speeds, ranks, strict=True) if speeds else ():
            if rank < len(stored) == world_size:
                speed.restore(stored[rank])

    def rooms(self, world_size: int) -> dict[int, int]:
        """Return by rank the memory left to those that ran out of it, if there were ``world_size`` ranks before."""
        stored = (self.state.rooms if self.state else None) or []
        return {rank: room for rank, room in enumerate(stored) if room is not None and len(stored) == world_size}

    def listed(self, world_size: int) -> list[dict[str, Any]]:
        """Return all starts of the run for environment.json, this one last: after which step, when, how many ranks."""
        earlier: list[dict[str, Any]] = []
        if self.goes_on:
            try:
                earlier = starts_in(self.folder)
            except DataError as error:
                log.warning("%s; the run goes on, and lists its earlier starts no more", error)
        now = datetime.now(UTC).isoformat(timespec="seconds")
        return [*earlier, {"step": self.position.step, "at": now, "world_size": world_size}]

    def rewind(self) -> None:
        """Cut off what was written after the checkpoint, whose updates are lost. Rank 0 calls it, before others write.

        Raises DataError, before anything is cut, where the ledger is not the one that the checkpoint was written
        beside, or records of its steps are missing or damaged.
        """
        if not self.goes_on:
            return
        steps = self.position.step
        ends = whole_records(self.folder, committed(self.folder, self.head))
        for pattern, more in LINES.items():
            ends |= {path: _end_of(path, steps + more) for path in self.folder.glob(pattern)}
        cut(self.folder, self.head)
        Checkpoints(self.folder, 1).forget_after(steps)
        for path, end in ends.items():
            os.truncate(path, end)
        (self.folder / "records.parquet").unlink(missing_ok=True)


def find_start(folder: Path, identity: Mapping[str, Any], may_go_on: bool = True) -> Start:
    """Return the start of a run of this identity: at its newest checkpoint, if there is one and it ``may_go_on``.

    Raises ConfigError where the run was begun with another identity, DataError where every checkpoint is damaged.
    """
    found = Checkpoints(folder, 1).newest() if may_go_on else None
    if found is None:
        return Start(folder, identity)
    try:
        state = State.model_validate(found.state)
        position = Position.from_dict(state.position)
    except (ValidationError, ConfigError) as error:
        fault = first_fault(error) if isinstance(error, ValidationError) else error
        raise DataError(f"{found.path / STATE}: {fault}; begin anew with --restart") from None
    if position.step != found.step or state.ledger[0] != found.step:
        raise DataError(f"{found.path / STATE} is not of step {found.step}; begin anew with --restart")
    begun, now = _flat(state.config), _flat(identity)
    keys = [key for key in now | begun if key not in begun or key not in now or begun[key] != now[key]]
    if keys:
        more = f" (and {len(keys) - 1} more differ)" if keys[1:] else ""
        raise ConfigError(
            f"{folder} holds an unfinished run that was begun with {keys[0]} = {shown(begun.get(keys[0]))}, now "
            f"{shown(now.get(keys[0]))}{more}; give the same to go on, --restart to begin anew, or another name=..."
        )
    return Start(folder, identity, found.path, position, state)


def identity_of(config: RunConfig, samples: Samples) -> dict[str, Any]:
    """Return what must stay the same when a run goes on, as JSON has it: its config, and the contents that it names.

    ``contents``: fingerprints of the data, the tokenizer and the files that the config names.
    """
    values = config.model_dump(mode="json")
    for table, keys in FREE.items():
        part = values[table] if table else values
        for key in keys:
            part.pop(key, None)  # a policy may have no such option
    paths = {"cost.path": config.cost.path, "memory.path": config.memory.path}
    files = {name: _digest(Path(path).expanduser()) for name, path in paths.items() if path is not None}
    if config.order.path is not None:
        files["order.path"] = OrderedFile.open(Path(config.order.path).expanduser()).digest
    return values | {"contents": samples.fingerprints() | files}


def _digest(path: Path) -> str:
    try:
        check_regular(path)
        with path.open("rb") as file:
            return file_digest(file, "sha256").hexdigest()
    except OSError:
        return "not read"  # what reads it says why, with the remedy


def _flat(values: Mapping[str, Any], before: str = "") -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for key, value in values.items():
        flat |= _flat(value, f"{before}{key}.") if isinstance(value, dict) else {before + key: value}
    return flat


def _end_of(path: Path, step: int) -> int:
    """Return the bytes of a file's lines up to the first whose step is ``step`` or later, or that is no JSON."""
    kept = 0
    with path.open("rb") as file:
        for line in file:
            try:
                later = not line.endswith(b"\n") or decode_json(line)["step"] >= step
            except (ValueError, KeyError, TypeError):
                later = True
            if later:
                break
            kept += len(line)
    return kept
