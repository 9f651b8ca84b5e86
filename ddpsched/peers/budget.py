"""The token budget that gives B samples a step, for peers that take a budget and no batch size."""

from collections.abc import Callable, Iterator

import numpy as np

from ddpsched.peers.peer import Peer, Problem, Step

TRIES = 16
CLOSE = 1e-3  # of the target


def budgeted(name: str, package: str, steps: Callable[[Problem, int], Iterator[Step]], packed: bool = False) -> Peer:
    """Return a peer of ``steps(problem, budget)`` that searches for the budget where the problem has none."""

    def budget(problem: Problem) -> int:
        share = problem.global_batch / problem.world_size * float(np.mean(problem.lengths))
        return fit_budget(
            lambda tokens: mean_samples(steps(problem, tokens)), problem.global_batch, problem.longest, round(share)
        )

    def fitted_steps(problem: Problem) -> Iterator[Step]:
        return steps(problem, budget(problem) if problem.budget is None else problem.budget)

    return Peer(name, package, packed, fitted_steps, budget)


def mean_samples(steps: Iterator[Step]) -> float:
    """Return the mean samples per step, over all ranks."""
    sizes = [sum(len(micro) for rank in step for micro in rank) for step in steps]
    return sum(sizes) / max(len(sizes), 1)


def fit_budget(mean: Callable[[int], float], target: float, lowest: int, guess: int) -> int:
    """Return the budget, of those tried, whose ``mean`` is closest to ``target``; ``mean`` is assumed to rise with it.

    Linear interpolation between the nearest budgets below and above, or towards the missing side. Ends within
    a thousandth of the target, between neighbouring integers, or after sixteen tries. ``lowest``: no budget
    below it (the longest sample must fit).

    >>> fit_budget(lambda tokens: tokens // 13, target=32, lowest=66, guess=100)
    427
    """
    tried: dict[int, float] = {}
    tokens = max(lowest, guess)
    for _ in range(TRIES):
        tried[tokens] = mean(tokens)
        if abs(tried[tokens] - target) <= CLOSE * target:
            break
        below = max((t for t, m in tried.items() if m < target), default=None)
        above = min((t for t, m in tried.items() if m >= target), default=None)
        if above is None:
            tokens = max(tokens + 1, round(1.02 * tokens * target / max(tried[tokens], 1.0)))
        elif below is None:
            tokens = max(lowest, min(above - 1, round(0.98 * above * target / tried[above])))
        elif above - below > 1:
            share = (target - tried[below]) / (tried[above] - tried[below])
            tokens = min(max(below + round(share * (above - below)), below + 1), above - 1)
        if tokens in tried:
            break
    return min(tried, key=lambda t: (abs(tried[t] - target), t))
