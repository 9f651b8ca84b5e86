"""What a micro-batch of (count, longest) costs, in integers; what it needs of time and memory.

::

    config.py             [cost] and [memory]
    cost_model.py         what a micro-batch costs, in exact integers
    kinds.py              a cost by its name in the config
    memory_model.py       bytes of a micro-batch
    memory_cap.py         how large a micro-batch may be
    rank_speed.py         how fast a rank is, measured while it trains
    calibration.py        what `ddpsched calibrate` found, as a file
    calibration_grid.py   which (count, length) are measured
    regression.py         fits of measured points by relative error
    fit.py                fits of recorded steps
    fit_calibration.py    from measured points to a calibration
"""
