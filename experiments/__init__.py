"""Studies as TOML, the sweep that runs them, and benchmarks.

::

    sweep.py          run a study
    study.py          a study: [base] of a run, [grid] of what varies, [compare] for times
    launches.py       which runs of a study start together
    interleaved.py    one rank of runs that take turns
    train.py          one rank of a run, for torchrun
    loops.py          common training loops, with and without the exact factor
    denominator_faults.py  loops that divide a loss by a wrong number
    certificates.py   the table of certificates in the notes
    curriculum.py     figures of the notes on curricula
    batches.py        figures of the notes on micro-batches
    planned.py        figures of the report that follow from plans alone
    walks.py          the two walks in CONTRIBUTING.md
    examples/         other people's loops before and after, `python -m experiments.examples`
    gpu/              all that is claimed on CPUs, on one GPU, `python -m experiments.gpu`
    reliability/      checks of reliability: kills, faults, damaged files, soaks
    benchmarks/       `python -m experiments.benchmarks.NAME`
"""
