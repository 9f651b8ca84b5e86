"""Studies as TOML, the sweep that runs them, and benchmarks.

::

    sweep.py          run a study
    study.py          a study: [base] of a run, [grid] of what varies, [compare] for times
    launches.py       which runs of a study start together
    launch_progress.py  how far a launch is, on one line
    launching.py      start a launch, or one machine's part of it, and wait
    finished.py       which runs of a study are finished
    slurm.py          launches as jobs of Slurm, through submitit
    slurm_task.py     a launch as such a job's task
    interleaved.py    one rank of runs that take turns
    train.py          one rank of a run, for torchrun
    loops.py          common training loops, with and without the exact factor
    denominator_faults.py  loops that divide a loss by a wrong number
    certificates.py   the table of certificates in the notes
    curriculum.py     figures of the notes on curricula
    batches.py        figures of the notes on micro-batches
    what_if.py        step times on any number of ranks, computed
    planned.py        one step's plans, as the report draws them
    walks.py          the two walks in CONTRIBUTING.md
    evidence/         the studies of the report
    examples/         other people's loops before and after, `python -m experiments.examples`
    gpu/              all that is claimed on CPUs, on one GPU, `python -m experiments.gpu`
    reliability/      checks of reliability: kills, faults, damaged files, soaks
    benchmarks/       `python -m experiments.benchmarks.NAME`
    trainers/         transformers' Trainer by the way batches are made, `python -m experiments.trainers`
"""
