"""Lengths in, StepPlan out: pure, the same on every rank, no torch.

::

    plan_spec.py        PlanSpec: the input of planning, as one value
    planner.py          plan_steps: the stream of plans of a run
    steps/              the input of policies, step by step
    shapes/             menus of the few shapes that micro-batches are filled up to
    policies/           which rank runs which samples of a step: one file a policy
    policy.py           the base of all policies
    one_batch/          balance: a batch that exists already, over ranks at once
    assignment.py       Assignment: the result of solvers and policies; refuse_too_long: a sample over a memory cap
    solvers/            minmax's counts (allocation/tie_break.py); balanced's and packed's splits (partition/)
    step_seconds.py     the seconds of a planned step, by a cost in seconds
    what_if.py          step times on any number of ranks, computed
    prediction.py       the predicted step times of policies
    yardstick.py        the figures by which batchings are compared
    record_columns.py   the columns of a record that follow from a plan
"""
