"""A batch over ranks: samples in micro-batches on ranks so that the costliest rank is cheapest.

::

    sorted_batch.py    samples by falling length; a span of them is a padded micro-batch
    min_max_split.py   one micro-batch a rank, proved
    several.py         several: the best of all counts up to M
    menu_cover.py      several, on a menu of shapes
    exact.py           few samples or few distinct lengths, proved
    large_items.py     large items on ranks, then filler, then exchanges
    padding_bound.py   the nearer lower bounds
    heterogeneous.py   ranks that differ in speed or memory
    lpt.py             rows without padding: longest first
    lockstep.py        likewise, in micro-batches that all ranks run together
    gangs.py           rows and samples that are split over ranks
    rooms.py           likewise, where each rank has room for so many
"""
