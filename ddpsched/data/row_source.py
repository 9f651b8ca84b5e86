"""The rows of a data set where they are stored (a file, a folder saved by ``datasets``, or the hub), read in chunks.

A row's number, from 0, is its place in the training split. Rows that are cut off or held out change no number.
"""

import hashlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from ddpsched.data.config import DataConfig
from ddpsched.data.hub import offline_unless_reachable
from ddpsched.data.table_files import READERS, Chunk, Mine, Wanted, read_chunks, require_columns, table_chunk
from ddpsched.errors import DataError

NUMBERS = (".npy", ".txt")


@dataclass(frozen=True)
class RowSource:
    """Rows that can be read chunk by chunk.

    ``name`` is for messages; ``short`` is a name without this machine's folders. ``fingerprint()`` identifies the data:
    a hash of a file's bytes, or the fingerprint that ``datasets`` gives a set. ``chunks(wanted, size, mine)``: as
    :func:`ddpsched.data.table_files.read_chunks`.
    """

    name: str
    short: str
    fingerprint: Callable[[], str]
    chunks: Callable[[Wanted | None, int, Mine], Iterator[Chunk]]


def training_rows(config: DataConfig) -> RowSource | None:
    """Return the training split that ``config`` names; None for the embedded sentences, which have no source."""
    if config.path:
        path = locate(Path(config.path).expanduser())
        return split_rows(load_saved(path), str(path), path.name) if path.is_dir() else file_rows(path)
    if config.name:
        return split_rows(load_hub(config), hub_name(config))
    return None


def file_rows(path: Path) -> RowSource:
    """Return the rows of a TSV, CSV, JSON-lines or Parquet file."""

    def fingerprint() -> str:
        with path.open("rb") as file:
            return f"file {hashlib.file_digest(file, lambda: hashlib.blake2b(digest_size=16)).hexdigest()}"

    return RowSource(str(path), path.name, fingerprint, partial(read_chunks, path))


def number_rows(path: Path) -> RowSource:
    """Return the rows of a file that :func:`read_numbers` reads, as one column "value"."""
    values = read_numbers(path)
    if values.ndim != 1 or values.dtype.kind not in ("U" if path.suffix.lower() == ".txt" else "iuf"):
        raise DataError(f"{path}: not a flat array of numbers; give one number a sample")

    def chunks(wanted: Wanted | None, size: int, mine: Mine) -> Iterator[Chunk]:
        for number, first in enumerate(range(0, len(values), size)):
            part = values[first : first + size]
            column = part.tolist() if mine(number) else []
            yield Chunk(number, first, len(part), {"value": column}, (first + len(part)) / len(values))

    return replace(file_rows(path), chunks=chunks)


def read_numbers(path: Path) -> npt.NDArray[Any]:
    """Return the array of a ``.npy`` file, mapped, or the words of a ``.txt`` file.

    Raises DataError where there is no such file, or it is not what its suffix says.
    """
    try:
        if path.suffix.lower() == ".txt":
            return np.array(path.read_text(encoding="utf-8").split())
        values = np.load(path, mmap_mode="r", allow_pickle=False)
        if not isinstance(values, np.ndarray):
            raise ValueError("several arrays in one file")
    except FileNotFoundError:
        raise DataError(f"{path}: no such file; check the path (it is relative to {Path.cwd()})") from None
    except UnicodeDecodeError as error:
        raise DataError(f"{path}: not UTF-8 text ({error}); give one number a line") from None
    except (ValueError, EOFError) as error:
        raise DataError(f"{path}: not an array of numbers ({error}); write it with numpy.save") from None
    return values


def split_rows(loaded: Any, name: str, short: str = "") -> RowSource:
    """Return the training rows of what ``datasets`` loaded, which maps its files."""
    split = training_split(loaded, name)

    def chunks(wanted: Wanted | None, size: int, mine: Mine) -> Iterator[Chunk]:
        names = split.column_names
        if wanted is not None:
            require_columns(name, names, wanted)
            names = list(dict.fromkeys(wanted.values()))
        rows = split.select_columns(names).with_format("arrow")
        for number, first in enumerate(range(0, len(split), size)):
            yield table_chunk(rows[first : first + size], number, size, len(split), mine)

    return RowSource(name, short or name, lambda: f"datasets {split._fingerprint} of {len(split)} rows", chunks)


def locate(path: Path) -> Path:
    """Return the training file, or the saved folder, that ``data.path`` names; DataError where there is none."""
    if not path.exists():
        raise DataError(f"data.path = {path}: no such file or folder; check the path (it is relative to {Path.cwd()})")
    if not path.is_dir() or (path / "dataset_dict.json").exists() or (path / "dataset_info.json").exists():
        return path
    train = [path / f"train{suffix}" for suffix in READERS if (path / f"train{suffix}").exists()]
    if len(train) != 1:
        names = " and ".join(file.name for file in train) or "no train file"
        raise DataError(
            f"data.path = {path}: the folder has {names}; give one train file ({', '.join(READERS)}) "
            "as data.path, or a folder written by datasets' save_to_disk"
        )
    return train[0]


def load_saved(path: Path) -> Any:
    """Return what ``datasets`` saved in a folder; DataError where it cannot be read."""
    import datasets

    try:
        return datasets.load_from_disk(str(path))
    except Exception as error:  # a damaged folder raises many kinds in datasets and pyarrow
        raise DataError(f"data.path = {path}: cannot be read as a saved data set ({error}); save it again") from error


def load_hub(config: DataConfig) -> Any:
    """Return the data set ``data.name`` from the hub or its cache; DataError where neither has it."""
    import datasets
    import huggingface_hub

    with offline_unless_reachable(huggingface_hub.constants, datasets.config):
        try:
            return datasets.load_dataset(config.name, config.subset)
        except Exception as error:  # dozens of kinds: network, permissions, name, subset, files
            raise DataError(
                f"data.name = {hub_name(config)}: cannot be loaded ({error}); give a local copy with "
                "data.path=FILE, or leave data.name out for the embedded sentences; a cache prepared on a "
                "machine with network works here with HF_HUB_OFFLINE=1"
            ) from error


def hub_name(config: DataConfig) -> str:
    """Return the name and the subset, as in "nyu-mll/glue/sst2"."""
    return f"{config.name}/{config.subset}" if config.subset else str(config.name)


def training_split(loaded: Any, source: str) -> Any:
    """Return the train split of a ``DatasetDict``, or a single ``Dataset`` itself; DataError where there is none."""
    splits = loaded if isinstance(loaded, dict) else {"train": loaded}
    if "train" not in splits:
        raise DataError(f"{source}: no train split; it has {', '.join(splits)}")
    return splits["train"]
