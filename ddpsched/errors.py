"""Errors, as one tree.

::

    DdpschedError
    ├── ConfigError      (ValueError)   an unknown key, a wrong type, a value out of range
    ├── DataError        (ValueError)   a file, a column, a label or a text that cannot be used
    ├── InfeasibleError  (ValueError)   no allocation exists for these numbers
    ├── SolverTimeout    (TimeoutError) a solver has no allocation at its time limit
    ├── PeerMissing                     another package's batching cannot be called here
    ├── RunExistsError                  a finished run has this id already
    │   └── RunFinishedError            this launch has finished it, in an attempt before
    ├── RunHeldError                    a run that lives has this id
    └── RunError                        a run that started could not go on
        ├── StepOutOfMemory             names rank, step, batch and length
        ├── PlanMismatch                ranks planned different steps
        ├── NonFiniteError              a loss or gradient that is not a number
        ├── RankFailure                 a rank died or stopped answering
        └── RunStopped                  a signal asked it to stop, and it ended in order

Every message gives the value, the allowed range and the remedy.
"""

from ddpsched.visible_text import visible

AGAIN = "remove the run (ddpsched runs rm) and run it again"  # for files of a finished run that cannot be used


class DdpschedError(Exception):
    """The root of all errors that ddpsched raises on purpose; messages quote what others wrote, as visible text."""

    def __str__(self) -> str:
        return visible(super().__str__(), lines=True)


class ConfigError(DdpschedError, ValueError):
    """A config that cannot be run."""


class DataError(DdpschedError, ValueError):
    """Data that cannot be used as it is."""


class InfeasibleError(DdpschedError, ValueError):
    """No allocation exists under the given batch size, window and caps."""


class PeerMissing(DdpschedError):
    """Another package's batching cannot be called here; ``reason`` gives the cause and the remedy."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


class SolverTimeout(DdpschedError, TimeoutError):
    """A solver has no allocation at its time limit."""


class RunExistsError(DdpschedError):
    """A finished run has this id already."""


class RunFinishedError(RunExistsError):
    """An earlier attempt of this launch has finished the run, so nothing is left to do."""


class RunHeldError(DdpschedError):
    """A run that lives, or may do so, works in this folder."""


class RunError(DdpschedError):
    """A run that had started and could not go on."""


class StepOutOfMemory(RunError):
    """Ranks ran out of memory; ``ranks``: which, where all ranks know it and may repeat the step."""

    def __init__(self, message: str, ranks: tuple[int, ...] = ()) -> None:
        super().__init__(message)
        self.ranks = ranks


class PlanMismatch(RunError):
    """Two ranks hold different plans for the same step."""


class NonFiniteError(RunError):
    """A loss or a gradient is NaN or infinite."""


class RankFailure(RunError):
    """A rank is gone or does not answer."""


class RunStopped(RunError):
    """A run that a signal asked to stop, and that stopped between two steps."""
