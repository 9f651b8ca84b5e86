"""Solvers, arrays in and arrays out.

::

    allocation/   minmax's counts: ``solve``, by three exact methods
    partition/    balanced's and packed's split of a batch over ranks and micro-batches
"""
