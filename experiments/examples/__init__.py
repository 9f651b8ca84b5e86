"""Training scripts as people write them, each in a folder as before.py, and as after.py with ddpsched.

``python -m experiments.examples`` runs all of them on two gloo ranks and compares each step with one process.

::

    pairs.py            the scripts, and the lines in which a pair differs
    rollouts.py         a plain loop over a batch of rollouts, by ddpsched.balance and token_weights
    verl_partitions.py  verl's two functions by ddpsched.balance
    trl_grpo.py         TRL's GRPOTrainer, its micro-batches divided by length
    trial.py            runs of the scripts on ranks, each step compared with one process that takes the same samples
"""
