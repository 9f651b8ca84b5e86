"""``ddpsched plan``: policies and peers side by side on paper, without training anything.

::

    arms.py      policies and peers over one epoch: planned, timed, measured
    show.py      the table in the terminal, the figure
    export.py    the plans themselves as Parquet
    command.py   `ddpsched plan`
"""

from ddpsched.compare.arms import Question, Row, compare

__all__ = ["Question", "Row", "compare"]
