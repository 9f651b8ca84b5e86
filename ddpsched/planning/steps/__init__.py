"""The input of policies, step by step.

::

    context.py     what a policy gets for an epoch: its order, the lengths, the exchange of ranks
    batches.py     the next B samples of the order, for policies that assign them
    windows.py     each rank's window and what all ranks offer, for policies that choose counts
    lookahead.py   samples that change places between neighbouring steps
"""
