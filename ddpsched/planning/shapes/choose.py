"""The menu of shapes of a run: the one that is given, or the one that its policy asks for."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from ddpsched.costs.cost_model import Int
from ddpsched.costs.shape_menu import Shape
from ddpsched.data.lengths import KnownLengths, Lengths
from ddpsched.errors import ConfigError, InfeasibleError
from ddpsched.exchange import LocalExchange
from ddpsched.planning.plan_spec import PlanSpec
from ddpsched.planning.shapes.length_menu import length_menus
from ddpsched.planning.shapes.observed import Observed
from ddpsched.planning.steps.context import Context
from ddpsched.step_plan import Position


@dataclass(frozen=True)
class Menu:
    """``shapes``: what micro-batches are filled up to; () where they stay as they come.

    ``warm_up``: the shapes that are run before the first step. ``cover_steps``: the first steps, in which ranks meet
    the others. ``cover``: the shapes by which epochs are arranged, () where they are not: those of the ranks that a run
    began with, so that its order stays when it goes on with another number.
    """

    shapes: tuple[Shape, ...] = ()
    warm_up: tuple[Shape, ...] = ()
    cover_steps: int = 0
    cover: tuple[Shape, ...] = ()


NO_MENU = Menu()


def choose_shapes(spec: PlanSpec, lengths: Lengths, most: int) -> tuple[Shape, ...]:
    """Return at most ``most`` shapes, (rows, length) rising by length, on which this run's plans lose little.

    Equal arguments give equal menus, on every rank. Every micro-batch that the policy can make on the menu has a shape.
    Raises ConfigError where the policy plans on no menu, or needs more shapes.
    """
    if spec.pad_to:  # every sample then is as long as any
        lengths = KnownLengths(np.full(len(lengths), spec.pad_to))
    shapes = spec.policy.shapes(Context(spec, lengths, LocalExchange(spec.world_size), Position()), most)
    if len(shapes) > most:
        raise ConfigError(
            f"compile.shapes = {most}, but policy.kind = {spec.policy.kind!r} needs {len(shapes)}; raise compile.shapes"
        )
    return tuple(sorted(set(shapes), key=lambda shape: (shape[1], shape[0])))


def check_menu(spec: PlanSpec, shapes: Sequence[Shape], lengths: Int) -> None:
    """Raise ConfigError where no shape of a given menu holds the longest sample. ``lengths``: (N,).

    Raises InfeasibleError where none holds its micro-batch: plans that do not adapt to a menu would stop at its step.
    """
    lengths = np.maximum(lengths, spec.pad_to)
    most, longest = max(length for _, length in shapes), int(lengths.max())
    if longest > most:
        over, worst = int((lengths > most).sum()), int(lengths.argmax())
        raise ConfigError(
            f"compile.menu has shapes of up to {most} tokens, and {over} of {len(lengths)} samples are longer, the "
            f"longest, sample {worst} (from 0), of {longest}; add a shape of as many, lower data.max_length, or "
            "leave compile.menu out"
        )
    left = len(lengths) % spec.global_batch
    joined = left if spec.last == "join" and left < spec.world_size else 0
    rows = spec.policy.rows_of_longest(spec.world_size, min(spec.global_batch, len(lengths)) + joined)
    held = max(rows for rows, length in shapes if length >= longest)
    if rows > held:
        raise InfeasibleError(
            f"compile.menu has shapes of up to {held} rows for the longest sample, of {longest} tokens, and "
            f"policy.kind = {spec.policy.kind!r} gives its rank up to {rows}; add the shape [{rows}, {longest}], lower "
            "global_batch, or leave compile.menu out"
        )


def rows_at_worst(spec: PlanSpec, max_microbatches: int = 1) -> int:
    """Return the rows of a micro-batch where a step's samples are shared evenly: what a rank needs at worst."""
    size = spec.global_batch + (spec.world_size - 1 if spec.last == "join" else 0)
    return -(-size // (spec.world_size * max_microbatches))


def lengths_that_pad_least(observed: Observed, all_lengths: Int, most: int) -> list[int]:
    """Return at most ``most`` lengths for these micro-batches, the longest of which holds every sample.

    A token of padding costs as much in each row, so micro-batches weigh as many as they have samples.
    """
    longest = np.append(observed.longest, all_lengths.max())
    return length_menus(longest, np.append(observed.counts, 0), most).menus[-1]


def sample_steps(lengths: Int, size: int, most: int) -> Int:
    """Return up to ``most`` of an epoch's steps of ``size`` samples, spread evenly: (steps, size) lengths.

    ``lengths``: (N,), in the epoch's order; fewer than a step's are one step.
    """
    number = len(lengths) // size
    if not number:
        return lengths[None]
    steps = lengths[: number * size].reshape(number, size)
    return steps[np.linspace(0, number - 1, min(number, most)).astype(np.int64)]


def falling_steps(steps: Int) -> Int:
    """Return the steps with each one's lengths falling."""
    return np.ascontiguousarray(-np.sort(-steps, axis=1))


def within_budget(lengths: Sequence[int], budget: int) -> list[Shape]:
    """Return a shape for each length, with as many rows as a budget of padded tokens holds, at least one."""
    return [(max(1, budget // length), length) for length in lengths]
