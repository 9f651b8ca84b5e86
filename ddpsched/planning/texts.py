"""Where texts and labels come from: a file, a folder, the hub, or the embedded sentences.

Whatever the source, ``load_dataset`` gives the same checked value: every text
says something, every label is an integer from 0 to ``num_labels - 1``.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from ddpsched.config import DataConfig
from ddpsched.errors import DataError
from ddpsched.planning.embedded import compose
from ddpsched.planning.hub import offline_unless_reachable
from ddpsched.planning.tables import READERS, Columns, read_columns, require_columns

DEV_NAMES = ("dev", "validation", "val")


@dataclass(frozen=True, eq=False)
class Split:
    """N texts and their labels, int64 ``(N,)``."""

    texts: Sequence[str]
    labels: npt.NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.texts)


@dataclass(frozen=True, eq=False)
class Dataset:
    """The training split, one for evaluation where there is one, and a line that says where both come from."""

    train: Split
    dev: Split | None
    source: str


def load_dataset(config: DataConfig, seed: int) -> Dataset:
    """The data that ``config`` names; ``seed`` matters to the embedded sentences alone.

    ``path`` is a file, or a folder with a train file or saved by ``datasets``;
    ``name`` is a data set on the hub; neither means the embedded sentences.
    ``config.dev`` names a file for evaluation in place of the source's own.

    DataError names the file, the row (1 is the first below the header), the
    column and the value that cannot be used, and what to do.
    """
    if config.path:
        dataset = _from_path(Path(config.path).expanduser(), config)
    elif config.name:
        dataset = _from_hub(config.name, config)
    else:
        dataset = _embedded(config.size, seed)
    if config.dev:
        file = Path(config.dev).expanduser()
        dataset = Dataset(dataset.train, _read(file, config), f"{dataset.source}, dev {file}")
    if len(dataset.train) < 2:
        raise DataError(f"{dataset.source}: {len(dataset.train)} row; training needs at least 2")
    return dataset


def _embedded(size: int, seed: int) -> Dataset:
    train_seed, dev_seed = np.random.SeedSequence(seed).generate_state(2).tolist()
    train, dev = Split(*compose(size, train_seed)), Split(*compose(max(200, size // 8), dev_seed))
    return Dataset(train, dev, f"embedded sentences, {len(train)} train and {len(dev)} dev, seed {seed}")


def _from_path(path: Path, config: DataConfig) -> Dataset:
    if not path.exists():
        raise DataError(f"data.path = {path}: no such file or folder; check the path (it is relative to {Path.cwd()})")
    if not path.is_dir():
        dev = _beside(path) if path.stem == "train" and not config.dev else None
        return Dataset(_read(path, config), _read(dev, config) if dev else None, str(path))
    if (path / "dataset_dict.json").exists() or (path / "dataset_info.json").exists():
        return _from_disk(path, config)
    train = [path / f"train{suffix}" for suffix in READERS if (path / f"train{suffix}").exists()]
    if len(train) != 1:
        found = " and ".join(file.name for file in train) or "no train file"
        raise DataError(
            f"data.path = {path}: the folder has {found}; give one train file ({', '.join(READERS)}) "
            "as data.path, or a folder written by datasets' save_to_disk"
        )
    return _from_path(train[0], config)


def _beside(train: Path) -> Path | None:
    siblings = (train.with_name(name + train.suffix) for name in DEV_NAMES)
    return next((file for file in siblings if file.exists()), None)


def _read(file: Path, config: DataConfig) -> Split:
    return _checked(read_columns(file, _wanted(config)), config, str(file))


def _from_disk(path: Path, config: DataConfig) -> Dataset:
    import datasets

    try:
        loaded = datasets.load_from_disk(str(path))
    except Exception as error:  # whatever a damaged folder provokes in datasets and pyarrow
        raise DataError(f"data.path = {path}: cannot be read as a saved data set ({error}); save it again") from error
    return _from_splits(loaded, config, str(path))


def _from_hub(name: str, config: DataConfig) -> Dataset:
    import datasets
    import huggingface_hub

    source = f"{name}/{config.subset}" if config.subset else name
    with offline_unless_reachable(huggingface_hub.constants, datasets.config):
        try:
            loaded = datasets.load_dataset(name, config.subset)
        except Exception as error:  # dozens of kinds: network, rights, name, subset, files
            raise DataError(
                f"data.name = {source}: cannot be loaded ({error}); give a local copy with "
                "data.path=FILE, or leave data.name out for the embedded sentences; a cache prepared on a "
                "machine with network works here with HF_HUB_OFFLINE=1"
            ) from error
    return _from_splits(loaded, config, source)


def _from_splits(loaded: Any, config: DataConfig, source: str) -> Dataset:
    """``loaded``: a ``datasets.Dataset``, or a ``DatasetDict`` with a train split."""
    splits = loaded if isinstance(loaded, dict) else {"train": loaded}
    if "train" not in splits:
        raise DataError(f"{source}: no train split; it has {', '.join(splits)}")
    dev = next((name for name in DEV_NAMES if name in splits and not config.dev), None)
    train, *rest = (_split(splits[name], config, f"{source}, {name}") for name in ("train", dev) if name)
    return Dataset(train, rest[0] if rest else None, source)


def _split(rows: Any, config: DataConfig, source: str) -> Split:
    wanted = _wanted(config)
    require_columns(source, rows.column_names, wanted)
    table = rows.with_format("arrow")[:]
    return _checked({name: table.column(name).to_pylist() for name in wanted.values()}, config, source)


def _wanted(config: DataConfig) -> dict[str, str]:
    return {"data.text": config.text, "data.label": config.label}


def _checked(columns: Columns, config: DataConfig, source: str) -> Split:
    """The columns as a ``Split``; DataError where a text or a label cannot be used."""
    texts, labels = columns[config.text], columns[config.label]
    if not texts:
        raise DataError(f"{source}: no rows; give at least 2 for training, 1 for evaluation")
    _refuse(source, config.text, texts, _is_text, "is null, blank or no valid text", "write a text")
    allowed = range(config.num_labels)
    not_a_label = f"is not an integer from 0 to {allowed[-1]} (data.num_labels = {config.num_labels})"
    _refuse(source, config.label, labels, lambda label: _integer(label) in allowed, not_a_label, "correct the label")
    return Split(texts, np.array([_integer(label) for label in labels], dtype=np.int64))


def _refuse(
    source: str, column: str, values: Sequence[Any], fits: Callable[[Any], bool], fault: str, remedy: str
) -> None:
    bad = [row for row, value in enumerate(values, 1) if not fits(value)]
    if bad:
        rows = ", ".join(map(str, bad[:5])) + (", ..." if len(bad) > 5 else "")
        raise DataError(
            f"{source}, row {bad[0]}, column {column!r}: {values[bad[0] - 1]!r:.80} {fault}; "
            f"{len(bad)} of {len(values)} rows are like this ({rows}): {remedy}, or remove the rows"
        )


def _is_text(text: Any) -> bool:
    return isinstance(text, str) and bool(text.strip()) and text.encode(errors="ignore").decode() == text


def _integer(label: Any) -> int | None:
    """``label`` as an integer; a TSV or CSV has it as text."""
    if isinstance(label, str):
        try:
            return int(label)
        except ValueError:
            return None
    return label if isinstance(label, int) and not isinstance(label, bool) else None
