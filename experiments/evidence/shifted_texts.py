"""Texts whose lengths change their law in mid-run, for shift.toml: SST-2's sentences, GSM8K's answers, SST-2's again.

    python -m experiments.evidence.shifted_texts DIR --sst2 DATA/sst2/train.tsv --gsm8k DATA/gsm8k/train.jsonl
        [--samples 640]

``DIR/train.jsonl`` then holds so many samples of each of the three parts. An answer's label is whether its last digit
is even, so that there is something to learn.
"""

import argparse
import csv
import sys
from collections.abc import Sequence
from pathlib import Path

import pandas as pd

from ddpsched.cli import guarded
from ddpsched.errors import DataError


def shifted(sst2: Path, gsm8k: Path, samples: int) -> pd.DataFrame:
    """Return the columns sentence and label of the three parts, one after another.

    Raises DataError for a file that cannot be read, lacks a column, or has too few rows.
    """
    try:
        sentences = pd.read_csv(sst2, sep="\t", quoting=csv.QUOTE_NONE, nrows=2 * samples)[["sentence", "label"]]
        answers = pd.read_json(gsm8k, lines=True, nrows=samples)[["question", "answer"]]
    except (OSError, ValueError, KeyError) as error:
        raise DataError(f"{sst2} or {gsm8k}: {error}; give the files of SST-2 (tab-separated) and GSM8K") from None
    if len(sentences) < 2 * samples or len(answers) < samples:
        raise DataError(
            f"{len(sentences)} rows of {sst2} and {len(answers)} of {gsm8k}: --samples {samples} needs "
            f"{2 * samples} and {samples}"
        )
    last = answers["answer"].str.extract(r"(\d)\D*$")[0].astype(int)
    middle = pd.DataFrame({"sentence": answers["question"] + " " + answers["answer"], "label": (last % 2 == 0) * 1})
    return pd.concat([sentences[:samples], middle, sentences[samples:]], ignore_index=True)


def main(words: Sequence[str]) -> int:
    """Write the file, and print where it is; return the exit code."""
    parser = argparse.ArgumentParser(
        prog="python -m experiments.evidence.shifted_texts",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("folder", type=Path, metavar="DIR")
    parser.add_argument("--sst2", type=Path, required=True)
    parser.add_argument("--gsm8k", type=Path, required=True)
    parser.add_argument("--samples", type=int, default=640)
    given = parser.parse_args(words)

    def body() -> None:
        if given.samples < 1:
            raise DataError(f"--samples {given.samples}: at least 1")
        table = shifted(given.sst2, given.gsm8k, given.samples)
        given.folder.mkdir(parents=True, exist_ok=True)
        table.to_json(given.folder / "train.jsonl", orient="records", lines=True)
        print(f"{given.folder / 'train.jsonl'}: {len(table):,} samples")

    return guarded(body)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
