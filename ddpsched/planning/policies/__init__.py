"""Policies: which rank runs which samples of a step. Each is one file: documentation, options, checks, algorithm.

They differ in their input: *batches*, the next B samples of the global order, which they only assign; *windows*, every
rank's prefetched samples, of which they choose how many each rank takes; or the whole *epoch* in order, from which they
fill micro-batches of varying sizes, so that B varies.

::

    static.py         equal counts, whatever the lengths
    minmax.py         counts over each rank's window
    balanced.py       the same global batch, split by length
    packed.py         the same global batch in rows without padding
    split.py          likewise, with long samples split over ranks
    token_budget.py   as many samples as a budget of tokens allows; refuses a sample longer than the budget
    bins.py           ranges of length, each with a batch size
    pool.py           samples of similar length, from each rank's pool
    peer.py           another package's batching
    lockstep.py       as many micro-batches on each rank, which run together
    auto.py           the fastest of static, balanced and packed, as measured
    batch_policy.py   the base of policies that assign a batch
    filling.py        the base of policies that fill micro-batches
"""

from typing import TYPE_CHECKING, Annotated, Union

from pydantic import Field

from ddpsched.planning.policies.auto import Auto
from ddpsched.planning.policies.balanced import Balanced
from ddpsched.planning.policies.bins import Bins
from ddpsched.planning.policies.minmax import Minmax
from ddpsched.planning.policies.packed import Packed
from ddpsched.planning.policies.peer import PeerPolicy
from ddpsched.planning.policies.pool import Pool
from ddpsched.planning.policies.split import Split
from ddpsched.planning.policies.static import Static
from ddpsched.planning.policies.token_budget import TokenBudget
from ddpsched.planning.policy import Policy

POLICIES: dict[str, type[Policy]] = {
    "static": Static,
    "minmax": Minmax,
    "balanced": Balanced,
    "packed": Packed,
    "token_budget": TokenBudget,
    "bins": Bins,
    "pool": Pool,
    "peer": PeerPolicy,
    "auto": Auto,
    "split": Split,
}

if TYPE_CHECKING:
    AnyPolicy = Policy
else:
    AnyPolicy = Annotated[Union[tuple(POLICIES.values())], Field(discriminator="kind")]  # noqa: UP007
