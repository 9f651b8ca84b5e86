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

from ddpsched.data.config import DataConfig
from ddpsched.data.hub import offline_unless_reachable
from ddpsched.data.table_files import READERS, Chunk, Mine, Wanted, columns_to_read, read_chunks, sliced, table_columns
from ddpsched.errors import DataError
from ddpsched.regular_file import check_regular

NUMBERS = (".npy", ".txt")
DEV_NAMES = ("dev", "validation", "val")


@dataclass(frozen=True)
class RowSource:
    """Rows that can be read chunk by chunk.

    ``name`` is the data set's, for messages; ``label`` also names the split, if there are several; ``short`` is a name
    without this machine's folders. ``fingerprint()`` identifies the data: a hash of a file's bytes, or the fingerprint
    that ``datasets`` gives a set. ``path``: of a file of rows. ``chunks(wanted, size, mine)``: as
    :func:`ddpsched.data.table_files.read_chunks`.
    """

    name: str
    label: str
    short: str
    fingerprint: Callable[[], str]
    chunks: Callable[[Wanted | None, int, Mine], Iterator[Chunk]]
    path: Path | None = None


def training_rows(config: DataConfig) -> RowSource | None:
    """Return the training split that ``config`` names; None for the embedded sentences, which have no source."""
    return stored_splits(config)[0] if config.path or config.name else None


def stored_splits(config: DataConfig) -> tuple[RowSource, RowSource | None]:
    """Return the training split that ``path`` or ``name`` gives, and the dev split beside it.

    Raises DataError where there is none, or it cannot be opened.
    """
    if config.path:
        path = locate(Path(config.path).expanduser())
        if not path.is_dir():
            beside = [path.with_name(name + path.suffix) for name in DEV_NAMES if path.stem == "train"]
            return file_rows(path), next((file_rows(file) for file in beside if file.exists()), None)
        loaded, name, short = load_saved(path), str(path), path.name
    else:
        assert config.name
        name = short = f"{config.name}/{config.subset}" if config.subset else config.name
        loaded = _load_hub(config, name)
    splits = loaded if isinstance(loaded, dict) else {"train": loaded}
    if "train" not in splits:
        raise DataError(f"{name}: no train split; it has {', '.join(splits)}")
    dev = next((_split_rows(splits[key], name, key, short) for key in DEV_NAMES if key in splits), None)
    return _split_rows(splits["train"], name, "train", short), dev


def file_rows(path: Path) -> RowSource:
    """Return the rows of a TSV, CSV, JSON-lines or Parquet file."""

    def fingerprint() -> str:
        with path.open("rb") as file:
            return f"file {hashlib.file_digest(file, lambda: hashlib.blake2b(digest_size=16)).hexdigest()}"

    return RowSource(str(path), str(path), path.name, fingerprint, partial(read_chunks, path), path)


def number_rows(path: Path) -> RowSource:
    """Return the rows of a file that :func:`read_numbers` reads, as one column "value".

    Raises DataError where it holds anything but one number a sample.
    """
    values = read_numbers(path)
    if values.ndim != 1 or values.dtype.kind not in ("U" if path.suffix.lower() == ".txt" else "iuf"):
        raise DataError(f"{path}: not a flat array of numbers; give one number a sample")

    def chunks(wanted: Wanted | None, size: int, mine: Mine) -> Iterator[Chunk]:
        return sliced(len(values), lambda rows: {"value": values[rows].tolist()}, wanted, size, mine)

    return replace(file_rows(path), chunks=chunks)


def read_numbers(path: Path) -> np.ndarray:
    """Return the array of a ``.npy`` file, mapped, or the words of a ``.txt`` file.

    Raises DataError where there is no such file, or it is not what its suffix says.
    """
    try:
        check_regular(path)
        if path.suffix.lower() == ".txt":
            return np.array(path.read_text(encoding="utf-8-sig").split())
        values = np.load(path, mmap_mode="r", allow_pickle=False)
        if not isinstance(values, np.ndarray):
            raise ValueError("several arrays in one file")
    except FileNotFoundError:
        raise DataError(f"{path}: no such file; check the path (it is relative to {Path.cwd()})") from None
    except UnicodeDecodeError as error:
        raise DataError(f"{path}: not UTF-8 text ({error}); give one number a line") from None
    except OSError as error:
        raise DataError(f"{path}: cannot be read ({error.strerror or error}); check the file and its rights") from None
    except (ValueError, EOFError) as error:
        raise DataError(f"{path}: not an array of numbers ({error}); write it with numpy.save") from None
    return values


def _split_rows(split: Any, name: str, key: str, short: str) -> RowSource:
    """Return the rows of a split that ``datasets`` loaded, which maps its files."""
    label = f"{name}, {key}"

    def chunks(wanted: Wanted | None, size: int, mine: Mine) -> Iterator[Chunk]:
        names = columns_to_read(label, split.column_names, wanted)
        table = split.select_columns(names).with_format("arrow")
        return sliced(len(split), lambda rows: table_columns(table[rows]), wanted, size, mine)

    return RowSource(name, label, short, lambda: f"datasets {split._fingerprint} of {len(split)} rows", chunks)


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


def _load_hub(config: DataConfig, name: str) -> Any:
    """Return the data set ``data.name`` from the hub or its cache; DataError where neither has it."""
    import datasets
    import huggingface_hub

    with offline_unless_reachable(huggingface_hub.constants, datasets.config):
        try:
            return datasets.load_dataset(config.name, config.subset)
        except Exception as error:  # dozens of kinds: network, permissions, name, subset, files
            raise DataError(
                f"data.name = {name}: cannot be loaded ({error}); give a local copy with data.path=FILE, or leave "
                "data.name out for the embedded sentences; a cache prepared on a machine with network works here with "
                "HF_HUB_OFFLINE=1"
            ) from error
