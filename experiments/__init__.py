"""Studies as TOML, the sweep that runs them, and benchmarks.

::

    sweep.py          run a study
    study.py          a study: [base] of a run, [grid] of what varies, [compare] for times
    launches.py       which runs of a study start together
    interleaved.py    one rank of runs that take turns
    train.py          one rank of a run, for torchrun
    loops.py          common training loops, with and without the exact factor
    certificates.py   the table of certificates in the notes
    curriculum.py     figures of the notes on curricula
    batches.py        figures of the notes on micro-batches
    planted.py        one rank of a run with a planted fault
    stress.py         break runs on purpose, and count how they end
    kills.py          kill real runs, start them again, and compare their ends
    exactly_once.py   kills on paper: whether planning loses or repeats a sample
    walks.py          the two walks in CONTRIBUTING.md
    fuzz/             `python -m experiments.fuzz`: damaged files, and how they are taken
    benchmarks/       `python -m experiments.benchmarks.NAME`
"""
