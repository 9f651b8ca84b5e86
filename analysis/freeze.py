"""Studies frozen in two files each, small enough to be committed, from which every number can be computed anew.

    python -m analysis.freeze outputs/STUDY [FOLDER]         by default into report/results/studies/STUDY

``records.parquet`` holds a row for each rank and step of each run, ``runs.json`` the configs, environments and
evaluations. A frozen study is read wherever the folder of a study is.
"""

import argparse
import re
import shutil
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq

from analysis.load import Run, Study, load_study
from analysis.run_files import EVALUATION_COLUMNS, clean, read_records
from ddpsched.decode import decode_json
from ddpsched.errors import AGAIN, DataError, DdpschedError
from ddpsched.own_folder import refuse_special, remove
from ddpsched.records import RECORDS, write_json

RUNS = "runs.json"
FROZEN = Path("report/results/studies")
# of status.json; boot tells machines apart, whose names and processes are of no use to a reader
STATUS = ("state", "started", "finished", "wall_s", "boot", "about")
DIGITS = 7  # of seconds; clocks tell no more, and what is beyond them does not compress

# A path from the root or from folders above, but not the tail of a URL: the place of files on one
# machine, which belongs into nothing that is shared.
ABSOLUTE = re.compile(r"(?<![\w.:/-])(?:/|(?:\.\./)+)(?:[\w.+@-]+/)*?((?:[\w.+@-]+/)[\w.+@-]+)(?![\w.+@/-])")


def freeze(study: Study, folder: Path) -> int:
    """Write a study into a folder, whole or not at all; return the bytes that it takes.

    Raises DataError where something else than a frozen study is there, or where the earlier one cannot be removed,
    OSError where it cannot be written.
    """
    if folder.exists() and not (folder / RUNS).exists() and any(folder.iterdir()):
        raise DataError(f"{folder} holds other files than a frozen study; give another folder, or empty it")
    records = pd.concat([run.records.assign(run=run.name) for run in study.runs], ignore_index=True)
    records = records.dropna(axis=1, how="all")
    seconds = [str(name) for name in records if str(name).endswith("_s")]
    records[seconds] = records[seconds].round(DIGITS)
    runs = [
        {
            "name": run.name,
            "config": portable(run.config),
            "environment": portable(run.environment),
            "status": {name: run.status.get(name) for name in STATUS},
            "evaluations": run.evaluations.astype(object).where(run.evaluations.notna(), None).to_dict("records"),
        }
        for run in study.runs
    ]
    folder.parent.mkdir(parents=True, exist_ok=True)
    made = Path(tempfile.mkdtemp(dir=folder.parent, prefix=f".{folder.name}-"))
    try:
        table = pa.Table.from_pandas(records, preserve_index=False)
        pq.write_table(table, made / RECORDS, compression="zstd", compression_level=19, write_page_checksum=True)
        write_json(made / RUNS, {"study": study.path.name, "left_out": portable(study.left_out), "runs": runs})
        made.chmod(0o755)
        _put_in_place(made, folder)
    finally:
        shutil.rmtree(made, ignore_errors=True)
    return sum(path.stat().st_size for path in folder.iterdir())


def _put_in_place(made: Path, folder: Path) -> None:
    """Rename ``made`` to ``folder``; what was there goes aside meanwhile, and comes back where that fails."""
    if not folder.exists():
        made.rename(folder)
        return
    aside = made.with_name(f"{made.name}-before")
    folder.rename(aside)
    try:
        made.rename(folder)
    except OSError:
        aside.rename(folder)
        raise
    remove(aside)
    if aside.exists():
        raise DataError(
            f"{folder} is frozen; {aside}, which it replaces, could not be removed whole: remove it by hand"
        )


def open_study(path: Path) -> Study:
    """Return a study from the folder of its runs, or from a frozen one. Raises DataError where neither is there."""
    return read_frozen(path) if (path / RUNS).exists() else load_study(path)


def read_frozen(folder: Path) -> Study:
    """Return the study that ``freeze`` wrote into a folder. Raises DataError where a file cannot be read."""
    refuse_special(folder)
    try:
        content = decode_json((folder / RUNS).read_bytes())
        rows = dict(list(read_records(folder).groupby("run")))
        runs = [_run(folder / one["name"], one, rows[one["name"]]) for one in content["runs"]]
        return Study(folder, tuple(runs), content["left_out"])
    except DataError as error:  # which has the remedy of a run
        raise DataError(f"{str(error).removesuffix(f'; {AGAIN}')}; freeze the study again") from None
    except OSError as error:
        raise DataError(f"{folder / RUNS}: cannot be read ({error.strerror}); freeze the study again") from None
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise DataError(f"{folder}: no frozen study ({error!r}); freeze the study again") from None


def _run(path: Path, content: dict[str, Any], rows: pd.DataFrame) -> Run:
    evaluations = pd.DataFrame(content["evaluations"]).reindex(columns=list(EVALUATION_COLUMNS)).astype("float64")
    config, environment, status = (content[name] for name in ("config", "environment", "status"))
    return Run(path, config, environment, status, clean(rows, path), evaluations)


def portable(value: Any) -> Any:
    """Return the value with paths that lead outside cut to their last two parts.

    >>> portable({"data": "/data/sets/sst2/train.tsv, see https://gluebenchmark.com/tasks"})
    {'data': 'sst2/train.tsv, see https://gluebenchmark.com/tasks'}
    >>> portable("../../sets/sst2/dev.tsv and outputs/demo")
    'sst2/dev.tsv and outputs/demo'
    """
    if isinstance(value, dict):
        return {key: portable(item) for key, item in value.items()}
    if isinstance(value, list):
        return [portable(item) for item in value]
    return ABSOLUTE.sub(r"\1", value) if isinstance(value, str) else value


def main(arguments: Sequence[str] | None = None) -> int:
    """Freeze a study, and print what it holds; return the exit code."""
    parser = argparse.ArgumentParser(
        prog="python -m analysis.freeze", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("study", type=Path, help="a study's folder, outputs/STUDY")
    parser.add_argument("folder", type=Path, nargs="?", help=f"where to write ({FROZEN}/STUDY)")
    given = parser.parse_args(arguments)
    folder = given.folder or FROZEN / given.study.name
    try:
        study = load_study(given.study)
        size = freeze(study, folder)
    except (DdpschedError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    rows = sum(len(run.records) for run in study.runs)
    print(f"{folder}: {len(study.runs)} runs, {rows:,} rows, {size / 1e6:.2f} MB")
    for name, reason in study.left_out.items():
        print(f"left out: {name}: {reason}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
