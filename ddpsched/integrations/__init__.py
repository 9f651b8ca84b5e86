"""The same plans inside other people's loops.

::

    balanced_loader.py   balanced: a DataLoader's samples, divided over ranks by a plan
    batch_sampler.py     BatchSampler: this rank's lists of ids, for a torch DataLoader
    rank_lists.py        one iteration of a BatchSampler
    step_loader.py       StepLoader: whole optimizer steps, as lists of micro-batches
    step_batches.py      its micro-batches, loaded by keys
    pool_shards.py       shards of another number of ranks, and states dealt to others
    pool_stream.py       PoolStream: the same over an iterable dataset
    stream_scheduler.py  StreamScheduler: minmax over iterable datasets, the costs of whose samples ranks exchange
    micro_batches.py     a step's batches, of which the last one's backward pass reduces gradients
    transformers/        transformers' Trainer: BalancedTrainerMixin, balance
    accelerate.py        accelerate's loop: prepare
    lightning.py         Lightning's Trainer: BalancedData
    tested_versions.py   a warning where a framework is of another version than those that are tested
    recorder.py          Recorder: records of a loop of one's own
    reduction_marks.py   when a rank's gradients were ready under DDP, and all ranks' in
    scaled.py            batches paired with the scales of their losses
    packed_collate.py    samples as one row without padding, for models of transformers and others
    packed_rows.py       warnings of packed rows that are padded, or that no model keeps apart
    split_samples.py     samples in parts on several ranks, in a model of transformers
    losses.py            the exact loss for transformers' Trainer
    agreement.py         the world of a loader; its ranks compare what they are about to iterate
    turns.py             what ranks have posted of an iteration, and whether since they were compared last
    identity.py          the values that must be equal on all ranks, and of a state and its loader
    agree.py             a sum over ranks in each step, for streams that end
    loader_arguments.py  their arguments, checked like a config's tables
    auto_choice.py       the policy that "auto" takes, by a calibration
    plan_source.py       the plans of samplers and loaders, and their state
    step_share.py        one rank's share of a step, in numbers
    world_size.py        a state for another number of ranks
    iterated_by.py       which loader iterates a sampler, and whether it may
    same_samples.py      warnings where ranks, or workers, of a stream read the same samples
    pool_picks.py        one rank's choices from its pool, and the samples that feed it
"""
