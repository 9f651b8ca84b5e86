"""Hostile texts in every field that others fill, and what of them reaches a page, a table, the terminal or the disk.

``python -m experiments.reliability.hostile_texts --count N --seed S``

::

    texts.py   the texts: markup, formulas, escape sequences, paths, very long ones
    fields.py  files in which one is put into a field: configs, data sets, runs, calibrations, orders
    look.py    what is found afterwards: active nodes of a page, formulas, escapes, files outside
"""
