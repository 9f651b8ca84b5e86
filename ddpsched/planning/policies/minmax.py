"""minmax: how many samples each rank takes from the front of its own window.

The report's method. Rank r offers c_r(k), the cost of its first k prefetched
samples; with all rows at hand every rank solves

    minimise  max_r c_r(b_r)   subject to  sum_r b_r = B,  1 <= b_r <= cap_r

and takes its first b_r samples; the rest of the window stays, first in first out.
"""

from ddpsched.costs.kinds import Int
from ddpsched.planning.solvers.allocation import Allocation, solve


def minmax(costs: Int, batch_size: int, caps: Int, solver: str) -> Allocation:
    """``costs``: (world_size, K) -> counts (world_size,); see :func:`ddpsched.solve`."""
    return solve(costs, batch_size, caps=caps, method=solver)
