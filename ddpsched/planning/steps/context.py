"""What the plans of an epoch follow from, as one value."""

from collections.abc import Sequence
from dataclasses import dataclass

from ddpsched.config import RunConfig
from ddpsched.costs.kinds import CostModel
from ddpsched.costs.memory_cap import Cap
from ddpsched.costs.rank_speed import Speed
from ddpsched.data.lengths import Lengths
from ddpsched.exchange import Exchange
from ddpsched.plan import Ids, Position


@dataclass(frozen=True)
class Epoch:
    """All that the plans of one epoch, from ``start`` on, follow from."""

    config: RunConfig
    source: Lengths
    exchange: Exchange
    cost: CostModel
    caps: tuple[Cap, ...] | None
    speeds: Sequence[Speed] | None
    start: Position
    order: Ids
    last: str = "smaller"  # of batch policies: where the epoch's last samples are fewer than the ranks
