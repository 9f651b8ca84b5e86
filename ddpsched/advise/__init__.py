"""The fastest policy on this device: chosen as a run begins (policy auto), and `ddpsched advise`.

::

    choice.py     measure, predict, choose: the config that a run of policy auto goes on with
    measured.py   the first of a ranking and static, run in turn: did the prediction hold?
    command.py    `ddpsched advise`
"""
