"""Damaged ordered files: bytes, and headers and footers that somebody changed and sealed anew."""

import json
from hashlib import blake2b
from pathlib import Path
from random import Random

import numpy as np

from ddpsched.config import parse
from ddpsched.data.lengths import KnownLengths
from ddpsched.data.order_file import MAGIC, About, OrderedFile, OrderedWriter
from ddpsched.exchange import LocalExchange
from ddpsched.planning.planner import plan_steps
from experiments.reliability.fuzz.mutate import any_value, at, changed, leaves, removed
from experiments.reliability.fuzz.outcome import AcceptedWrongly

ROWS = 50
LENGTHS = np.random.default_rng(1).integers(3, 128, ROWS)
ORDER = np.argsort(LENGTHS, kind="stable")
TYPES = ("|O", "<i4", "<f8", "|V8", "|S8", "<M8[s]", "<i8")
TAIL, DIGEST, HEAD = 8 + len(MAGIC), 16, 12  # bytes: of length and mark, of the digest, before a header's words


def write_order(path: Path) -> None:
    """Write an ordered file of samples by length."""
    about = About(("length",), "file 0123", "train.tsv", "tokens")
    writer = OrderedWriter(path, ROWS, [np.dtype("i8"), np.dtype("i8")], about)
    writer.begin()
    writer.finish(writer.write(0, [LENGTHS[ORDER], ORDER]))


def change_order(random: Random, path: Path) -> tuple[str, bool]:
    """Change the header or a value of the footer, with a digest that fits; return what, and whether it must refuse."""
    data = path.read_bytes()
    size = HEAD + int.from_bytes(data[8:HEAD], "little")
    begin = len(data) - TAIL - DIGEST - int.from_bytes(data[-TAIL : -len(MAGIC)], "little")
    header, rows, footer = data[:size], data[size:begin], json.loads(data[begin : -TAIL - DIGEST])
    spot = random.choice(list(leaves(footer)))
    key, must_refuse = ".".join(map(str, spot)), False
    if random.random() < 0.3:
        kind = random.choice(TYPES)
        header, key, must_refuse = header.replace(b"<i8", kind.encode()), f"header {kind}", kind == "|O"
    elif random.random() < 0.2:
        footer, key = removed(footer, spot), f"without {key}"
    else:
        new, old = any_value(random), at(footer, spot)
        footer, must_refuse = changed(footer, spot, new), spot[0] in ("metrics", "num_rows", "sums") and new != old
        key = f"{key} = {str(new)[:60]!r}"
    words = json.dumps(footer, default=str).encode()
    digest = blake2b(header + words, digest_size=DIGEST).digest()
    path.write_bytes(header + rows + words + digest + len(words).to_bytes(8, "little") + MAGIC)
    return f"{key}, sealed anew", must_refuse


def read_order(path: Path, exact: bool) -> None:
    """Read an ordered file as a run does: its rows, then an epoch planned in its order."""
    file = OrderedFile.open(path)
    ids = file.ids()
    if exact and not np.array_equal(ids, ORDER):
        raise AcceptedWrongly("another order than was written")
    values = {"steps": 3, "world_size": 2, "global_batch": 4, "policy": {"kind": "static"}}
    spec = parse({**values, "order": {"kind": "curriculum", "path": str(path)}}).plan_spec()
    for plan in plan_steps(spec, KnownLengths(LENGTHS), LocalExchange(2)):
        if not np.isin(plan.ids, np.arange(ROWS)).all():
            raise AcceptedWrongly("ids that are no samples")
