"""Lengths in, StepPlan out: pure, the same on every rank, no torch.

::

    plan_spec.py        PlanSpec: what planning takes, as one value
    planner.py          plan_steps: the stream of plans of a run
    steps/              what policies are given, and the plans that their answers become
    policies/           who runs what in a step: one file a policy
    policy.py           what every policy is
    assignment.py       who runs what in a step, as solvers and policies answer it
    solvers/            allocation, counts over windows, and partition, a batch over ranks
    yardstick.py        what a batching is worth
    record_columns.py   what a plan says of a rank's share
"""
