"""The laws of lengths that the package ships, and lengths drawn from them."""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import cache
from importlib.resources import files

import numpy as np
import numpy.typing as npt

from ddpsched.errors import ConfigError

MOST_DRAWN = 10**8  # samples: a few GB while they are drawn, and the tables hold no more than a millionth of the tail


@dataclass(frozen=True)
class LengthLaw:
    """A distribution of lengths as its quantiles: a share ``quantiles[i]`` of samples has at most ``tokens[i]`` tokens.

    ``kind``: "measured" or "synthetic". ``source``: where the quantiles are from. ``caveat``: what the law is not.
    ``quantiles``, ``tokens``: (461,), both rising, from quantile 0 to 1; at least 1 token.
    """

    name: str
    kind: str
    source: str
    caveat: str
    quantiles: npt.NDArray[np.float64]
    tokens: npt.NDArray[np.int64]

    @property
    def title(self) -> str:
        """The law's name, and whether it was measured."""
        return f"law {self.name}, {self.kind}"

    def __str__(self) -> str:
        return f"{self.title}: {self.source}; {self.caveat}"


@cache
def length_laws() -> dict[str, LengthLaw]:
    """Return the laws by name.

    >>> [f"{name}, {law.kind}" for name, law in length_laws().items()]
    ['encyclopedia, measured', 'chat, measured', 'code, measured', 'rollouts, synthetic']
    """
    tables = json.loads(files("ddpsched.data.laws").joinpath("quantiles.json").read_text(encoding="utf-8"))
    quantiles = np.array(tables.pop("quantiles"))
    laws = {
        name: LengthLaw(**{**table, "name": name, "quantiles": quantiles, "tokens": np.array(table["tokens"])})
        for name, table in tables.items()
    }
    for array in (quantiles, *(law.tokens for law in laws.values())):
        array.setflags(write=False)  # one cached value, many callers
    return laws


def law_named(name: str) -> LengthLaw:
    """Return a law. Raises ConfigError where there is none of this name."""
    laws = length_laws()
    if not isinstance(name, str) or name not in laws:
        raise ConfigError(f"law {name!r} is none of: {', '.join(laws)}")
    return laws[name]


def law_lengths(name: str, n: int, seed: int = 0) -> npt.NDArray[np.int64]:
    """Return lengths drawn independently from a law, to plan with where there is no data set yet; int64 (n,).

    ``name``: "encyclopedia", "chat", "code" or "rollouts"; ``report/notes/planning.md`` says where each is from and
    what it is not. ``n``: samples, at most 100 million. ``seed``: the same gives the same lengths, and a larger ``n``
    more of them. Each is round(Q(u)), where Q interpolates the law's quantiles and u is uniform in [0, 1).

    Raises ConfigError for an unknown law, and for numbers out of range.

    >>> law_lengths("encyclopedia", 5)
    array([288, 235, 441, 165, 107])
    """
    law = law_named(name)
    for argument, value, least, most in (("n", n, 1, MOST_DRAWN), ("seed", seed, 0, 2**32 - 1)):
        if isinstance(value, bool) or not isinstance(value, int | np.integer) or not least <= value <= most:
            raise ConfigError(f"{argument} = {value!r}: give a whole number from {least} to {most:,}")
    uniform = np.random.default_rng([seed, 0, 1]).random(n)  # epoch orders have [seed, epoch], and are independent
    return np.rint(np.interp(uniform, law.quantiles, law.tokens)).astype(np.int64)
