"""The stream of steps: what policies are given, step by step, and the plans that their answers become.

::

    context.py            what the plans of an epoch follow from, as one value
    batch_steps.py        policies that assign the next B samples of the order
    window_steps.py       policies that choose how many samples each rank takes from its own window
    fill_steps.py         policies that fill micro-batches, so that the global batch varies
    prefetch_windows.py   each rank's window over the global order
    lookahead.py          samples that change places between neighbouring steps
"""
