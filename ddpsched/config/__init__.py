"""The configuration of a run as one frozen value, read from TOML and ``key=value`` words.

``load("study.toml", ["seed=1", "policy.kind=minmax"])`` gives a ``RunConfig``.
An unknown key, a wrong type or a value out of range is a ``ConfigError`` that
names the key, the value and the allowed values. Each table stands with the code
that reads it: [data], [cost], [memory] and [order] in their folders, [policy] in
the policy's file.

::

    run.py      RunConfig, and the checks between tables
    tables.py   the tables that training reads
    read.py     a run from TOML and key=value words, and back to TOML
    keys.py     every key with its default, type and sentence
"""

from ddpsched.config.read import apply_overrides, dump, load, parse, read_toml, set_key, validate
from ddpsched.config.run import RunConfig
from ddpsched.config.tables import CompileConfig, ExecutorConfig, LrConfig, ModelConfig, SyncConfig, TrainConfig

__all__ = [
    "CompileConfig", "ExecutorConfig", "LrConfig", "ModelConfig", "RunConfig", "SyncConfig", "TrainConfig",
    "apply_overrides", "dump", "load", "parse", "read_toml", "set_key", "validate",
]  # fmt: skip
