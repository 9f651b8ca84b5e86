"""The input of policies, step by step.

::

    context.py     an epoch, as one value
    batches.py     the next B samples of the order, for policies that assign them
    windows.py     each rank's window and what all ranks offer, for policies that choose counts
    lookahead.py   samples that change places between neighbouring steps
"""
