"""Prompts and texts of very unequal lengths in a file, with the tokenizer for their words."""

import json
import os
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np

from ddpsched.data.embedded.sentences import compose, embedded_tokenizer


def write_prompted(folder: Path, size: int = 64, seed: int = 0) -> dict[str, Any]:
    """Write the files, unless they exist, and return their [data] keys.

    Half of the prompts are short with long texts, the others the reverse. Column "group" has three rows or so a value.
    Several ranks may request the same folder.
    """
    keys = {"path": str(folder / "train.jsonl"), "prompt": "question", "text": "answer", "tokenizer": str(folder)}
    if folder.exists():
        return keys
    texts = iter(sorted(compose(2 * size, seed)[0], key=len))
    short, long = [next(texts) for _ in range(size)], list(texts)
    rng = np.random.default_rng(seed)
    pairs = [(a, b) if i % 2 else (b, a) for i, (a, b) in enumerate(zip(short, rng.permutation(long), strict=True))]
    aside = folder.with_name(f"{folder.name}-{os.getpid()}")
    aside.mkdir(parents=True)
    rows = [
        {"question": question, "answer": str(answer), "group": i % 21} for i, (question, answer) in enumerate(pairs)
    ]
    lines = list(map(json.dumps, rows))
    (aside / "train.jsonl").write_text("".join(f"{line}\n" for line in rng.permutation(lines)), encoding="utf-8")
    embedded_tokenizer().save(str(aside / "tokenizer.json"))
    with suppress(OSError):  # another rank was faster, with the same files
        aside.rename(folder)
    return keys
