"""Runs that take turns step by step, in one process or on one set of ranks, so that their times can be compared.

``python -m experiments.interleaved CONFIG [CONFIG ...] [--block 1] [--overwrite] [--force]``, and for ranks
``torchrun --standalone --nproc-per-node 2 -m experiments.interleaved ...``. A CONFIG is the TOML file of a run, or of a
study whose runs are all of one setting and seed, with key=value words behind it. ``experiments.sweep`` starts this for
each setting and seed of a study.
"""

import sys
from collections.abc import Sequence
from typing import Any

from ddpsched.arguments import object_given
from ddpsched.config import RunConfig, load, read_toml
from ddpsched.decode import shorter
from ddpsched.errors import ConfigError
from ddpsched.visible_text import visible
from ddpsched.watch import Watch, start_watch

FLAGS = ("--overwrite", "--force")


def configs_of(words: Sequence[str]) -> tuple[list[RunConfig], dict[str, Any]]:
    """Return the runs that these words name, and what a study says of their comparison.

    Raises ConfigError for a study of several settings or seeds.
    """
    files = [word for word in words if "=" not in word]
    overrides = [word for word in words if "=" in word]
    if len(files) == 1 and "base" in read_toml(files[0]):
        from experiments.launches import launches
        from experiments.study import load_study

        found = [launch for launch in launches(load_study(files[0], overrides)) if launch.interleaved]
        if len(found) != 1:
            names = "; ".join(launch.label for launch in found) or "none that takes turns"
            raise ConfigError(
                f"study {files[0]} has {len(found)} settings and seeds to start ({names}); name one by key=value "
                "words, or run all: python -m experiments.sweep"
            )
        return list(found[0].runs), found[0].about
    return [load(file, overrides) for file in files], {}


def main(words: list[str], watch: Watch | None = None) -> int:
    """Run one rank of all runs; return 0 only where all are done."""
    from ddpsched.cli import guarded
    from ddpsched.interleaved import run_interleaved
    from ddpsched.world import World

    rest = [word for word in words if word not in FLAGS and not word.startswith("--launch=")]
    block = "1"
    if "--block" in rest[:-1]:
        at = rest.index("--block")
        block = rest[at + 1]
        del rest[at : at + 2]
    if not rest or rest[0].startswith("-"):
        print(__doc__.strip(), file=sys.stderr)
        return 2

    def body() -> int:
        if not block.isdecimal() or len(block) > 9:
            raise ConfigError(f"--block {shorter(block)}: give a whole number of steps, from 1 to 999999999")
        configs, about = configs_of(rest)
        about |= object_given(words, "--launch") or {}  # what a sweep knows of the comparison
        overwrite, force = (flag in words for flag in FLAGS)
        failed = run_interleaved(configs, block=int(block), overwrite=overwrite, force=force, watch=watch, about=about)
        if World.detect().is_main:
            for config in configs:
                reason = failed.get(config.name)
                ending = f"done: {config.run_dir}" if reason is None else f"failed: {config.run_dir}: {reason}"
                print(visible(ending, lines=True))
        return 1 if failed else 0

    return guarded(body)


if __name__ == "__main__":
    started = start_watch()  # before anything slow is imported
    code = main(sys.argv[1:], started)
    from ddpsched.cli import leave

    leave(code)
