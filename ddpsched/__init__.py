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
    run_loop.py      run(config): the one loop
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

_ERRORS = (
    "ConfigError",
    "DataError",
    "DdpschedError",
    "InfeasibleError",
    "NonFiniteError",
    "PeerMissing",
    "PlanMismatch",
    "RankFailure",
    "RunError",
    "RunExistsError",
    "RunHeldError",
    "RunStopped",
    "SolverTimeout",
    "StepOutOfMemory",
)
_HOMES = {
    "BatchSampler": "ddpsched.integrations.batch_sampler",
    "PoolStream": "ddpsched.integrations.pool_stream",
    "StepLoader": "ddpsched.integrations.step_loader",
    "StepPlan": "ddpsched.plan",
    "StepShare": "ddpsched.integrations.step_share",
    "VariableBatchSizeLR": "ddpsched.training.variable_lr",
    "World": "ddpsched.world",
    "assert_gradient_exact": "ddpsched.certify.certify_step",
    "certify_loader": "ddpsched.certify.certify_loader",
    "run": "ddpsched.run_loop",
    "scaled": "ddpsched.integrations.scaled",
    "solve": "ddpsched.planning.solvers.allocation",
    "summed_cross_entropy": "ddpsched.integrations.losses",
    **dict.fromkeys(_ERRORS, "ddpsched.errors"),
}
__all__ = sorted(_HOMES)


def __getattr__(name: str) -> Any:
    """Load public names on first use, so that ``import ddpsched`` costs nothing."""
    if name in _HOMES:
        return getattr(import_module(_HOMES[name]), name)
    raise AttributeError(f"module 'ddpsched' has no attribute {name!r}")


def __dir__() -> list[str]:
    """List the public names, whether they are loaded or not."""
    return sorted({*globals(), *_HOMES})
