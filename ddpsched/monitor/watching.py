"""ddpsched watch: the table of a run, drawn anew as records come; of any process that writes them, ours or not."""

from collections import deque
from dataclasses import dataclass, field
from pathlib import Path
from time import monotonic, sleep

from rich.console import RenderableType
from rich.live import Live

from ddpsched.decode import decode_toml
from ddpsched.errors import AGAIN, DataError
from ddpsched.heartbeat import behind
from ddpsched.monitor.durations import clock, seconds_since
from ddpsched.monitor.follower import Follower
from ddpsched.monitor.found import FoundRun, find_run, name_of
from ddpsched.monitor.parquet import read_parquet
from ddpsched.monitor.summary import Arrays, Summary, arrays_of, summarise
from ddpsched.monitor.view import sentences, view
from ddpsched.monitor.whole_steps import WholeSteps
from ddpsched.records import RECORDS, StepRecord
from ddpsched.regular_file import read_regular
from ddpsched.run_folder import STATUS, read_status
from ddpsched.run_lock import refusal
from ddpsched.terminal import is_live, plain_console, sized_console
from ddpsched.visible_text import visible

WINDOW = 50  # steps of the means
TAIL = 2**20  # bytes of each rank's file that the first look begins with
LOOK_EVERY_S = 0.5
LINE_EVERY_S = 10.0  # where nothing can be drawn anew
SILENT_S = 10.0  # without a record, after which it is said


@dataclass
class Watched:
    """A run that is watched: what is known of it, by its files alone."""

    folder: Path
    run: FoundRun | None = None  # None before its status is there
    steps: deque[list[StepRecord]] = field(default_factory=lambda: deque(maxlen=WINDOW))
    heard_s: float = field(default_factory=monotonic)  # when the last step came, by the files' dates at the first look

    def __post_init__(self) -> None:
        self._follower, self._whole, self._restarts = Follower(self.folder, TAIL), WholeSteps(), 0
        self._by_tokens: bool | None = None
        self._kept: Arrays | None = None  # of records.parquet, where the lines of a run that has ended are gone

    def look(self) -> None:
        """Read what is new. Raises DataError where the folder is no run's, or its status cannot be read."""
        if read_status(self.folder)["state"] == "absent" and refusal(self.folder) is not None:
            return  # it loads its data and model: a process holds the folder, and has not begun it
        begins = self.run is None
        self.run = find_run(self.folder)  # before the records, so that those of an ended run are all read
        for records in self._follower.read_all(self.ended):
            if self._follower.num_restarts != self._restarts:
                self._restarts, self._whole = self._follower.num_restarts, WholeSteps()
                self.steps.clear()
            if whole := self._whole.add(records):
                self.steps.extend(whole)
                self.heard_s = monotonic()
        if begins:
            silent_s = min(self._follower.silent_s(), seconds_since(self.run.started))  # it may go on after a stop
            self.heard_s = monotonic() - max(0.0, silent_s)
        if self.ended and not self.steps and (self.folder / RECORDS).exists():
            self._kept = read_parquet(self.folder / RECORDS)

    @property
    def ended(self) -> bool:
        """Whether the run is over."""
        return self.run is not None and self.run.state != "running"

    @property
    def done(self) -> int:
        """The steps that are done on all ranks."""
        if self._kept is not None:
            return int(self._kept["step"].max()) + 1
        return self.steps[-1][0].step + 1 if self.steps else 0

    def summary(self) -> Summary | None:
        """Return the means of the last steps; None before the first."""
        if not self.steps and self._kept is None:
            return None
        if self._by_tokens is None:
            self._by_tokens = by_tokens(self.folder)
        if self._kept is not None:
            last = self._kept["step"] >= self.done - WINDOW
            return summarise({name: column[last] for name, column in self._kept.items()}, self._by_tokens)
        return summarise(arrays_of([record for step in self.steps for record in step]), self._by_tokens)

    def heading(self, summary: Summary | None) -> str:
        """Return one line: state, steps, time left or taken."""
        if self.run is None:
            return f"{name_of(self.folder)}: starting"
        total = self.run.total_steps
        words = [self.run.state]
        if summary is not None:
            about = f" of {'about ' * (self.run.state == 'running')}{max(total, self.done)}" if total else ""
            words += [f"step {self.done}{about}", f"epoch {summary.epoch}"]
        if self.ended:
            if self.run.wall_s is not None:
                words.append(f"took {clock(self.run.wall_s)}")
        elif total and summary is not None and summary.pace:
            words.append(f"{clock((total - self.done) / summary.pace)} left")
        return f"{self.run.name}: {', '.join(words)}"

    def notes(self) -> list[str]:
        """Return what is not as it should be, a line each."""
        found = []
        if self.run is not None and self.run.reason:
            found.append(self.run.reason)
        if self.run is not None and not self.steps and self._kept is None:
            found.append(f"no records: {AGAIN}" if self.ended else "no records yet")
        if (silent_s := monotonic() - self.heard_s) > SILENT_S and not self.ended and self.steps:
            signs = behind(self.folder / "logs", self.steps[-1][0].world_size)
            where = f"; rank {signs[0].rank} was last seen {signs[0]}" if signs else ""
            found.append(f"no step for {clock(silent_s)}{where}")
        sinks = (self.run.sinks if self.run is not None else None) or {}
        found += [f"{name}: {state}" for name, state in sinks.items() if state not in ("open", "closed")]
        if number := self._follower.num_left_out:
            lines = f"{number:,} line{'s' * (number > 1)}"
            found.append(f"{lines} of records left out; the first is {self._follower.first_left_out}")
        return [visible(note) for note in found]


def by_tokens(folder: Path) -> bool:
    """Return whether the losses of a run are means over label tokens, as its config says."""
    try:
        config = decode_toml(read_regular(folder / "config.toml").decode())
        return config.get("train", {}).get("target") in (None, "token_mean")
    except (OSError, ValueError, AttributeError):  # whoever reads the config says what is wrong with it
        return False


def watch(folder: Path) -> int:
    """Show a run until it ends; return 0 where it is done, 1 where it failed, 130 after Ctrl-C.

    Raises DataError where the folder is no run's.
    """
    if not folder.is_dir():
        raise DataError(f"{folder}: there is no such folder; give a run's, outputs/STUDY/RUN: the one with {STATUS}")
    watched = Watched(folder)
    watched.look()
    try:
        if is_live(console := plain_console()):
            with Live(console=console, auto_refresh=False, vertical_overflow="crop") as live:
                while True:
                    live.update(_drawn(watched), refresh=True)
                    if watched.ended:
                        break
                    sleep(LOOK_EVERY_S)
                    watched.look()
        else:
            _print_lines(watched)
    except KeyboardInterrupt:
        return 130
    assert watched.run is not None
    return 0 if watched.run.state == "done" else 1


def _drawn(watched: Watched) -> RenderableType:
    summary = watched.summary()
    return view(watched.heading(summary), watched.notes(), summary, sized_console())


def _print_lines(watched: Watched) -> None:
    """Print a line every ten seconds, and the table at the end, for a log or a terminal that cannot draw."""
    while not watched.ended:
        summary = watched.summary()
        words = [watched.heading(summary), *(sentences(summary) if summary is not None else []), *watched.notes()]
        print(visible("; ".join(words)), flush=True)
        until = monotonic() + LINE_EVERY_S
        while monotonic() < until and not watched.ended:
            sleep(LOOK_EVERY_S)
            watched.look()
    sized_console().print(_drawn(watched))
