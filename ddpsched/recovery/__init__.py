"""Checkpoints, from which a stopped run goes on, and the ledger, which proves that nothing was lost.

::

    ledger.py        the samples of every committed step, as lines that chain
    checkpoints.py   folders of weights and state, complete or not there
    synced_file.py   files that are on the disk when a call returns
    keeper.py        both, while a run goes on
    earlier.py       earlier starts of a run, and their records, checked
    start.py         where a run starts: at its beginning, or at a checkpoint
    audit.py         whether each sample of each epoch was trained once
    command.py       `ddpsched audit`
"""
