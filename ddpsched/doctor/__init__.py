"""``ddpsched doctor``: try what training needs on this machine; each finding says what was measured and what to do.

::

    finding.py        the result of a check: ok, warn, fail or skip, and the remedy
    isolation.py      checks in a process of their own, with a time limit each
    versions.py       Python and packages against what this version of ddpsched requires
    devices.py        processors, memory, GPUs and NCCL
    pair.py           speed of a process alone and of two at once
    slowdown.py       whether two processes here slow each other
    ranks.py          two ranks over gloo: sums, messages, clocks, and a rank that is killed
    certificate.py    the gradient of two ranks that train a tiny model
    launches.py       torchrun: a restart after a rank has died, and exit codes
    launched.py       one rank of such a launch
    ports.py          ports of the loopback address
    disk.py           a file in the outputs folder: written, synchronised, renamed, locked
    clocks.py         clocks of ranks, and the clock of the wall
    command.py        `ddpsched doctor`
"""
