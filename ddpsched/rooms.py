"""The rooms beside the package, experiments, analysis and report: in a checkout, or within an installed wheel."""

import importlib
import os
import sys
from collections.abc import Sequence
from pathlib import Path

from ddpsched.errors import ConfigError

COMMANDS = {
    "sweep": "experiments.sweep",
    "train": "experiments.train",
    "analyse": "analysis.__main__",
    "timeline": "analysis.timeline",
    "report": "report.build",
}
EXTRA = ("jinja2", "markdown_it")  # packages that only the extra "report" installs


def rooms_folder() -> Path:
    """Return the folder in which the rooms are packages."""
    within = Path(__file__).parent / "rooms"
    return within if within.is_dir() else Path(__file__).parents[1]


def enter_rooms() -> None:
    """Let this process and those that it starts import the rooms, whatever the working directory has of their names."""
    folder = str(rooms_folder())
    if folder in sys.path:
        return
    sys.path.insert(0, folder)
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [folder, os.environ.get("PYTHONPATH")]))
    os.environ["PYTHONSAFEPATH"] = "1"


def run_in_room(command: str, words: Sequence[str]) -> int:
    """Run a command of COMMANDS with its arguments; return its exit code.

    Raises ConfigError where what only the report needs is not installed.
    """
    enter_rooms()
    sys.argv = [f"ddpsched {command}", *words]
    try:
        module = importlib.import_module(COMMANDS[command])
    except ModuleNotFoundError as error:
        if error.name not in EXTRA:
            raise
        raise ConfigError(f'{command} needs {error.name}: pip install "ddpsched[report]"') from None
    if hasattr(module, "app"):
        module.app(list(words), prog_name=sys.argv[0])  # which ends the process
    return int(module.main(list(words)))
