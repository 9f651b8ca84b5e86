"""Solvers, arrays in and arrays out.

::

    allocation/   minmax's counts over windows: its tie_break.py computes them, under the least maximum of methods.py
    partition/    balanced's and packed's split of a batch over ranks and micro-batches
"""
