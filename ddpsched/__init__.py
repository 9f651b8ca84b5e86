"""ddpsched: which rank runs which samples, decided step by step, with the gradient kept exact.

::

    errors.py        what can go wrong, one tree
    world.py         World(rank, size), a value; who this process is
    table.py         a table of a config: frozen, and aware of its keys
    plan.py          Microbatch, StepPlan: who runs what; each id once; a digest
    records.py       StepRecord: one row per rank and step
    exchange.py      the two messages of ranks: offer and vote
    run_folder.py    outputs/<study>/<run>: status, config, evaluations
    run_lock.py      one run at a time in a folder
    processes.py     which process it is, on which machine, and whether it lives
    siblings.py      the ranks of this machine, known before they have exchanged a word
    watch.py         a rank's watch on its peers, its launcher and signals
    local_ranks.py   start ranks on this machine, and name the one at fault
    environment.py   versions, machine, commit
    terminal.py      a console that prints text as it is written
    output_file.py   whether a command can write its output
    functions.py     functions of the user's, by name
    costs/           (count, longest) -> integer cost, time, memory
    data/            where samples and lengths come from
    orders/          which sample comes when
    peers/           other packages' batching
    planning/        lengths, costs and an order in, StepPlan out
    config/          a run as one frozen value
    training/        StepPlan in, gradients and records out; torch
    run.py           run(config): the one loop
    simulated.py     all ranks on paper
    guard.py         what stands around a run: logs, why it failed
    certify/         is the gradient the one it claims to be, each sample once
    compare/         policies and peers side by side on paper
    sort/            how difficult samples are, and their order in a file
    integrations/    BatchSampler, StepLoader, PoolStream for other people's loops
    cli.py           ddpsched run | plan | fit | calibrate | certify | sort
"""

from importlib import import_module
from typing import Any

__version__ = "0.1.0"

_LAZY = {
    "BatchSampler": "ddpsched.integrations.batch_sampler",
    "PoolStream": "ddpsched.integrations.pool_stream",
    "StepLoader": "ddpsched.integrations.step_loader",
    "StepPlan": "ddpsched.plan",
    "VariableBatchSizeLR": "ddpsched.training.variable_lr",
    "World": "ddpsched.world",
    "assert_gradient_exact": "ddpsched.certify.certify_step",
    "scaled": "ddpsched.integrations.scaled",
    "solve": "ddpsched.planning.solvers.allocation",
}
__all__ = [
    "BatchSampler",
    "PoolStream",
    "StepLoader",
    "StepPlan",
    "VariableBatchSizeLR",
    "World",
    "assert_gradient_exact",
    "scaled",
    "solve",
]


def __getattr__(name: str) -> Any:
    """Public names load on first use, so that ``import ddpsched`` costs nothing."""
    if name in _LAZY:
        return getattr(import_module(_LAZY[name]), name)
    raise AttributeError(f"module 'ddpsched' has no attribute {name!r}")
