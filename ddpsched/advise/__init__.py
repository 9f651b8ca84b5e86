"""The fastest policy on this device: chosen as a run begins (policy auto), and `ddpsched advise`.

::

    choice.py     measure, predict, choose: the config that a run of policy auto goes on with
    trials.py     steps of the candidates that may be the fastest, run in turn before one is taken
    measured.py   the first of a ranking and static, run in turn: did the prediction hold?
    command.py    `ddpsched advise`
"""
