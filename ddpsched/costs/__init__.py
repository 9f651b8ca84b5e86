"""The integer cost of a micro-batch of (count, longest), and its time and memory.

::

    config.py             [cost] and [memory]
    cost_model.py         the cost of a micro-batch, in exact integers
    kinds.py              a cost model by its name in the config
    memory_model.py       bytes of a micro-batch
    memory_cap.py         the largest micro-batch that fits
    rank_speed.py         the speed of a rank, measured while it trains
    calibration.py        the result of `ddpsched calibrate`, as a file
    calibration_grid.py   the (count, length) that are measured
    regression.py         fits of measured times and memory
    fit_calibration.py    a calibration from measured points
"""
