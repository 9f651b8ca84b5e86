"""Checks of reliability, each a command that prints a finding; `make nightly` runs them in full.

::

    findings.py         a finding: printed, frozen for the report with its date
    checks.py           all checks, with their full counts
    nightly.py          run them all
    real_runs.py        start real runs under torchrun, and wait for their end
    kills.py            kill real runs, start them again, and compare their ends
    marked.py           kill rank 0 at each point of the end: "done" is written last
    orphans.py          kill drivers of runs: whether a process is left
    exactly_once.py     kills on paper: whether planning loses or repeats a sample
    digests.py          plans over hash seeds and orders of ranks: whether all are equal
    plan_streams.py     the plans of every policy as each rank makes them
    state_size.py       the bytes of a checkpoint beside its tensors, of every policy
    checkpoint_cost.py  the time of a step with checkpoints over one without
    faults.py           each kind of fault in each phase of a step: the end of the run, the rank named
    faulty.py           one rank of a run that such a fault strikes
    restarts.py         runs that torchrun starts again, with as many ranks or others
    resumed_loops.py    other people's loops, stopped at random steps and resumed: the same samples?
    other_loops.py      these loops, from the start or a checkpoint, to a step
    soak.py             memory, threads and open files over a long run
    suite.py            the test suite, many times in a row
    environments.py     the oldest packages that pyproject.toml allows, and other Pythons
    matrix.py           the suite in each of these environments
    planted.py          one rank of a run with a planted fault
    healthy.py          runs without a fault: whether each exits with 0
    fuzz/               damaged files, and how they are taken
    hostile_texts/      hostile texts in every field, and where they end
"""
