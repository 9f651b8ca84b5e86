"""The turns of ranks: what each has posted of an iteration, and whether it did since they were compared last.

One plan may be iterated many times in a process group, so that a rank was there once says little. Each process numbers
the iterations that it begins; a posting carries that number, its *turn*, and counts where it is later than the turn of
that rank that was compared before, or is of the iteration in which that rank still is. A rank may be ahead, and have
begun the same plan once more before it is compared here: then the first turn counts that went beyond its first list,
which all earlier ones were only a look at.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any
from weakref import WeakKeyDictionary

BEYOND = "/beyond"  # the kind of a posting that more than a look at one list is taken
OVER = "/over"  # the kind of one that the last list was handed out
KEPT = 16  # turns of one plan that a posting keeps


@dataclass
class Turns:
    """The iterations of one process group, as this process knows them.

    ``begun``: how many this process has begun. ``matched``: of each rank, by name, the latest turn that was compared,
    and the digest of its plan. ``open``: digests of iterations that began here and were not compared yet.
    """

    begun: int = 0
    matched: dict[str, tuple[int, str]] = field(default_factory=dict)
    open: set[str] = field(default_factory=set)


_turns: WeakKeyDictionary[Any, Turns] = WeakKeyDictionary()  # by process group


class Postings:
    """Postings of ranks about one iteration, in a store.

    ``digest``: of its plan. ``about``: what others read where they begin another one. ``rank``: this one's. ``names``:
    under which it posts; ``others``: the name of each rank.
    """

    def __init__(
        self, store: Any, group: Any, digest: str, about: Mapping[str, Any], rank: int, names: Sequence[str],
        others: Sequence[str],
    ) -> None:  # fmt: skip
        self._store, self._digest, self._rank, self._names, self._others = store, digest, rank, names, others
        self._seen = seen = _turns.setdefault(group, Turns())
        seen.begun += 1
        seen.open.add(digest)
        self._turn, self._before, self._theirs = seen.begun, dict(seen.matched), dict[str, int]()
        self._about = {**about, "digest": digest, "turn": self._turn}
        self._goes_on = False
        self._post("")

    def go_on(self) -> None:
        """Post that this iteration is no look at one list: it goes beyond the first, or that was the last one."""
        if not self._goes_on:
            self._goes_on = True
            self._post(BEYOND)

    def end(self) -> None:
        """Post that the last list is handed out."""
        if self._about.get("over"):
            return
        self.go_on()
        self._about = {**self._about, "over": True}
        self._post(OVER)

    def latest(self, name: str) -> dict[str, Any] | None:
        """Return what a rank has begun latest; None where it has begun nothing."""
        key = f"latest/{name}"
        found: dict[str, Any] | None = json.loads(self._store.get(key)) if self._store.check([key]) else None
        return found

    def _post(self, kind: str) -> None:
        """Post that this rank is there, unless a process of the same name has posted a later turn."""
        for name in self._names:
            latest = self.latest(name)
            if latest is None or latest["turn"] <= self._turn:
                self._store.set(f"latest/{name}", json.dumps(self._about))
            key = self._key(name, kind)
            before = _turns_of(self._store.get(key)) if self._store.check([key]) else []
            turns = sorted({*before, self._turn})[-KEPT:]
            self._store.set(key, " ".join(map(str, [self._rank, *turns])))

    def absent(self, kind: str = "") -> list[str]:
        """Return the names of the ranks that have posted nothing since they were compared last."""
        return self._without(self._posts(kind), kind)

    def match(self) -> list[int] | None:
        """Return the rank that each name has posted, once all have; None before. They count as compared then."""
        posts = self._posts()
        if self._without(posts, ""):
            return None
        self._theirs = {name: turn for name, (_, turn) in posts.items()}
        self._seen.open.discard(self._digest)
        for name, turn in self._theirs.items():
            self._seen.matched[name] = max((turn, self._digest), self._seen.matched.get(name, (0, "")))
        return [posts[name][0] for name in self._others]

    def is_behind(self, name: str, latest: Mapping[str, Any]) -> bool:
        """Return whether what a rank began latest was compared before, or is still to be compared here.

        A look at one batch may have been compared in place of the iteration after it, which is that rank's latest then.
        """
        turn, digest = self._before.get(name, (0, ""))
        if latest["turn"] <= turn or latest["digest"] in self._seen.open:
            return True
        return latest["digest"] == digest and turn not in self._beyond(digest, name)

    def _key(self, name: str, kind: str) -> str:
        return f"{self._digest}{kind}/{name}"

    def _beyond(self, digest: str, name: str) -> list[int]:
        """Return the turns in which a rank went beyond the first list of a plan."""
        key = f"{digest}{BEYOND}/{name}"
        return _turns_of(self._store.get(key)) if self._store.check([key]) else []

    def _posts(self, kind: str = "") -> dict[str, tuple[int, int]]:
        """Return the rank and turn that each name has posted."""
        keys = {name: self._key(name, kind) for name in self._others}
        there = list(keys)
        if not self._store.check(list(keys.values())):
            there = [name for name, key in keys.items() if self._store.check([key])]
        values = self._store.multi_get([keys[name] for name in there]) if there else []
        ranks = {name: int(value.split()[0]) for name, value in zip(there, values, strict=True)}
        turns = {name: _turns_of(value) for name, value in zip(there, values, strict=True)}
        return {name: (rank, self._meant(name, turns[name])) for name, rank in ranks.items()}

    def _meant(self, name: str, turns: list[int]) -> int:
        """Return the turn of that rank that is compared with this one; one that is too early where there is none."""
        later = [turn for turn in turns if turn >= self._least(name)]
        if len(later) < 2:
            return turns[-1]
        beyond = self._beyond(self._digest, name)  # another turn that is not the latest was a look
        return next((turn for turn in later if turn in beyond), turns[-1])

    def _least(self, name: str) -> int:
        return self._theirs.get(name, self._before.get(name, (0, ""))[0] + 1)

    def _without(self, posts: Mapping[str, tuple[int, int]], kind: str) -> list[str]:
        late = [name for name in self._others if name not in posts or posts[name][1] < self._least(name)]
        return [name for name in late if kind or name not in posts or not self._is_in(name, posts[name][1])]

    def _is_in(self, name: str, turn: int) -> bool:
        """Return whether a rank still is in the iteration of that turn."""
        latest = self.latest(name)
        return latest is not None and latest["turn"] == turn and not latest.get("over")


def _turns_of(posting: bytes) -> list[int]:
    return list(map(int, posting.split()[1:]))
