"""The same plans inside other people's loops.

::

    batch_sampler.py   BatchSampler: this rank's lists of ids, for a torch DataLoader
    step_loader.py     StepLoader: whole optimizer steps, as lists of micro-batches
    pool_stream.py     PoolStream: the same of an iterable data set
    scaled.py          batches paired with the scales of their losses
    losses.py          the exact loss for transformers' Trainer
    agreement.py       ranks compare what they are about to iterate
    agree.py           a sum over ranks in each step, for streams that end
    plan_source.py     what samplers and loaders plan from, and their state
    step_share.py      one rank's share of a step, in numbers
    rank_lists.py      one iteration of a BatchSampler
    iterated_by.py     which loader iterates a sampler, and whether it may
    micro_batches.py   a data set whose items are a rank's share of a step
    pool_picks.py      one rank's choices from its pool
    sample_reader.py   an iterable's samples one after another, and their place
"""
