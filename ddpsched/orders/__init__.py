"""The order of the samples in an epoch, the same on every rank.

::

    config.py               [order]
    epoch_order.py          the order of an epoch, by kind
    curriculum.py           orders of rising difficulty
    lexicographic_sort.py   rows sorted on all their columns
"""
