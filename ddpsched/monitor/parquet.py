"""The records of a run that has ended, from its records.parquet, which may be all that is left of them."""

from pathlib import Path

import numpy as np

from ddpsched.errors import AGAIN, DataError
from ddpsched.monitor.summary import COLUMNS, Arrays
from ddpsched.regular_file import check_regular


def read_parquet(path: Path) -> Arrays | None:
    """Return the columns of all records, None without any. Raises DataError, with what to do, for a damaged file."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    check_regular(path)
    try:
        table = pq.read_table(path, page_checksum_verification=True)
        if missing := [name for name in COLUMNS[:7] if name not in table.column_names]:
            raise DataError(f"{path}: records lack {', '.join(missing)}; {AGAIN}")
        absent = np.full(len(table), np.nan)
        arrays = {
            name: table[name].to_numpy().astype(float) if name in table.column_names else absent for name in COLUMNS
        }
        has_loss = "loss" in table.column_names
        there = table["loss"].is_valid().to_numpy() if has_loss else np.zeros(len(table), dtype=bool)
    except (pa.ArrowException, OSError, ValueError, TypeError) as error:
        if isinstance(error, DataError):
            raise
        raise DataError(f"{path}: cannot be read ({str(error)[:200]}); {AGAIN}") from None
    return {**arrays, "loss_there": there} if len(table) else None
