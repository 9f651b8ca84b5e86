"""The progress of a run in its own process: a bar on a terminal, sparse lines in a log."""

import logging
import sys
from collections.abc import Sequence
from time import monotonic

from rich.progress import BarColumn, Progress, TextColumn

from ddpsched.monitor.durations import clock
from ddpsched.records import StepRecord
from ddpsched.terminal import is_live, plain_console

log = logging.getLogger("ddpsched")
DRAW_EVERY_S = 0.5
LINE_EVERY_S = 10.0
IN_BAR = "in_bar"  # marks a line of the log that a terminal with a bar need not show


class ProgressOfRun:
    """A bar, where ``has_bar`` and there is a terminal; a line in the log every ten seconds, and after the last step.

    ``total``: the steps of the whole run, of which ``done`` were done before. The bar is drawn between two steps, by
    no thread of its own, so that no step is measured longer for it.
    """

    def __init__(self, total: int, done: int, has_bar: bool) -> None:
        self._total, self._first, self._done, self._loss = total, done, done, ""
        self._begun_s = self._drawn_s = self._logged_s = monotonic()
        self._bar: Progress | None = None
        console = plain_console(stderr=True)
        if has_bar and is_live(console) and sys.stdout.isatty():
            self._bar = Progress(
                TextColumn("step {task.completed}/{task.total}", markup=False),
                BarColumn(bar_width=None),
                TextColumn("{task.fields[words]}", markup=False),
                console=console,
                auto_refresh=False,
                expand=True,
            )
            self._task = self._bar.add_task("", total=max(total, 1), completed=done, words="")
            self._bar.start()

    def add(self, done: int, records: Sequence[StepRecord]) -> None:
        """Note that so many steps are done, the last of them with these records."""
        now, self._done = monotonic(), done
        loss = next((record.loss for record in records if record.loss is not None), None)
        self._loss = "" if loss is None else f"loss {loss:.4f}, "
        self._total = max(self._total, done)  # estimated, where B varies
        if now - self._logged_s >= LINE_EVERY_S or done == self._total:
            self._logged_s = now
            words = f"step {done} of about {self._total}, {self._loss}{self._words(now)}"
            log.info("%s", words, extra={IN_BAR: self._bar is not None})
        if self._bar is not None and (now - self._drawn_s >= DRAW_EVERY_S or done == self._total):
            self._draw(now)

    def _words(self, now: float) -> str:
        """Return the speed since this process began its steps, and the time that is left, or was taken."""
        steps, seconds = self._done - self._first, now - self._begun_s
        pace = steps / seconds if seconds > 0 else 0.0
        speed = f"{pace:.1f} steps/s" if pace >= 1 else f"{1 / pace:.1f} s/step" if pace > 0 else "-"
        if self._done >= self._total:
            return f"{speed}, in {clock(seconds)}"
        return f"{speed}, {clock((self._total - self._done) / pace if pace > 0 else None)} left"

    def _draw(self, now: float) -> None:
        assert self._bar is not None
        self._drawn_s = now
        words = f"{self._loss}{self._words(now)}"
        self._bar.update(self._task, total=max(self._total, 1), completed=self._done, words=words, refresh=True)

    def close(self) -> None:
        """Leave the bar as it is."""
        if self._bar is not None:
            self._bar.stop()
            self._bar = None
