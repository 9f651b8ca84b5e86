"""What the plans of an epoch follow from, as one value."""

from collections.abc import Sequence
from dataclasses import dataclass

from ddpsched.config import RunConfig
from ddpsched.plan import Ids, Position
from ddpsched.planning.caps import Cap
from ddpsched.planning.cost import CostModel
from ddpsched.planning.messages import Exchange
from ddpsched.planning.source import Lengths
from ddpsched.planning.speed import Speed


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
