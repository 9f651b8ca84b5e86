"""Benchmarks: `python -m experiments.benchmarks.NAME`.

::

    bench.py               arms in turn, in several launches, with verdicts
    pair.py                whether two ranks on this machine slow each other
    planner.py             planning time, and how it grows with the ranks
    planning_times.py      planning time of every policy and peer
    solvers.py             time of `solve` by method
    microbatches.py        cost of plans with up to M micro-batches
    lookahead.py           gain of a lookahead, and its order bias
    yardstick.py           the yardstick of every policy and peer
    pool.py                planning time and fill of policy pool
    syncs.py               step time and memory of gradient synchronisers
    two_hosts.py           synchronisers over a shaped link between two hosts
    namespaces.py          the two hosts: network namespaces, and their link
    sweeps.py              what a sweep costs beside its runs
    masks.py               memory and time of attention masks
    slow_rank.py           steps until plans follow a slow rank
    split_steps.py         steps with samples split over ranks
    gather_price.py        what gathering a split sample costs, for cost.gather_alpha and gather_beta
    sample_sort.py         sorting over ranks
    loaders.py             loading and sampling against torch's own
    balance.py             ddpsched.balance beside what trainers of rollouts do
    resharding.py          lockstep plans under fully_shard: hangs, gradients, step time
    denominators.py        gradients of every denominator, and faults of others
    shape_menus.py         the price of a menu of few shapes, by policy
    auto.py                what policy auto takes against the best of its candidates
    compiled.py            step times of a compiled model beside the eager one
    program_memory.py      memory of compiled programs, all at once and few at a time
    rollouts.py            lengths of rollouts, synthetic
    simulator.py           simulated step times beside measured ones
    bookkeeping.py         the cost of timing and records
    checkpointing.py       step time with checkpoints against without
    versions.py            planning time against another checkout
    simulated_studies.py   how often intervals and verdicts are right
"""
