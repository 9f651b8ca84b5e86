"""ddpsched assigns the samples of each data-parallel training step to ranks, and keeps the gradient exact.

::

    visible_text.py  what others wrote, shown without control characters, formulas and hidden letters
    errors.py        the errors, as one tree
    world.py         World(rank, size): this process's rank and world size
    decode.py        JSON and TOML of files that may be damaged
    table.py         the base class of every [table] of a config, and ranges of values
    step_plan.py     Microbatch, StepPlan: the samples of each rank; a digest
    parts.py         Part: what one of several ranks computes of a sample
    packed_ids.py    ids of samples as text, a few bits each
    record_lines.py  JSON lines with a checksum each
    records.py       StepRecord: one row per rank and step
    exchange.py      messages of ranks: offer, what the next samples cost; vote, how a step went
    plan_difference.py  the first difference of two ranks' plans
    heartbeat.py     the phase of a step that each rank is in, in a file
    regular_file.py  files that are read whole: no device, no pipe, not too large
    own_folder.py    folders in which nothing is a link or a pipe; removal that follows none
    run_folder.py    outputs/<study>/<run>: status, config, evaluations
    run_lock.py      one run at a time in a folder
    launcher_log.py  why a run failed before it began, by its launcher's log
    processes.py     identity of a process and its machine, and whether it lives
    watch.py         in each rank under torchrun: name a rank that died or is suspended; handle signals
    local_ranks.py   start ranks without torchrun, and say which failed first
    machine.py       processors and memory that this process may use
    environment.py   versions, machine, commit
    terminal.py      a console that prints text as it is written, and no escape sequences
    broken_pipe.py   output whose reader has ended
    command_exit.py  the end of a command: one message for an expected error, and the exit code
    shortage.py      memory, threads or room on a disk that the system refused
    rooms.py         the rooms beside the package, experiments, analysis and report
    arguments.py     checks of output files, and functions by name
    denominators.py  what losses of label tokens are divided by: token_weights
    monitor/         runs as they go on, in lists, and in other people's dashboards
    costs/           (count, longest) -> integer cost, time, memory
    data/            samples and lengths, from files, the hub or synthetic
    orders/          the order of samples in an epoch
    peers/           other packages' batching
    planning/        lengths, costs and an order in, StepPlan out
    config/          a run as one frozen value
    recovery/        checkpoints, the ledger of trained samples, and its audit
    training/        StepPlan in, gradients and records out; torch
    alike.py         ranks agree on where they begin, and on a failure of one alone
    run_loop.py      run(config): the one loop
    executors.py     the protocol of executors, and which one a config names
    plan_stream.py   plans, made anew with lower memory caps
    run_totals.py    the evaluations of a run, and its totals
    interleaved.py   several runs that take turns step by step, so that their times can be compared
    simulated.py     an executor that computes times instead of running a model
    guard.py         a run's logs, and the reason of its failure, as status.json has it
    certify/         checks that the gradient is exact and each sample runs once
    advise/          which policy is fastest on this device: policy auto, ddpsched advise
    doctor/          checks of this machine: what training on it needs, tried
    compare/         policies and peers side by side, without training
    sort/            the difficulty of samples, and their order in a file
    integrations/    BatchSampler, StepLoader, PoolStream for other people's loops
    cli.py           ddpsched run | plan | certify | sweep ..., as `ddpsched --help` lists them
"""

from importlib import import_module
from typing import Any

from ddpsched import errors

__version__ = "0.1.0"

_HOMES = {
    "BatchSampler": "ddpsched.integrations.batch_sampler",
    "PoolStream": "ddpsched.integrations.pool_stream",
    "Recorder": "ddpsched.integrations.recorder",
    "StepLoader": "ddpsched.integrations.step_loader",
    "StepPlan": "ddpsched.step_plan",
    "StepShare": "ddpsched.integrations.step_share",
    "StreamScheduler": "ddpsched.integrations.stream_scheduler",
    "VariableBatchSizeLR": "ddpsched.training.variable_lr",
    "World": "ddpsched.world",
    "assert_gradient_exact": "ddpsched.certify.certify_step",
    "balance": "ddpsched.planning.one_batch.balance",
    "token_weights": "ddpsched.denominators",
    "Balance": "ddpsched.planning.one_batch.result",
    "balanced": "ddpsched.integrations.balanced_loader",
    "certify_loader": "ddpsched.certify.certify_loader",
    "Comparison": "ddpsched.compare.comparison",
    "for_world_size": "ddpsched.integrations.world_size",
    "enable_packing": "ddpsched.training.packed",
    "micro_batches": "ddpsched.integrations.micro_batches",
    "packed_collate": "ddpsched.integrations.packed_collate",
    "split_samples": "ddpsched.integrations.split_samples",
    "law_lengths": "ddpsched.data.laws.length_laws",
    "lengths": "ddpsched.data.dataset_lengths",
    "plan": "ddpsched.compare.comparison",
    "run": "ddpsched.run_loop",
    "scaled": "ddpsched.integrations.scaled",
    "solve": "ddpsched.planning.solvers.allocation",
    "what_if": "ddpsched.planning.what_if",
    "summed_cross_entropy": "ddpsched.integrations.losses",
    **{name: "ddpsched.errors" for name, value in vars(errors).items() if isinstance(value, type)},
}
__all__ = sorted(_HOMES)


def __getattr__(name: str) -> Any:
    """Load public names on first use, so that ``import ddpsched`` costs nothing."""
    if name in _HOMES:
        return getattr(import_module(_HOMES[name]), name)
    raise AttributeError(f"module 'ddpsched' has no attribute {name!r}")


def __dir__() -> list[str]:
    """List the public names, whether they are loaded or not."""
    return sorted([*_HOMES, *(name for name in globals() if name.startswith("__"))])
