"""Runs as others see them: while they go on, beside each other, and where their numbers are sent.

Nothing here imports torch.

::

    durations.py    seconds as a clock shows them
    follower.py     the records of a run, read while its ranks write them
    summary.py      means over steps and ranks: compute, waiting, padding, loss, throughput
    whole_steps.py  steps whose records are there of all ranks
    progress.py     a run's own bar, or sparse lines where there is no terminal
    sinks.py        TensorBoard, and packages with init, log and finish (wandb, trackio)
    sending.py      a run's numbers sent to its sinks, which may fail
    parquet.py      the records of a run that has ended, from records.parquet
    found.py        the runs of a folder by their status.json
    view.py         the table of a run: a line for each rank
    watching.py     ddpsched watch: the view, anew as records come
    showing.py      ddpsched runs show
    listing.py      ddpsched runs ls
    removing.py     ddpsched runs rm
    commands.py     ddpsched runs ls | show | compare | rm, as the command line has them
"""
