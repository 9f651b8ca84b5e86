"""Print two walks through the package, file by file: from lengths to the yardstick, and from a config to the step loop.

A walk is the functions and methods of ``ddpsched`` that a call enters, each once, in the order of their first entry.
Not counted: properties, special methods and nested functions, which are read where they are used.

    python -m experiments.walks            # print them
    python -m experiments.walks --write    # and into CONTRIBUTING.md
"""

import sys
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cached_property
from importlib import import_module
from itertools import groupby
from pathlib import Path
from types import FrameType
from typing import Any

import numpy as np

import ddpsched
from ddpsched.compare.arms import Question, compare
from ddpsched.config import load
from ddpsched.data.length_files import read_lengths
from ddpsched.run_loop import run

PACKAGE = Path(ddpsched.__file__).parent
CONTRIBUTING = Path(__file__).parents[1] / "CONTRIBUTING.md"
BEGIN, END = "<!-- walks -->", "<!-- end of walks -->"
CONFIG = """
epochs = 1
global_batch = 8
world_size = 2
policy = { kind = "static" }
executor = { kind = "virtual" }
"""

Entry = tuple[str, str]  # file, function


class _Arrived(Exception):
    """The end of the walk."""


@contextmanager
def entered(until: str = "") -> Iterator[list[Entry]]:
    """Collect the functions entered in here, and stop as the one named ``until`` is.

    Plans are made by a thread, whose functions stand behind the one that starts it.
    """
    entries, planner = dict[Entry, None](), dict[Entry, None]()
    walk: list[Entry] = []

    def enter(frame: FrameType, event: str, _: Any) -> None:
        path, name = Path(frame.f_code.co_filename), frame.f_code.co_qualname
        if event == "call" and path.is_relative_to(PACKAGE):
            main = threading.current_thread() is threading.main_thread()
            (entries if main else planner)[str(path.relative_to(PACKAGE)), name] = None
            if name == until:
                raise _Arrived

    threading.setprofile(enter)
    sys.setprofile(enter)
    try:
        yield walk
    except _Arrived:
        pass
    finally:
        sys.setprofile(None)
        threading.setprofile(None)
        whole = list(entries)
        if planner:
            start = 1 + whole.index(("planning/planner.py", "PrefetchedPlans.__next__"))
            whole[start:start] = [entry for entry in planner if entry not in entries]
        walk += filter(_is_counted, whole)


def _is_counted(entry: Entry) -> bool:
    file, name = entry
    if "<" in name or name.rpartition(".")[2].startswith("__"):
        return False
    member: Any = import_module("ddpsched." + file.removesuffix(".py").replace("/", "."))
    for part in name.split("."):
        if (member := vars(member).get(part)) is None:
            return not part.istitle()  # the body of a class is no function
    return not isinstance(member, property | cached_property | type)


def lengths_to_yardstick(folder: Path) -> list[Entry]:
    """Return the walk of ``ddpsched plan`` over a file of lengths with policy static, from the file to the figures."""
    path = folder / "lengths.npy"
    np.save(path, np.random.default_rng(0).integers(5, 60, 500))
    with entered() as walk:
        question = Question(lengths=read_lengths(path), world_size=4, global_batch=32)
        (row,) = compare(question, ["static"])
    assert row.figures is not None, row.skipped
    return walk


def config_to_loop(folder: Path) -> list[Entry]:
    """Return the walk of a run on virtual ranks with the embedded data, cached, from its config to the first step."""
    path = folder / "walk.toml"
    path.write_text(CONFIG + f'name = "walk"\noutputs = "{folder}"\n', encoding="utf-8")
    load(path).load_samples()
    with entered("_loop") as walk:
        run(load(path))
    return walk


def listed(walk: list[Entry]) -> str:
    """Return the walk as Markdown: a line for each stay in a file, in order."""
    return "\n".join(
        f"- `{file}`: " + ", ".join(f"`{name}`" for _, name in names)
        for file, names in groupby(walk, lambda each: each[0])
    )


def section() -> str:
    """Return both walks as Markdown."""
    parts = []
    with tempfile.TemporaryDirectory() as folder:
        for title, walk in (
            ("From lengths to the yardstick", lengths_to_yardstick(Path(folder))),
            ("From a config to the step loop", config_to_loop(Path(folder))),
        ):
            files = len({file for file, _ in walk})
            public = sum(not name.rpartition(".")[2].startswith("_") for _, name in walk)
            parts.append(
                f"{title}: {len(walk)} functions, of them {public} public, in {files} files.\n\n{listed(walk)}\n"
            )
    return "\n".join(parts)


def main() -> None:
    """Print the section, and write it into CONTRIBUTING.md with --write."""
    text = section()
    print(text)
    if "--write" in sys.argv[1:]:
        before, _, rest = CONTRIBUTING.read_text(encoding="utf-8").partition(BEGIN)
        after = rest.partition(END)[2]
        assert after, f"{CONTRIBUTING} has no {BEGIN} and {END}"
        CONTRIBUTING.write_text(f"{before}{BEGIN}\n\n{text}\n{END}{after}", encoding="utf-8")


if __name__ == "__main__":
    main()
