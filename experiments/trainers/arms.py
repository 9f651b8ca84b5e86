"""Ways to make a Trainer's batches: transformers' own, other packages', and ddpsched's policies."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from ddpsched.errors import ConfigError, PeerMissing
from ddpsched.peers.online_dynamic_batching import PACKAGE
from ddpsched.peers.packages import need

FIRST = "random"  # the baseline
ODB = "online_dynamic_batching"


@dataclass(frozen=True)
class Arm:
    """A way to make batches.

    Attributes:
        label: its name in tables.
        arguments: of TrainingArguments.
        policy: of ``balance``; empty where Trainer samples itself.
        packs: whether rows have no padding.
        microbatches: of a rank in each step at most; its samples are then given to Trainer in so many parts.
        package: what to install; empty where nothing more is needed.
    """

    label: str
    arguments: dict[str, Any] = field(default_factory=dict)
    policy: str = ""
    packs: bool = False
    microbatches: int = 1
    package: str = ""


ARMS = {
    FIRST: Arm("random"),
    "group_by_length": Arm("group_by_length", {"train_sampling_strategy": "group_by_length"}),
    "batch_rebalance": Arm("batch_rebalance", {"train_sampling_strategy": "batch_rebalance"}),
    "padding_free": Arm("random, packed_collate", packs=True),
    ODB: Arm("online-dynamic-batching", package=PACKAGE),
    "static": Arm("ddpsched, static", policy="static"),
    "minmax": Arm("ddpsched, minmax", policy="minmax"),
    "balanced": Arm("ddpsched, balanced", policy="balanced"),
    "auto": Arm("ddpsched, auto", policy="auto", microbatches=4),
    "packed": Arm("ddpsched, packed", policy="packed", packs=True),
}


def chosen(names: str) -> list[str]:
    """Return the arms of a list with commas, all of them where it is empty, the baseline always and first.

    Raises ConfigError for a name that is none.
    """
    given = [name.strip() for name in names.split(",") if name.strip()]
    if odd := [name for name in given if name not in ARMS]:
        raise ConfigError(f"--arms {odd[0]}: is none of {', '.join(ARMS)}")
    return [name for name in ARMS if name == FIRST or not given or name in given]


def runnable(names: Sequence[str]) -> tuple[list[str], dict[str, str]]:
    """Return the arms whose packages are there, and of each other one the reason, with the command that installs it."""
    left_out = dict[str, str]()
    if ODB in names:
        try:
            need("odb.integrations.hf", PACKAGE)
        except PeerMissing as error:
            left_out[ODB] = error.reason
    return [name for name in names if name not in left_out], left_out
