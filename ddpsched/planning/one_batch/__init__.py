"""A batch that exists already, as rollouts do, divided over ranks at once: ``ddpsched.balance``.

::

    balance.py    the call: arguments in, Balance out
    result.py     Balance: each rank's micro-batches, their cost and bound, scales of losses
    items.py      samples, or groups of them, that stay together
    rows.py       rows without padding under a cap
    levels.py     micro-batches that all ranks run together
    spans.py      padded micro-batches, where groups or equal counts decide which rank has a sample
"""
