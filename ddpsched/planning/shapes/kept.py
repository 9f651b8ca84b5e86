"""Menus that were searched before, kept on disk: a search takes seconds, and policy auto asks for several."""

from hashlib import blake2b
from pathlib import Path

import numpy as np
from pydantic import TypeAdapter, ValidationError

from ddpsched.costs.shape_menu import Shape
from ddpsched.costs.step_times import kept_folder
from ddpsched.data.lengths import Lengths
from ddpsched.environment import versions
from ddpsched.planning.plan_spec import PlanSpec
from ddpsched.planning.shapes.choose import choose_shapes
from ddpsched.records import write_json

SEARCH = 1  # to be raised where the search finds other menus than before
MENU = TypeAdapter(tuple[Shape, ...])


def kept_shapes(spec: PlanSpec, lengths: Lengths, most: int) -> tuple[Shape, ...]:
    """Return what :func:`choose_shapes` does, searched once for equal arguments; raises what that raises."""
    path = _file(spec, lengths, most)
    try:
        return MENU.validate_json(path.read_bytes())
    except (OSError, ValidationError):  # absent or damaged: it is searched again
        shapes = choose_shapes(spec, lengths, most)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_json(path, shapes, indent=None)
    except OSError:  # a full disk or a folder of others: later runs search again
        return shapes
    return shapes


def _file(spec: PlanSpec, lengths: Lengths, most: int) -> Path:
    """Return the file of a menu, which is named by all that it follows from; the first epoch's order is part of it."""
    numbers = (
        spec.world_size, spec.global_batch, spec.seed, spec.pad_to, spec.max_length, spec.last, spec.batch_ranks, most,
    )  # fmt: skip
    known = f"{spec.policy!r} {spec.cost!r} {spec.caps!r} {numbers} {SEARCH} {versions()['ddpsched']}"
    found = blake2b(known.encode(), digest_size=12)
    ids = spec.epoch_order(lengths, 0)
    found.update(np.ascontiguousarray(lengths.lengths(ids)).tobytes())
    return kept_folder() / "menus" / f"{found.hexdigest()}.json"
