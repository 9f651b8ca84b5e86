"""Menus of shapes: the few (rows, length) that micro-batches are filled up to, chosen to lose little.

::

    choose.py        the menu of a run, by its policy
    groups.py        shapes whose programs are there together, where few may be
    cover.py         an order in which the first steps meet every shape
    kept.py          menus that were searched before, kept on disk
    observed.py      the micro-batches that a policy makes without a menu
    length_menu.py   the lengths that pad least, exact
    search.py        rows and lengths together, by search
    trial_steps.py   steps on which a menu is judged
"""
