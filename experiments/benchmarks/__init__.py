"""Benchmarks: `python -m experiments.benchmarks.NAME`.

::

    steps.py          step times of several arms, interleaved
    pair.py           whether two ranks on this machine slow each other
    planner.py        planning time, and how it grows with the ranks
    solvers.py        planning time of `solve` by method
    microbatches.py   cost of plans with up to M micro-batches
    lookahead.py      what a lookahead gains, and its order bias
    yardstick.py      the yardstick of every policy and peer
    pool.py           choosing from a pool
    syncs.py          gradient synchronisers
    masks.py          attention masks
    slow_rank.py      how soon plans know that a rank is slow
    sample_sort.py    sorting over ranks
    bookkeeping.py    the cost of timing and records
    versions.py       planning time against another checkout
"""
