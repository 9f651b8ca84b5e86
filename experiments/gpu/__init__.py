"""A kit for a machine with one GPU: all that is claimed on CPUs, measured there in a call of nine minutes, or two.

::

    __main__.py     python -m experiments.gpu: the parts in turn, each in a process of its own, into one file
    parts.py        the parts by name, in the order of their worth
    sizes.py        how large each part is on a GPU, and in a trial on a CPU
    settings.py     the configs of the arms of each part
    long_texts.py   texts of a hundred to a thousand tokens, and GPT-2's shape with four layers
    outcome.py      what the folder holds, of this call and of earlier ones
    processes.py    a process for each part, and the time that it has
    measure.py      what that process does
    new_shapes.py   the first micro-batch of a shape, with cuDNN's attention and without it
    arm_tables.py   the rows of arms that ran in turn: time, tokens, memory, what was predicted
"""
