"""Lengths of rollouts as a secondary source describes them: synthetic, as no public trace of them was found."""

import numpy as np

from ddpsched.costs.cost_model import Int

MEDIAN, P99, LONGEST, PROMPT = 500, 5_000, 15_900, 100  # tokens of an answer, and of the prompt before it
Z99 = 2.3263478740408408  # of a normal distribution


def rollouts(size: int, seed: int) -> Int:
    """Return the tokens of prompts with answers, int64 (size,): log-normal answers, cut at LONGEST.

    >>> rollouts(4, seed=0).tolist()
    [666, 539, 1042, 655]
    """
    normal = np.random.default_rng(seed).standard_normal(size)
    answers = np.exp(np.log(MEDIAN) + np.log(P99 / MEDIAN) / Z99 * normal)
    return PROMPT + np.clip(np.rint(answers), 1, LONGEST).astype(np.int64)
