"""The integer cost of a micro-batch of (count, longest), and its time and memory.

::

    config.py             [cost] and [memory], and the models that they name
    cost_model.py         the cost of a micro-batch, in exact integers
    shape_menu.py         the cost of a micro-batch that is filled up to one of a few shapes
    memory_cap.py         the memory of a micro-batch, and how many samples fit; planning/assignment.py refuses the rest
    rank_speed.py         the speed of a rank, measured while it trains
    calibration.py        the result of `ddpsched calibrate`, as a file
    calibration_grid.py   the (count, length) that are measured
    regression.py         fits of measured times and memory
    fit_command.py        `ddpsched fit`
    step_times.py         times of a model's micro-batches and steps, which policy auto chooses by
    network.py            seconds of all-reduces by their bytes, and of a step's messages
    fit_calibration.py    a calibration from measured points
"""
