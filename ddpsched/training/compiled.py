"""torch.compile of a run's model: programs for the shapes that steps have, made before the first of them.

A program is specialised on shapes (``compile.kind = "static"``), one for each of the menu, or has symbols for them
("dynamic"). The model is compiled in place, so that what wraps it, as DistributedDataParallel does, calls the program;
the names of its parameters stay. Its first call with a new shape traces and compiles, backward with it. That takes
seconds, and within a step all ranks would wait for the one that meets the shape: so every program is made at the start.

A model that is compiled whole has one backward function, which releases all gradients together: hooks of ``bucketed``
and ``overlap`` then begin behind it. DistributedDataParallel's splitter (``compile.split``) cuts the program at the
bounds of its buckets, so that a bucket travels while the next part runs backward; no part is larger than a bucket, and
buckets must be small for the first one to be cut at all.
"""

import logging
import os
import traceback
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from time import perf_counter
from typing import Any

import torch
from torch._dynamo import config as dynamo_config
from torch._dynamo import utils as dynamo_utils

from ddpsched.config import CompileConfig
from ddpsched.costs.shape_menu import Shape
from ddpsched.errors import RunError
from ddpsched.planning.shapes.choose import Menu
from ddpsched.planning.shapes.groups import group_of
from ddpsched.terminal import plain_console
from ddpsched.training.program_table import ProgramTable
from ddpsched.training.splits import recorded_splits

log = logging.getLogger("ddpsched")
CACHE = "TORCHINDUCTOR_CACHE_DIR"
RECORDED = 3  # runs of a program until its CUDA graph is recorded: to compile, to warm up, to record
SPARE = 8  # programs of a function beyond those of the menu, before the compiler gives up
COMPILERS = ("torch._dynamo", "torch._inductor", "torch._functorch")
TRIED: tuple[Shape, ...] = ((2, 8), (3, 12), (1, 5))  # for programs of any shape; one row is a case of its own


class Programs:
    """The compiled programs of one model."""

    def __init__(self, options: CompileConfig, menu: Menu) -> None:
        self._options, self._menu = options, menu
        self._live: list[Shape] = []  # shapes that have programs, where few may
        self._groups: list[dict[str, Any]] = []
        self._seen = self._steps = 0
        self._is_compiled = False
        self._reasons: dict[int, str] = {}
        self._seconds = 0.0  # of all compilations of this process, by the last look
        self._within = {"programs": 0, "seconds": 0.0}  # compiled within steps, as those do that meet every shape

    def make(self, model: torch.nn.Module, backward: Callable[[int, int], None]) -> dict[str, Any]:
        """Compile ``model`` in place, and make its programs by ``backward(rows, length)``, forward and backward.

        Returns what was made, for environment.json. Where the compiler fails, the model stays as it was, with one
        warning, or RunError is raised, as ``on_failure`` says.
        """
        options = self._options
        _cache_in(options.cache)
        _raise_limit(len(self._menu.shapes) + SPARE)
        dynamo_config.optimize_ddp = options.split
        inductor: dict[str, Any] = {} if options.mode == "default" else {"mode": options.mode}
        dynamic = options.kind == "dynamic"
        compiler = partial(torch.compile, dynamic=dynamic, backend=options.backend, **inductor)
        self._table = ProgramTable(model, compiler, options.backend == "inductor")
        model._compiled_call_impl = self._table  # as torch.nn.Module.compile sets it
        self._live = list(self._menu.shapes[: options.live] if options.live else ())
        # one at least, to see that the compiler works
        covered = self._live or self._menu.warm_up or self._menu.shapes[:1] or TRIED
        begin, made = perf_counter(), list[dict[str, Any]]()
        breaks_before = len(dynamo_utils.graph_break_reasons)
        try:
            for rows, length in _with_progress(in_own_order(covered)):
                start, before = perf_counter(), _parts()
                with recorded_splits() as splits:
                    for _ in range(RECORDED if options.records_graphs else 1):
                        self._run(rows, length, backward)
                seconds, parts = round(perf_counter() - start, 3), _parts() - before
                made.append({"rows": rows, "length": length, "parts": parts, "splits": splits, "seconds": seconds})
                log.info("compile: program %d of %d in %.1f s", len(made), len(covered), seconds)
        except Exception as error:  # the compiler's are of many types; all others are raised again
            self._fail(model, error)
            return {"kind": "eager", "failed": _first_line(error)}
        self._is_compiled, self._steps = True, 0
        self._look()
        breaks = _breaks(breaks_before)
        for each in breaks:
            log.warning("compile: %s breaks the graph, and runs in parts: %s", type(model).__name__, each)
        return {
            "kind": options.kind,
            "backend": options.backend,
            "mode": options.mode,
            "menu": [list(shape) for shape in self._menu.shapes],
            "cover_steps": self._menu.cover_steps,
            "programs": made,
            "seconds": round(perf_counter() - begin, 3),
            "breaks": breaks,
            "within_steps": self._within,
            **({} if options.live is None else {"groups": self._groups}),
        }

    def _run(self, rows: int, length: int, backward: Callable[[int, int], None]) -> None:
        if self._options.kind == "static":
            self._table.add((rows, length))
        backward(rows, length)

    @property
    def are_few(self) -> bool:
        """Whether only some programs are there at a time."""
        return self._is_compiled and self._options.live is not None

    def exchange(
        self, model: torch.nn.Module, needed: Collection[Shape], step: int, backward: Callable[[int, int], None]
    ) -> bool:
        """Let the programs of a step's shapes be there; return whether that took others in place of those there were.

        ``model``, ``backward``, and what happens where the compiler fails: as in :meth:`make`. Dropped programs give
        their memory back; those of other models of this process are dropped, too. What was made is in the entry that
        ``make`` returned, with the seconds it took.
        """
        assert self._options.live is not None
        if set(needed) <= set(self._live):
            return False
        self._live = group_of(self._menu.shapes, needed, self._options.live, self._live)
        begin = perf_counter()
        torch.compiler.reset()
        self._table.clear()
        try:
            for rows, length in in_own_order(self._live):
                self._run(rows, length, backward)
        except Exception as error:  # the compiler's are of many types; all others are raised again
            self._fail(model, error)
            self._is_compiled = False
            self._groups.append({"step": step, "failed": _first_line(error)})
            return True
        shapes, seconds = [list(shape) for shape in self._live], round(perf_counter() - begin, 3)
        self._groups.append({"step": step, "shapes": shapes, "seconds": seconds})
        self._look()
        return True

    def begin_step(self) -> None:
        """Count a step, of which the first ones may be there to meet every shape; forget what other runs compiled."""
        self._steps += 1
        if self._is_compiled and _graphs() != self._seen:  # of runs that take turns in this process
            self._look()

    def _look(self) -> None:
        self._seen, self._reasons, self._seconds = _graphs(), _reasons(), _seconds()

    def recompiled(self) -> str | None:
        """Return why the model was compiled since the last call, a step before; None where it was not.

        Raises RunError instead where the config says so, but not in the first steps, which are to meet every shape.
        """
        if not self._is_compiled or _graphs() == self._seen:
            return None
        known, before, seen = self._reasons, self._seconds, self._seen
        self._look()
        self._within["programs"] += self._seen - seen
        self._within["seconds"] = round(self._within["seconds"] + self._seconds - before, 3)
        new = [reason for compilation, reason in self._reasons.items() if compilation not in known]
        reason = "; ".join(new) or "the guards give no reason"
        if self._options.on_recompile == "stop" and self._steps > self._menu.cover_steps:
            raise RunError(
                f"the model was compiled within a step ({reason}); let compile.cover meet every shape, or set "
                "compile.on_recompile = 'record'"
            )
        return reason

    def _fail(self, model: torch.nn.Module, error: Exception) -> None:
        """Let the model run eagerly with a warning, or raise RunError, as ``on_failure`` says. Raises other errors."""
        if not _is_of_compiler(error):
            raise error
        uncompile(model)
        if self._options.on_failure == "stop":
            raise RunError(
                f"compile.backend = {self._options.backend!r} failed ({_first_line(error)}); give no [compile], "
                "or compile.backend = 'aot_eager', which needs no C++ compiler, or compile.on_failure = 'eager'"
            ) from error
        log.warning(
            "compile.backend = %r failed, the model runs eagerly, on the menu of shapes if there is one; set "
            "compile.kind = 'eager' to plan without: %s",
            self._options.backend,
            _first_line(error),
        )


_ours: str | None = None  # the folder that a run of this process has given to the compiler


def _cache_in(folder: str | None) -> None:
    """Let the compiler keep its files in a folder; None for its own, also after a run that gave one."""
    global _ours
    if folder is None and _ours is not None and os.environ.get(CACHE) == _ours:
        del os.environ[CACHE]
    _ours = None if folder is None else os.path.abspath(folder)
    if _ours is not None:
        os.environ[CACHE] = _ours


def uncompile(model: torch.nn.Module) -> None:
    """Let the model run eagerly again."""
    model._compiled_call_impl = None


@contextmanager
def run_eagerly(model: torch.nn.Module) -> Iterator[None]:
    """Let a compiled model run eagerly within the context."""
    compiled = model._compiled_call_impl
    uncompile(model)
    try:
        yield
    finally:
        model._compiled_call_impl = compiled


def _with_progress(shapes: Sequence[Shape]) -> Iterator[Shape]:
    """Yield the shapes, with a bar on a terminal."""
    from rich.progress import track

    console = plain_console(stderr=True)
    yield from track(shapes, "compiling", console=console, disable=not console.is_terminal)


def in_own_order(shapes: Sequence[Shape]) -> list[Shape]:
    """Return the shapes, begun elsewhere by each rank of a machine.

    What one rank has compiled by the time another comes to it, the other takes from the compiler's cache on disk.
    """
    rank, ranks = int(os.environ.get("LOCAL_RANK", 0)), int(os.environ.get("LOCAL_WORLD_SIZE", 1))  # torchrun's
    begin = len(shapes) * rank // ranks
    return [*shapes[begin:], *shapes[:begin]]


def _raise_limit(programs: int) -> None:
    """Let the compiler make so many more programs of a function; several models of a process share their functions."""
    for new, old in (("recompile_limit", "cache_size_limit"), ("accumulated_recompile_limit",) * 2):
        name = new if hasattr(dynamo_config, new) else old.replace("recompile_limit", "cache_size_limit")  # torch 2.6
        setattr(dynamo_config, name, getattr(dynamo_config, name) + programs)


def _graphs() -> int:
    """Return how many graphs were captured in this process."""
    return int(dynamo_utils.counters["stats"]["unique_graphs"])


def _seconds() -> float:
    """Return the seconds of all compilations of this process."""
    return sum(dynamo_utils.compilation_time_metrics.get("_compile.compile_inner", ()))


def _reasons() -> dict[int, str]:
    """Return why functions were compiled anew, of the latest 64 compilations, which the compiler remembers."""
    # by identity, as the numbers that the compiler gives them begin anew with each torch.compiler.reset()
    found = {id(each): getattr(each, "recompile_reason", None) for each in dynamo_utils.get_compilation_metrics()}
    return {compilation: " ".join(reason.split()) for compilation, reason in found.items() if reason}


def _parts() -> int:
    """Return how many programs were made in this process: a graph that is cut up is made in parts."""
    return int(dynamo_utils.counters["aot_autograd"]["ok"])


def _breaks(known: int) -> list[str]:
    """Return where and why graphs were broken, each line of code once, but for the first ``known`` of this process."""
    found = list[str]()
    for each in dynamo_utils.graph_break_reasons[known:]:
        where = f"{each.user_stack[-1].filename}:{each.user_stack[-1].lineno}: " if each.user_stack else ""
        found.append(where + " ".join(each.reason.split()))
    return list(dict.fromkeys(found))


def _is_of_compiler(error: BaseException) -> bool:
    """Return whether an error comes from the compiler, and not from what it compiles, as running out of memory does.

    Some of the compiler's errors are plain assertions, which only the file that raised them tells apart.
    """
    if any(type(each).__module__.startswith(COMPILERS) for each in _chain(error)):
        return True
    last = traceback.extract_tb(error.__traceback__)[-1].filename
    return any(f"{os.sep}{name.replace('.', os.sep)}{os.sep}" in last for name in COMPILERS)


def _chain(error: BaseException | None) -> Iterator[BaseException]:
    while error is not None:
        yield error
        error = error.__cause__ or error.__context__


def _first_line(error: Exception) -> str:
    lines = str(error).strip().splitlines() or [""]
    said = 2 if lines[0].endswith("raised:") else 1  # the compiler's errors name the backend, and then its error
    return f"{type(error).__name__}: {' '.join(lines[:said])}"
