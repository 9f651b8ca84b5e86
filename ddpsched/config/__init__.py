"""The whole of a run as one frozen value, read from TOML and ``key=value`` words.

``load("study.toml", ["seed=1", "policy.kind=minmax"])`` gives a ``RunConfig``.
An unknown key, a wrong type or a value out of range is a ``ConfigError`` that
names the key, what was given and what is allowed.

::

    base.py     what every table is: frozen, and aware of its keys
    tables.py   the tables of a run beside its policy
    policy.py   [policy]
    run.py      RunConfig, and what must agree between its tables
    read.py     TOML and key=value words to a run, and back
"""

from ddpsched.config.policy import FILLING, PACKED_PEERS, PolicyConfig
from ddpsched.config.read import apply_overrides, dump, load, parse, read_toml, set_key
from ddpsched.config.run import RunConfig
from ddpsched.config.tables import (
    CostConfig,
    DataConfig,
    ExecutorConfig,
    LrConfig,
    MemoryConfig,
    ModelConfig,
    OrderConfig,
    SyncConfig,
    TrainConfig,
)

__all__ = [
    "FILLING",
    "PACKED_PEERS",
    "CostConfig",
    "DataConfig",
    "ExecutorConfig",
    "LrConfig",
    "MemoryConfig",
    "ModelConfig",
    "OrderConfig",
    "PolicyConfig",
    "RunConfig",
    "SyncConfig",
    "TrainConfig",
    "apply_overrides",
    "dump",
    "load",
    "parse",
    "read_toml",
    "set_key",
]
