"""Solvers, arrays in and arrays out.

::

    allocation/   minmax's counts over windows: its methods.py computes them, by threshold, enumeration or ILP
    partition/    balanced's and packed's split of a batch over ranks and micro-batches
"""
