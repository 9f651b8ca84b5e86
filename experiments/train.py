"""One rank of a run, for torchrun. Usage:

    torchrun --standalone --nproc-per-node 4 -m experiments.train CONFIG [key=value ...]
        [--overwrite] [--restart] [--force]

`ddpsched train` is the same. `--standalone` finds a free port; a `--master-port` that you give must be free.
Without torchrun it is one process, as `ddpsched run` is.
"""

import sys

from ddpsched.watch import start_watch

FLAGS = ("--overwrite", "--restart", "--force")
HELP = ("-h", "--help")


def main(words: list[str]) -> int:
    """Run one rank; return 0 only where the run is done, or where help was asked for, which is printed."""
    if set(words) & set(HELP):
        print(__doc__.strip())
        return 0
    watch = start_watch()  # a rank may die while the others are still importing
    from ddpsched.arguments import object_given
    from ddpsched.cli import run_config
    from ddpsched.errors import ConfigError

    names = [word for word in words if word not in FLAGS and not word.startswith("--launch=")]
    if not names or names[0].startswith("-"):
        print(f"error: no CONFIG is named\n\n{__doc__.strip()}", file=sys.stderr)
        return 2
    try:  # of a run that alternates with others as processes: which ones, for its environment.json
        launch = object_given(words, "--launch")
    except ConfigError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    options = {flag.removeprefix("--"): flag in words for flag in FLAGS}
    return run_config(names[0], names[1:], watch, launch=launch, **options)


if __name__ == "__main__":
    code = main(sys.argv[1:])
    from ddpsched.cli import leave

    leave(code)
