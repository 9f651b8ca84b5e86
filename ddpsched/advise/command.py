"""`ddpsched advise`: which policy is fastest for this model, data and device, predicted and then measured."""

import json
import logging
from collections.abc import Sequence
from contextlib import ExitStack, closing
from dataclasses import asdict, dataclass

from ddpsched.advise.choice import choose
from ddpsched.advise.measured import measure, table
from ddpsched.config import load, parse
from ddpsched.errors import ConfigError
from ddpsched.executors import executor_of
from ddpsched.interleaved import shared_group
from ddpsched.planning.policies.auto import Auto
from ddpsched.run_loop import as_launched, world_of
from ddpsched.terminal import plain_console


@dataclass(frozen=True)
class Request:
    """The options of ``ddpsched advise``.

    ``steps``: that are measured of each arm; 0 for predictions alone. ``first``: policies of the ranking to measure.
    """

    config: str
    words: Sequence[str] = ()
    steps: int = 40
    first: int = 2
    force: bool = False
    json: bool = False


def answer(request: Request) -> None:
    """Predict, measure, and print both on rank 0; every rank calls it.

    Raises ConfigError for a config that trains no model, and whatever a run of it would raise before its first step.
    """
    config = load(request.config, request.words)
    if not isinstance(config.policy, Auto):
        config = parse({**config.model_dump(exclude_none=True), "policy": {"kind": "auto"}}, request.config)
    config = as_launched(config)
    if config.executor.kind == "simulated":
        raise ConfigError(
            "advise measures a model on its device, and executor.kind = 'simulated' has neither; use 'virtual'"
        )
    if 0 < request.steps < 8:
        raise ConfigError(f"--steps {request.steps}: the first 4 are left out, give at least 8, or 0 to predict alone")
    world = world_of(config)
    if not world.is_main:  # the same warnings as rank 0's, which no log of a run takes here
        logging.getLogger("ddpsched").addHandler(logging.NullHandler())
    with ExitStack() as stack:
        shared_group(config, world, stack)
        samples = config.load_samples()
        with closing(executor_of(config, samples, world, request.force)) as executor:
            choice = choose(config, executor, samples, request.force, whole=True)
        del executor
        measured = measure(choice, request.steps, request.first) if request.steps else []
    if not world.is_main:
        return
    if request.json:
        found = {"ranking": choice.facts["auto"]["ranking"], "measured": [asdict(each) for each in measured]}
        print(json.dumps({"chosen": choice.chosen.name, "seconds": choice.seconds, **found}, indent=2))
        return
    console = plain_console(at_least=100)
    console.print(f"{choice.times.identity}, {config.world_size} ranks, {config.global_batch} samples a step")
    console.print(choice.table())
    if measured:
        console.print(table(measured))
