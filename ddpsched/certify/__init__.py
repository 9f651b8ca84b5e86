"""``ddpsched certify``: compute whether a run's gradient is the right one, and whether every sample runs once.

::

    certify_run.py           a config's run: three epochs planned on every rank, selected steps run for real
    run_plans.py             its plans, again from several positions, and the steps to run
    certify_step.py          a training step of yours, in a test of yours: assert_gradient_exact
    step_reference.py        its target gradient
    certify_loader.py        a data loader: each sample once, equal numbers of steps, resumable
    loader_rank.py           the loader of one rank
    certify_trainer.py       transformers' Trainer on real ranks
    capture.py               measurements inside a rank: its collectives, and the gradient that its optimizer got
    reference.py             the target gradient, computed by one process
    target.py                the target gradient and its parts
    label_weights.py         the weight of each sample's label tokens by each rule
    gradient_comparison.py   comparison of a gradient with its target, and why they differ: the weights of the samples
    likeness.py              the result of that
    small_errors.py          errors that the norm over all parameters does not show
    causes.py                known ways to a wrong gradient; where it differs; evidence that it is rounding
    stream_checks.py         checks of sample ids, plan digests and collectives
    certificate.py           checks and verdict, as text and as JSON
    faults.py                faults planted on purpose
    command.py               `ddpsched certify`
"""
