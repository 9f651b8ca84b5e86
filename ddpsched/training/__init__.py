"""Execution of plans with torch: a StepPlan in, gradients and records out.

::

    distributed.py         this process is one rank under torchrun
    virtual.py             all ranks in turn on one device
    learner.py             model and optimizer on one device: forward, scaled loss, backward of micro-batches
    rank_step.py           the loss, times and memory of a rank's share of a step
    collate.py             a micro-batch's tensors, padded or packed
    loss.py                the summed cross-entropy, and the derivation of its factor
    denominator.py         what the losses of a step are divided by, once counts are added up over ranks
    compiled.py            torch.compile: programs for the shapes that steps have
    model.py               the model: from a built-in shape, a folder, a hub name; its weights' digest, its logits
    footprint.py           the memory that several models keep together, before they are built
    masks.py               attention masks that hide padding
    packed.py              one row for many samples: attention, positions, head
    part_rows.py           a row of a part of a sample, which attends to the whole of it
    part_groups.py         process groups for samples that are split, and what they gather
    split.py               what a model must be for them; virtual ranks that share one
    optimise.py            clip, AdamW, schedule
    state.py               weights and moments of a training: copied, written, read back
    save.py                the trained model as a folder for from_pretrained
    variable_lr.py         a warm-up; any torch scheduler, scaled by the size of each step
    sync/                  gradient synchronisers: naive, overlap, bucketed, ddp, fsdp
    group_exchange.py      offers and votes of ranks over gloo; the offset of each rank's clock from rank 0's
    attempt_store.py       the store of one attempt: torchrun's is the same over all its restarts
    meeting.py             ranks that wait for each other before there are collectives
    sample_sort.py         rows sorted over a process group
    clock.py               the device; time and peak memory, on CPU and CUDA
    attention.py           attention on a GPU for many shapes, without cuDNN's plans
    random_states.py       random generators that a trial leaves as they were
    out_of_memory.py       which errors are out-of-memory
    evaluate.py            loss and right answers on the dev split; each sample's loss under given weights
    splits.py              where DDP's optimizer cuts a compiled model
    program_table.py       a program for each shape, found by it
    trial_times.py         the times that policy auto chooses by
    compiled_times.py      those of the compiled model
    trial_steps.py         steps of the candidates that policy auto tries
    network_times.py       all-reduces of a group, and the messages of a step
    calibrate_command.py   `ddpsched calibrate`
    calibrate.py           time and memory over a grid of (count, length); how many samples fit into memory
"""
