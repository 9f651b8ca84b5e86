"""run_interleaved(configs): several runs in one process, or one set of ranks, which take turns step by step.

A machine that drifts or is shared then meets all of them alike: step t of each runs at about the same moment, so that
their times can be compared in pairs. Each run has its model, optimizer, plans, folder and records to itself.
"""

import gc
import logging
import secrets
from collections.abc import Generator, Mapping, Sequence
from contextlib import ExitStack
from datetime import UTC, datetime
from typing import Any

import numpy as np

from ddpsched.config import RunConfig, dump
from ddpsched.errors import ConfigError
from ddpsched.exchange import Exchange, LocalExchange
from ddpsched.monitor.sinks import ONE_AT_A_TIME
from ddpsched.run_folder import RunFolder
from ddpsched.run_loop import run_steps, watched, world_of
from ddpsched.shortage import system_fault
from ddpsched.watch import Watch
from ddpsched.world import World

log = logging.getLogger("ddpsched")
Steps = Generator[int, None, None]


def run_interleaved(
    configs: Sequence[RunConfig],
    *,
    block: int = 1,
    overwrite: bool = False,
    force: bool = False,
    watch: Watch | None = None,
    about: Mapping[str, Any] | None = None,
) -> dict[str, str]:
    """Run all to their ends, ``block`` steps of each in turn; return by name why runs failed.

    The order of a round is drawn at random, the same on all ranks, and the next round has it reversed (A B B A): a
    drift that is even over two rounds falls on all runs alike. All runs are built before the first step, which takes
    the memory of all. A run that fails on all ranks alike leaves the others to go on. ``about``: more of the launch for
    environment.json, such as the margin that its comparison is to be judged by.

    Raises ConfigError where runs cannot share ranks, or their models do not fit into memory together; KeyboardInterrupt
    ends all.
    """
    check(configs, block)
    first = configs[0]
    world = world_of(first)
    with watched(first, watch) as watch, ExitStack() as stack:
        exchange = shared_group(first, world, stack)
        _say_memory(configs, world)
        launch = {
            "how": "interleaved",
            "id": f"{datetime.now(UTC).isoformat(timespec='seconds')} {secrets.token_hex(4)}",
            "block": block,
            "runs": [config.name for config in configs],
        }
        launch = {**(about or {}), **launch}
        # anew, as times of one launch are compared
        folders = [RunFolder(config.run_dir, dump(config), overwrite, restart=True) for config in configs]
        runs = {
            config.name: run_steps(config, folder, world, watch, force=force, launch=launch)
            for config, folder in zip(configs, folders, strict=True)
        }
        return _take_turns(runs, block, exchange, first.seed)


def check(configs: Sequence[RunConfig], block: int) -> None:
    """Raise ConfigError where these runs cannot take turns on one set of ranks."""
    if block < 1:
        raise ConfigError(f"block = {block} steps of each run in turn; give at least 1")
    if not configs:
        raise ConfigError("no run is given; give at least one config")
    if configs[0].executor.kind == "simulated":
        raise ConfigError(
            'executor.kind = "simulated" computes its times, so that no turns are needed; run it apart, or use '
            "virtual or distributed"
        )
    if every := max(config.train.checkpoint_every for config in configs):
        raise ConfigError(
            f"train.checkpoint_every = {every}: runs that take turns begin anew when they were stopped, and one's "
            "checkpoint would be written during another's step; leave it out, or run them apart (a study's "
            "compare.how=apart), where each goes on"
        )
    if live := next((config.compile.live for config in configs if config.compile.live is not None), None):
        raise ConfigError(
            f"compile.live = {live} resets the compiler, whose programs all runs that take turns share; leave it out, "
            "or run them apart (a study's compare.how=apart)"
        )
    if sinks := [name for name in ONE_AT_A_TIME if any(name in config.log.sinks for config in configs)]:
        raise ConfigError(
            f"log.sinks = {sinks}: these log one run of a process at a time, and here {len(configs)} take turns; use "
            "'tensorboard', or run them apart (a study's compare.how=apart)"
        )
    names = [config.name for config in configs]
    if len(set(names)) < len(names):
        raise ConfigError(f"runs share a name: {', '.join(sorted(names))}; give each another name=...")
    for key in ("world_size", "executor"):
        values = [getattr(config, key) for config in configs]
        for name, value in zip(names, values, strict=True):
            if value != values[0]:
                raise ConfigError(
                    f"{name} has {key} = {value!r}, {names[0]} has {values[0]!r}: runs that take turns share their "
                    "ranks; start them apart"
                )


def order_of(num_runs: int, round_: int, seed: int) -> list[int]:
    """Return the order of a round: drawn anew for each even one, and reversed in the odd one after it.

    >>> order_of(3, 0, seed=0) == order_of(3, 1, seed=0)[::-1]
    True
    """
    order = np.random.default_rng([seed, round_ // 2]).permutation(num_runs).tolist()
    return order[::-1] if round_ % 2 else order


def _take_turns(runs: Mapping[str, Steps], block: int, exchange: Exchange, seed: int) -> dict[str, str]:
    going, failed, names = dict(runs), dict[str, str](), list(runs)
    try:
        for name in names:  # all are ready before the first step of any
            _advance(name, going, failed)
        gc.collect()
        gc.freeze()  # what is there by now is there to stay: looking through it would lengthen some run's step
        round_ = 0
        while going:
            for place in order_of(len(names), round_, seed):
                exchange.barrier()  # no run begins while a rank still ends another's step
                for _ in range(block):
                    _advance(names[place], going, failed)
            round_ += 1
    except BaseException as error:
        for steps in going.values():
            _end(steps, error)
        raise
    finally:
        gc.unfreeze()
    return failed


def _advance(name: str, going: dict[str, Steps], failed: dict[str, str]) -> None:
    """Run the next step of a run, unless it has ended; take it out of ``going`` as it ends."""
    if name not in going:
        return
    try:
        next(going[name])
    except StopIteration:
        del going[name]
    except Exception as error:
        del going[name]
        failed[name] = system_fault(error) if isinstance(error, OSError) else str(error) or repr(error)
        log.warning("%s failed, the other runs go on: %s", name, failed[name])
    except BaseException:
        del going[name]  # it has written why
        raise


def _end(steps: Steps, error: BaseException) -> None:
    """End a run for an error of another, which its status then names."""
    try:
        steps.throw(error)
    except BaseException as ended:
        if ended is not error:
            log.warning("closing: %r", ended)


def shared_group(config: RunConfig, world: World, stack: ExitStack) -> Exchange:
    """Join the process group that all runs use, where there are ranks; return an exchange of its own for the turns."""
    if config.executor.kind != "distributed":
        return LocalExchange(config.world_size)
    import torch.distributed as dist

    from ddpsched.training.clock import pick_device
    from ddpsched.training.group_exchange import GroupExchange, start_group
    from ddpsched.training.meeting import meeting

    if not dist.is_initialized():
        stack.enter_context(meeting(world, config.executor.timeout_s))
        start_group(pick_device(config, world.local_rank), world, config.executor.timeout_s)
        stack.callback(dist.destroy_process_group)
    return GroupExchange(world, config.executor.timeout_s)


def _say_memory(configs: Sequence[RunConfig], world: World) -> None:
    """Print how much memory the models of all runs take together. Raises ConfigError where there is less."""
    from ddpsched.training.footprint import check_memory

    text = check_memory(configs, world)
    if world.is_main:
        print(text, flush=True)
