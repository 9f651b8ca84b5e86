"""``ddpsched plan``: policies and peers side by side on paper, without training anything.

::

    arms.py        policies and peers over one epoch: planned, timed, measured
    gap.py         what plans take over the best there could be
    comparison.py  ddpsched.plan: the table as a value, and what it recommends
    show.py        the table in the terminal, the figure
    export.py      the plans themselves as Parquet or CSV
    command.py     `ddpsched plan`
"""

from ddpsched.compare.arms import Question, Row, compare

__all__ = ["Question", "Row", "compare"]
