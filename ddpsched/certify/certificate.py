"""Certificates: a list of checks, each with what was compared, the numbers, and the likely cause of a failure."""

import io
import math
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from rich import box
from rich.table import Table
from rich.text import Text

from ddpsched.terminal import plain_console
from ddpsched.visible_text import visible


@dataclass(frozen=True)
class Check:
    """The result of checking one property.

    ``says``: what was compared, and the result. ``cause``: the likely cause of a failure. ``numbers``: the numbers in
    ``says``, for programs. A check that could not be made does not hold; ``says`` then gives the reason.
    """

    name: str
    holds: bool
    says: str
    cause: str | None = None
    numbers: Mapping[str, float] = field(default_factory=dict)

    @classmethod
    def not_made(cls, name: str, why: str, cause: str | None = None) -> "Check":
        """Return the check of a property that could not be checked."""
        return cls(name, False, f"could not be checked: {why}", cause)


@dataclass(frozen=True)
class Certificate:
    """All checks of one subject, and the circumstances they were made in (``facts``).

    >>> bad = Check("resumption", False, "step 3 differs", "the epoch starts over")
    >>> Certificate("a loop", (Check("one plan", True, "2 ranks agree"), bad)).verdict
    'does not hold: 1 of 2 checks failed (resumption)'
    """

    subject: str
    checks: tuple[Check, ...]
    facts: tuple[str, ...] = ()

    @property
    def holds(self) -> bool:
        """Whether something was checked and every check holds."""
        return bool(self.checks) and all(check.holds for check in self.checks)

    @property
    def verdict(self) -> str:
        """The result in one line."""
        if not self.checks:
            return "does not hold: nothing was checked"
        failed = [check.name for check in self.checks if not check.holds]
        if not failed:
            return f"holds: all {len(self.checks)} checks"
        return f"does not hold: {len(failed)} of {len(self.checks)} checks failed ({', '.join(failed)})"

    def as_dict(self) -> dict[str, Any]:
        """Return what ``--json`` prints; NaN and infinity, which JSON lacks, become null."""
        checks = [asdict(check) for check in self.checks]
        for check in checks:
            check["numbers"] = {name: x if math.isfinite(x) else None for name, x in check["numbers"].items()}
        return {"subject": self.subject, "holds": self.holds, "checks": checks, "facts": list(self.facts)}

    def __str__(self) -> str:
        return self.text()

    def table(self) -> Table:
        """Return a table for the terminal, one row per check."""
        caption = "\n".join([*(f"- {fact}" for fact in self.facts), f"verdict: {self.verdict}"])
        rows = Table(
            title=self.subject, caption=caption, box=box.SIMPLE_HEAD, title_justify="left", pad_edge=False,
            caption_justify="left", show_lines=False,
        )  # fmt: skip
        rows.add_column("check", no_wrap=True)
        rows.add_column("", no_wrap=True)
        rows.add_column("what was compared", overflow="fold")
        for check in self.checks:
            says = Text(visible(check.says, lines=True))
            if check.cause is not None:
                says.append("\nlikely cause:", style="bold").append(f" {check.cause}")
            held = Text("holds", style="green") if check.holds else Text("FAILS", style="red")
            rows.add_row(check.name, held, says)
        return rows

    def text(self, width: int = 110) -> str:
        """Return the same table as plain text, ``width`` characters wide."""
        page = io.StringIO()
        plain_console(file=page, width=width, color_system=None).print(self.table())
        return "\n".join(line.rstrip() for line in page.getvalue().splitlines()).strip("\n")


def first_few(items: Iterable[Any], most: int = 5, between: str = ", ") -> str:
    """Return the first ``most`` items as text, and how many more there are.

    >>> first_few(range(7))
    '0, 1, 2, 3, 4 and 2 more'
    """
    words = [str(item) for item in items]
    return between.join(words[:most]) + (f" and {len(words) - most} more" if len(words) > most else "")


def ranks_named(ranks: Iterable[int]) -> str:
    """Return the first few of these ranks as text.

    >>> ranks_named([2]), ranks_named([0, 1])
    ('rank 2', 'ranks 0, 1')
    """
    numbers = sorted(ranks)
    return f"rank{'s' * (len(numbers) != 1)} {first_few(numbers)}"


def count_of_ranks(count: int) -> str:
    """Return a number of ranks as text.

    >>> count_of_ranks(1), count_of_ranks(4)
    ('1 rank', '4 ranks')
    """
    return f"{count} rank{'s' * (count != 1)}"
