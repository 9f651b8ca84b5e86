"""transformers' Trainer by the way batches are made, peers at full strength: ``python -m experiments.trainers``.

::

    arms.py             ways to make batches, and which of them can run here
    setting.py          the data, the model and the batch that all arms share
    fixed_values.py     measured once: the cost for auto, the token budget of online-dynamic-batching
    one_training.py     a Trainer of an arm, and what it lets others see
    odb_loader.py       online-dynamic-batching in a Trainer
    gradients.py        the error of a step's gradient
    flattening.py       why transformers' own padding-free collator is no arm
    step_times.py       step times in blocks in turn, on two ranks
    dev_loss.py         time to a target dev loss, on two ranks
    frozen.py           files of results, which are gone on with
    parts.py            launches and seeds that a file lacks
    rows.py             a file as rows of tables
    tables.py           rows as tables of a terminal
    peer_table.py       the yardstick of all peers
"""
