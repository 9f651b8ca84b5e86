"""Ids of samples as text for JSON: each in as many bits as the largest needs, all of them in base64.

A list of numbers takes 9 to 20 bytes an id in a file. Ids that wait are drawn at random from the data, so that little
can be saved beyond log2(N) bits each: of a million samples, an id takes 27 bits here, a third of them base64's.
"""

from base64 import b64decode, b64encode
from collections.abc import Mapping, Sequence
from itertools import accumulate
from typing import Any

import numpy as np
import numpy.typing as npt

Ids = npt.NDArray[np.int64]
MOST_BITS = 63
KEYS = {"sizes", "bits", "ids"}


def pack(windows: Sequence[Ids]) -> dict[str, Any]:
    """Return ids of 0 or more, window by window, as ``unpack`` reads them.

    >>> pack([np.array([5, 0]), np.array([7])])
    {'sizes': [2, 1], 'bits': 3, 'ids': 'xQE='}
    """
    ids = np.concatenate([np.empty(0, dtype=np.int64), *windows])
    bits = max(1, int(ids.max(initial=0)).bit_length())
    table = (ids[:, None] >> np.arange(bits)) & 1
    packed = np.packbits(table.astype(np.uint8).ravel(), bitorder="little")
    return {"sizes": [len(each) for each in windows], "bits": bits, "ids": b64encode(packed.tobytes()).decode("ascii")}


def unpack(value: Mapping[str, Any]) -> list[Ids]:
    """Return the windows that were packed. Raises ValueError for anything that ``pack`` does not return.

    >>> [ids.tolist() for ids in unpack({"sizes": [2, 1], "bits": 3, "ids": "xQE="})]
    [[5, 0], [7]]
    """
    if set(value) != KEYS:
        raise ValueError(f"packed ids have the keys {sorted(KEYS)}, here {sorted(map(str, value))}")
    sizes, bits, text = value["sizes"], value["bits"], value["ids"]
    if not isinstance(sizes, list) or not all(type(size) is int and size >= 0 for size in sizes):
        raise ValueError("sizes needs a list of integers of 0 or more")
    if type(bits) is not int or not 1 <= bits <= MOST_BITS:
        raise ValueError(f"bits needs an integer from 1 to {MOST_BITS}")
    if not isinstance(text, str):
        raise ValueError("ids needs a text in base64")
    data = b64decode(text, validate=True) if text.isascii() else b""  # binascii's error is a ValueError
    count = sum(sizes)
    if len(data) != -(-count * bits // 8) or b64encode(data).decode("ascii") != text:
        raise ValueError(f"ids needs {count} numbers of {bits} bits in base64")
    table = np.unpackbits(np.frombuffer(data, dtype=np.uint8), bitorder="little")
    if table[count * bits :].any():
        raise ValueError("ids has bits behind its last number")
    ids = table[: count * bits].reshape(count, bits).astype(np.int64) @ (np.int64(1) << np.arange(bits, dtype=np.int64))
    return [ids[end - size : end] for size, end in zip(sizes, accumulate(sizes), strict=True)]
