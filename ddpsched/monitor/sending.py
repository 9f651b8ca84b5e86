"""The numbers of a run's steps, sent to its sinks by rank 0; a sink that fails is left out, and the run goes on."""

import logging
from collections.abc import Callable, Mapping
from pathlib import Path
from time import monotonic

from ddpsched.decode import shorter
from ddpsched.errors import DataError
from ddpsched.monitor.follower import Follower
from ddpsched.monitor.sinks import Sink
from ddpsched.monitor.summary import Summary, arrays_of, summarise
from ddpsched.monitor.whole_steps import WholeSteps

log = logging.getLogger("ddpsched")
LOOK_EVERY_S = 1.0


class Sending:
    """The sinks of a run in ``folder``, which get each step once the records of all its ranks are there.

    Records are read from the ranks' files, once a second between two steps: nothing more is exchanged between ranks.
    ``tell``: is called with the state of every sink, at the start and as it changes, for status.json.
    ``by_tokens``: losses are means over label tokens.
    """

    def __init__(
        self, sinks: Mapping[str, Sink], folder: Path, by_tokens: bool, tell: Callable[[dict[str, str]], None]
    ) -> None:
        self._sinks, self._by_tokens, self._tell = dict(sinks), by_tokens, tell
        self._states = dict.fromkeys(sinks, "open")
        self._follower, self._steps, self._looked_s = Follower(folder), WholeSteps(), monotonic()

    def begin(self) -> None:
        """Pass over the records of an earlier start; called once the run's folder is begun, and nothing written."""
        if self._sinks:
            self._follower.pass_over()
            self._say()

    def look(self, always: bool = False) -> None:
        """Send the steps that are whole, if a second has passed since the last time, or ``always``."""
        if not self._sinks or (not always and monotonic() - self._looked_s < LOOK_EVERY_S):
            return
        self._looked_s = monotonic()
        try:
            for records in self._follower.read_all():
                for step in self._steps.add(records):
                    means = summarise(arrays_of(step), self._by_tokens, with_ranks=False)
                    self._send(numbers(means), step[0].step)
        except (OSError, DataError) as error:  # of the files, which the run's end reads as well
            log.warning("log.sinks: records could not be read (%s); sinks lack their steps", error)

    def _send(self, values: dict[str, float], step: int) -> None:
        for name, sink in list(self._sinks.items()):
            try:
                sink.log(step, values)
            except Exception as error:  # whatever another package raises
                del self._sinks[name]
                self._lose(name, f"left out from step {step} on", error)

    def close(self, failed: bool) -> None:
        """Send what is left, and finish all sinks; a second time does nothing."""
        self.look(always=True)
        ending, self._sinks = self._sinks, {}
        for name, sink in ending.items():
            self._states[name] = "closed"
            try:
                sink.close(failed)
            except Exception as error:  # as above
                self._lose(name, "may lack the last steps", error)
        if ending:
            self._say()

    def _lose(self, name: str, what: str, error: Exception) -> None:
        self._states[name] = f"{what}: {shorter(f'{type(error).__name__}: {error}', 200)}"
        log.warning("log.sinks: %s %s; the run goes on, and its records have all steps", name, self._states[name])
        self._say()

    def _say(self) -> None:
        try:
            self._tell(dict(self._states))
        except OSError as error:
            log.warning("log.sinks: status.json could not be written (%s)", error)


def numbers(step: Summary) -> dict[str, float]:
    """Return what a sink gets of a step, by name; what was not measured is left out."""
    found = {
        "loss": step.loss,
        "lr": step.lr,
        "grad_norm": step.grad_norm,
        "step_s": step.step_s,
        "max_over_mean_compute": step.max_over_mean_compute,
        "padding_share": step.padding,
        "waiting_share": step.waiting,
        "global_batch": step.global_batch,
    }
    return {name: value for name, value in found.items() if value is not None}
