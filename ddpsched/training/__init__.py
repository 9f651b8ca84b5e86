"""Execution of plans with torch: a StepPlan in, gradients and records out.

::

    distributed.py         this process is one rank under torchrun
    virtual.py             all ranks in turn on one device
    learner.py             model, data and optimizer on one device
    rank_step.py           one rank's micro-batches, timed and measured
    collate.py             a micro-batch's tensors, padded or packed
    loss.py                the one scale: of samples, of label tokens
    model.py               the model: from a built-in shape, a folder, a hub name
    masks.py               attention masks that hide padding
    packed.py              one row for many samples: attention, positions, head
    logit_equivalence.py   a model's logits computed two ways
    weights.py             a digest of weights
    optimise.py            clip, AdamW, schedule
    lr.py                  the learning rate of each step
    variable_lr.py         any torch scheduler, scaled by the size of each step
    sync/                  gradient synchronisers: naive, overlap, bucketed, ddp, fsdp
    group_exchange.py      offers and votes over gloo
    sample_sort.py         rows sorted over a process group
    clock.py               time and peak memory, on CPU and CUDA
    clock_offset.py        the offset of each rank's clock from rank 0's
    out_of_memory.py       which errors are out-of-memory
    evaluate.py            loss and right answers on the dev split
    probe.py               how many samples fit into memory
    sample_loss.py         each sample's loss under given weights
    calibrate.py           time and memory over a grid of (count, length)
"""
