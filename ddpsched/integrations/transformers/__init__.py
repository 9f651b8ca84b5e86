"""transformers' Trainer by any policy, with the exact gradient: ``BalancedTrainerMixin``, or ``balance(trainer)``.

::

    balanced_trainer.py  the mix-in of a Trainer, and the function for one that is made already
    trainer_plans.py     the loader that a Trainer's arguments ask for, and what does not go with it
    microbatches.py      micro-batches as Trainer iterates them, so many a step, some of which hold nothing
    loss_rule.py         how a Trainer's loss depends on the batch and on the step's count, found by trying it
"""

from ddpsched.integrations.transformers.balanced_trainer import BalancedTrainerMixin, balance

__all__ = ["BalancedTrainerMixin", "balance"]
