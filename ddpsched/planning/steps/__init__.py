"""The stream of steps: what policies are given, step by step, and the plans that their answers become.

::

    context.py            an epoch, as one value
    batches.py            the next B samples of the order, for policies that assign them
    windows.py            each rank's window and what all ranks offer, for policies that choose counts
    stream.py             a policy's assignments as plans
    prefetch_windows.py   each rank's window over the global order
    lookahead.py          samples that change places between neighbouring steps
"""
