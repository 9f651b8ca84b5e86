"""``ddpsched plan``: policies and peers side by side on paper, without training anything."""

from ddpsched.compare.arms import Question, Row, compare

__all__ = ["Question", "Row", "compare"]
