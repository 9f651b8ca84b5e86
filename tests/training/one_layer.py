"""The built-in tiny models with one layer: tracing one for a shape takes a second of processor time for each layer."""

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial

import pytest

from ddpsched.training.model import GEOMETRIES


@contextmanager
def one_layer() -> Iterator[None]:
    """Let tiny models of this process have one layer; as a decorator, those of a rank."""
    with pytest.MonkeyPatch.context() as patch:
        for task, layers in (("classification", "n_layers"), ("causal_lm", "n_layer")):
            patch.setitem(GEOMETRIES[task], "tiny", partial(GEOMETRIES[task]["tiny"], **{layers: 1}))
        yield
