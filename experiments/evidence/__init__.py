"""The studies of the report, each a TOML file whose first comment says what it asks, how long it takes and what to run.

::

    virtual.toml        the report's own set-up on four virtual ranks: time, padding, waiting, learning
    gloo-*.toml         the same on four gloo ranks of one machine, in three studies
    rivals.toml         packed rows planned by others, and several micro-batches a rank
    scaling.toml        two and eight virtual ranks, beside what the simulator says
    memory.toml         peak memory, a fresh process for each arm
    unequal.toml        one slow rank, with and without learning of it
    shift.toml          lengths that change their law in mid-run, with a calibration that is stale or new
    shifted_texts.py    its data: SST-2, GSM8K, SST-2
"""
