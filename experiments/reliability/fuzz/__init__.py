"""Damaged and hostile files, read by the real readers: each must be refused in one message, or read as what it is.

``python -m experiments.reliability.fuzz configs|records|checkpoints --count N --seed S``

::

    mutate.py       changes of values, of text and of bytes
    outcome.py      how a reader took a file: accepted, refused, with a traceback, ...; counts
    configs.py      configs and studies: loaded, and a few steps planned
    records.py      files of finished runs: loaded, fitted and compared; calibrations
    orders.py       ordered files, read and planned with, as records.py asks
    checkpoints.py  checkpoints of a stopped run: its state and tensors loaded, its ledger compared
"""
