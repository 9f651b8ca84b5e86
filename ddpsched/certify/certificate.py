"""What a certificate says: one check a property, each with what was compared, the number and the tolerance."""

import io
import math
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from rich import box
from rich.table import Table
from rich.text import Text

from ddpsched.terminal import plain_console


@dataclass(frozen=True)
class Check:
    """One property. ``says``: what was compared and what came of it; ``cause``: what most likely broke it;
    ``numbers``: those of ``says``, for programs.

    A check that could not be made does not hold; ``says`` then tells why.
    """

    name: str
    holds: bool
    says: str
    cause: str | None = None
    numbers: Mapping[str, float] = field(default_factory=dict)

    @classmethod
    def not_made(cls, name: str, why: str, cause: str | None = None) -> "Check":
        """A property of which nothing is known."""
        return cls(name, False, f"could not be checked: {why}", cause)


@dataclass(frozen=True)
class Certificate:
    """All that was checked of one subject, and the circumstances (``facts``).

    >>> bad = Check("resumption", False, "step 3 is another one", "the epoch begins anew")
    >>> Certificate("a loop", (Check("one plan", True, "2 ranks agree"), bad)).verdict
    'does not hold: 1 of 2 checks failed (resumption)'
    """

    subject: str
    checks: tuple[Check, ...]
    facts: tuple[str, ...] = field(default=())

    def __post_init__(self) -> None:
        object.__setattr__(self, "checks", tuple(self.checks))
        object.__setattr__(self, "facts", tuple(self.facts))

    @property
    def holds(self) -> bool:
        """Whether something was checked, and all of it holds."""
        return bool(self.checks) and all(check.holds for check in self.checks)

    @property
    def verdict(self) -> str:
        """One line."""
        if not self.checks:
            return "does not hold: nothing was checked"
        failed = [check.name for check in self.checks if not check.holds]
        if not failed:
            return f"holds: all {len(self.checks)} checks"
        return f"does not hold: {len(failed)} of {len(self.checks)} checks failed ({', '.join(failed)})"

    def as_dict(self) -> dict[str, Any]:
        """What ``--json`` prints; numbers that JSON does not know are null."""
        checks = [asdict(check) for check in self.checks]
        for check in checks:
            check["numbers"] = {name: x if math.isfinite(x) else None for name, x in check["numbers"].items()}
        return {"subject": self.subject, "holds": self.holds, "checks": checks, "facts": list(self.facts)}

    def table(self) -> Table:
        """For a terminal: a row a check."""
        rows = Table(
            title=self.subject, caption=self._caption(), box=box.SIMPLE_HEAD, title_justify="left",
            pad_edge=False, caption_justify="left", show_lines=False,
        )  # fmt: skip
        rows.add_column("check", no_wrap=True)
        rows.add_column("", no_wrap=True)
        rows.add_column("what was compared", overflow="fold")
        for check in self.checks:
            says = Text(check.says)
            if check.cause is not None:
                says.append("\nlikely cause:", style="bold").append(f" {check.cause}")
            held = Text("holds", style="green") if check.holds else Text("FAILS", style="red")
            rows.add_row(check.name, held, says)
        return rows

    def text(self, width: int = 110) -> str:
        """The same table without colours."""
        page = io.StringIO()
        plain_console(file=page, width=width, color_system=None).print(self.table())
        return "\n".join(line.rstrip() for line in page.getvalue().splitlines()).strip("\n")

    def _caption(self) -> str:
        return "\n".join([*(f"- {fact}" for fact in self.facts), f"verdict: {self.verdict}"])


def numbered(items: Iterable[Any], most: int = 5, between: str = ", ") -> str:
    """The first few, and how many more there are.

    >>> numbered(range(7))
    '0, 1, 2, 3, 4 and 2 more'
    """
    given = [str(item) for item in items]
    rest = len(given) - most
    return between.join(given[:most]) + (f" and {rest} more" if rest > 0 else "")


def ranks_named(ranks: Iterable[int]) -> str:
    """
    >>> ranks_named([2]), ranks_named([0, 1])
    ('rank 2', 'ranks 0, 1')
    """
    given = sorted(ranks)
    return f"rank{'s' * (len(given) != 1)} {numbered(given)}"


def count_of_ranks(count: int) -> str:
    """
    >>> count_of_ranks(1), count_of_ranks(4)
    ('1 rank', '4 ranks')
    """
    return f"{count} rank{'s' * (count != 1)}"
