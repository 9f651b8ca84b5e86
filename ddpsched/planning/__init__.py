"""Lengths in, StepPlan out: pure, the same on every rank, no torch.

::

    planner.py          plan_steps: the stream of plans of a run
    steps/              what policies are given, and the plans that their answers become
    policies/           who runs what in a step: one file a policy
    solvers/            allocation, counts over windows, and partition, a batch over ranks
    simulated.py        all ranks on paper
    yardstick.py        what a batching is worth
    record_columns.py   what a plan says of a rank's share
"""
