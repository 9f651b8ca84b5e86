"""A batch over ranks: who runs which samples, in which micro-batches, so that the costliest rank is cheapest.

::

    placement.py       the answer: positions, sizes of micro-batches, costs, a lower bound
    sorted_batch.py    samples by falling length; a span of them is a padded micro-batch
    min_max_split.py   one micro-batch a rank, proved
    several.py         several: the best of all counts up to M
    exact.py           few samples or few distinct lengths, proved
    levelling.py       large items onto ranks, then filler
    candidates.py      where to cut
    swaps.py           micro-batches that change places
    padding_bound.py   the nearer lower bounds
    heterogeneous.py   ranks of unequal speed or memory
    lpt.py             rows without padding: longest first
"""
