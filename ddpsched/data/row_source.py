"""The rows of a data set where they lie: a file, a folder saved by ``datasets``, or the hub; by chunk, and by name.

A row's number, from 0, is its place in the training split; what is cut off or held out of it changes no number.
"""

import hashlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from ddpsched.data.config import DataConfig
from ddpsched.data.hub import offline_unless_reachable
from ddpsched.data.table_files import READERS, Chunk, Mine, Wanted, read_chunks, require_columns
from ddpsched.errors import DataError

NUMBERS = (".npy", ".txt")


@dataclass(frozen=True)
class RowSource:
    """Rows that can be read chunk by chunk. ``name`` is for messages, ``short`` says no folder of this machine.

    ``fingerprint()`` tells data sets apart: of a file its bytes, of a saved or downloaded set what ``datasets`` gives
    it. ``chunks(wanted, size, mine)``: as :func:`ddpsched.data.table_files.read_chunks`.
    """

    name: str
    short: str
    fingerprint: Callable[[], str]
    chunks: Callable[[Wanted | None, int, Mine], Iterator[Chunk]]


def training_rows(config: DataConfig) -> RowSource | None:
    """Of the training split that ``config`` names; None for the embedded sentences, which lie nowhere."""
    if config.path:
        path = locate(Path(config.path).expanduser())
        return saved_rows(path, load_saved(path)) if path.is_dir() else file_rows(path)
    if config.name:
        source = hub_name(config)
        return split_rows(training_split(load_hub(config), source), source)
    return None


def file_rows(path: Path) -> RowSource:
    """Of a TSV, CSV, JSON-lines or Parquet file."""

    def fingerprint() -> str:
        with path.open("rb") as file:
            return f"file {hashlib.file_digest(file, lambda: hashlib.blake2b(digest_size=16)).hexdigest()}"

    return RowSource(
        str(path), path.name, fingerprint, lambda wanted, size, mine: read_chunks(path, wanted, size, mine)
    )


def number_rows(path: Path) -> RowSource:
    """Of a ``.npy`` array, which is mapped, or a ``.txt`` with a number in each line, as a column "value"."""

    def chunks(wanted: Wanted | None, size: int, mine: Mine) -> Iterator[Chunk]:
        values = _numbers(path)
        for number, first in enumerate(range(0, len(values), size)):
            part = values[first : first + size]
            column = part.tolist() if mine(number) else []
            yield Chunk(number, first, len(part), {"value": column}, (first + len(part)) / len(values))

    if not path.exists():
        raise DataError(f"{path}: no such file; check the path (it is relative to {Path.cwd()})")
    return replace(file_rows(path), chunks=chunks)


def _numbers(path: Path) -> Any:
    try:
        if path.suffix.lower() == ".txt":
            return np.array(path.read_text(encoding="utf-8").split())
        values = np.load(path, mmap_mode="r", allow_pickle=False)
    except (ValueError, EOFError) as error:
        raise DataError(f"{path}: not an array of numbers ({error}); write it with numpy.save") from None
    if not isinstance(values, np.ndarray) or values.ndim != 1 or values.dtype.kind not in "iuf":
        raise DataError(f"{path}: not a flat array of numbers; give one number a sample")
    return values


def saved_rows(path: Path, loaded: Any) -> RowSource:
    """Of the training split of what ``datasets`` saved in a folder."""
    return split_rows(training_split(loaded, str(path)), str(path), path.name)


def split_rows(split: Any, name: str, short: str = "") -> RowSource:
    """Of a ``datasets.Dataset``, which lies on the disk and is mapped."""

    def chunks(wanted: Wanted | None, size: int, mine: Mine) -> Iterator[Chunk]:
        names = split.column_names
        if wanted is not None:
            require_columns(name, names, wanted)
            names = list(dict.fromkeys(wanted.values()))
        rows = split.select_columns(names).with_format("arrow")
        for number, first in enumerate(range(0, len(split), size)):
            count = min(size, len(split) - first)
            table = rows[first : first + count] if mine(number) else None
            columns = {column: [] if table is None else table.column(column).to_pylist() for column in names}
            yield Chunk(number, first, count, columns, (first + count) / len(split))

    return RowSource(name, short or name, lambda: f"datasets {split._fingerprint} of {len(split)} rows", chunks)


def locate(path: Path) -> Path:
    """The training file, or the saved folder, that ``data.path`` means; DataError where there is none."""
    if not path.exists():
        raise DataError(f"data.path = {path}: no such file or folder; check the path (it is relative to {Path.cwd()})")
    if not path.is_dir() or (path / "dataset_dict.json").exists() or (path / "dataset_info.json").exists():
        return path
    train = [path / f"train{suffix}" for suffix in READERS if (path / f"train{suffix}").exists()]
    if len(train) != 1:
        found = " and ".join(file.name for file in train) or "no train file"
        raise DataError(
            f"data.path = {path}: the folder has {found}; give one train file ({', '.join(READERS)}) "
            "as data.path, or a folder written by datasets' save_to_disk"
        )
    return train[0]


def load_saved(path: Path) -> Any:
    """What ``datasets`` saved in this folder."""
    import datasets

    try:
        return datasets.load_from_disk(str(path))
    except Exception as error:  # whatever a damaged folder provokes in datasets and pyarrow
        raise DataError(f"data.path = {path}: cannot be read as a saved data set ({error}); save it again") from error


def load_hub(config: DataConfig) -> Any:
    """``data.name`` from the hub, or from a cache prepared before."""
    import datasets
    import huggingface_hub

    with offline_unless_reachable(huggingface_hub.constants, datasets.config):
        try:
            return datasets.load_dataset(config.name, config.subset)
        except Exception as error:  # dozens of kinds: network, rights, name, subset, files
            raise DataError(
                f"data.name = {hub_name(config)}: cannot be loaded ({error}); give a local copy with "
                "data.path=FILE, or leave data.name out for the embedded sentences; a cache prepared on a "
                "machine with network works here with HF_HUB_OFFLINE=1"
            ) from error


def hub_name(config: DataConfig) -> str:
    """ "nyu-mll/glue/sst2"."""
    return f"{config.name}/{config.subset}" if config.subset else str(config.name)


def training_split(loaded: Any, source: str) -> Any:
    """Of a ``DatasetDict``; a single ``Dataset`` is one."""
    splits = loaded if isinstance(loaded, dict) else {"train": loaded}
    if "train" not in splits:
        raise DataError(f"{source}: no train split; it has {', '.join(splits)}")
    return splits["train"]
