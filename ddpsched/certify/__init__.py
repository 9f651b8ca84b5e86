"""``ddpsched certify``: is the gradient the one it claims to be, and every sample run once? Decided by computation.

::

    certify_run.py           runs of ours: the config's epoch planned on every rank, chosen steps run for real
    certify_step.py          a training step of yours, in a test of yours: assert_gradient_exact
    certify_loader.py        somebody's data loader: each sample once, in step, resumable
    certify_trainer.py       transformers' Trainer on real ranks
    rank_worker.py           inside a rank: plan the epoch, resume it, run steps
    loader_rank.py           one rank's data loader, in a process of its own
    capture.py               inside a rank: its collectives, and the gradient that its optimizer got
    reference.py             the target gradient, computed by one process
    target.py                what a gradient is to be, and what it is made of
    gradient_comparison.py   is a gradient its target, and by how much is it not
    causes.py                why not: which weighting of the samples it is
    known_causes.py          known ways to a wrong gradient
    departure.py             where it departs: parameters, coordinates, a factor
    rounding.py              what counts as evidence of rounding
    stream_checks.py         checks of sample ids, digests and collectives
    certificate.py           checks and verdict, as text and as JSON
    faults.py                faults planted on purpose
    command.py               `ddpsched certify`
"""
