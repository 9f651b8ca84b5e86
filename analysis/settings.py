"""Which runs may stand side by side: settings, their arms, and static partners.

Two runs share a *setting* when they do the same work on the same device, that
is when their configs differ in nothing but the seed and in what an arm is made
of (``policy`` and ``cost``). A figure or a table never mixes settings.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from analysis.load import Run

ARM_TABLES = ("policy", "cost")
PLAIN = ("lookahead = 1", "max_microbatches = 1")  # what an arm without these options has
SHORT = {"lookahead": "W", "max_microbatches": "M"}
LABELS = ("name", "study", "outputs")
POLICY_ORDER = ("static", "peer", "minmax", "balanced", "packed")


@dataclass(frozen=True, eq=False)
class Setting:
    """Runs of one setting by arm, static first; each arm's runs in order of seed."""

    slug: str
    label: str
    arms: dict[str, list[Run]]

    @property
    def runs(self) -> list[Run]:
        return [run for runs in self.arms.values() for run in runs]


def flatten(config: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    """Nested tables as one dict of dotted keys.

    >>> flatten({"seed": 0, "policy": {"kind": "minmax"}})
    {'seed': 0, 'policy.kind': 'minmax'}
    """
    flat: dict[str, Any] = {}
    for key, value in config.items():
        flat |= flatten(value, f"{prefix}{key}.") if isinstance(value, dict) else {prefix + key: value}
    return flat


def work(run: Run) -> dict[str, Any]:
    """The config without the run's labels and without what makes the arm."""
    return flatten({key: value for key, value in run.config.items() if key not in (*LABELS, *ARM_TABLES)})


def partner(run: Run, runs: Sequence[Run]) -> Run | None:
    """The static run with the same work (seed, order, world size, B, executor, ...) on the same device."""
    if run.policy == "static":
        return None
    same = [r for r in runs if r.policy == "static" and r.device == run.device and work(r) == work(run)]
    return min(same, key=lambda r: (r.config.get("cost") != run.config.get("cost"), r.name), default=None)


def settings(runs: Sequence[Run]) -> list[Setting]:
    """Group the runs of one study into settings; the study's name begins each slug."""
    groups: dict[str, list[Run]] = {}
    for run in runs:
        same = {key: value for key, value in work(run).items() if key != "seed"}
        groups.setdefault(repr((run.device, sorted(same.items()))), []).append(run)
    found: list[Setting] = []
    members = sorted(groups.values(), key=lambda group: (_base(group[0]), group[0].name))
    for group in members:
        twins = [g[0] for g in members if _base(g[0]) == _base(group[0])]
        extra = _differences(group[0], twins)
        mode, world_size, batch = _base(group[0])
        number = f"-{twins.index(group[0]) + 1}" if len(twins) > 1 else ""
        device = [] if mode == "simulated" else [group[0].device]
        label = ", ".join([f"G = {world_size}", f"B = {batch}", mode, *device, *extra])
        slug = f"{group[0].study}-{mode}-g{world_size}-b{batch}{number}"
        found.append(Setting(slug, label, _arms(group)))
    return found


def _base(run: Run) -> tuple[str, int, int]:
    return run.mode, int(run.config["world_size"]), int(run.config["global_batch"])


def _differences(run: Run, others: Sequence[Run], of: tuple[str, ...] = ()) -> list[str]:
    """``key = value`` of this run for each key that is not equal in all ``others``."""
    view = (lambda r: flatten({key: r.config.get(key, {}) for key in of})) if of else work
    mine, theirs = view(run), [view(other) for other in others]
    keys = sorted({key for config in (mine, *theirs) for key in config} - {"seed", "policy.kind"})
    return [f"{key} = {mine.get(key)}" for key in keys if any(c.get(key) != mine.get(key) for c in theirs)]


def _label(run: Run, extra: Sequence[str]) -> str:
    """``balanced (M = 4)``; a peer goes by its own name."""
    words = [text for text in extra if not text.startswith("peer = ")]
    for key, short in SHORT.items():
        words = [text.replace(f"{key} = ", f"{short} = ") for text in words]
    name = run.config["policy"]["peer"] if run.policy == "peer" else run.policy
    return f"{name} ({', '.join(words)})" if words else name


def _arms(group: Sequence[Run]) -> dict[str, list[Run]]:
    """Runs by arm label: the policy, and its options where one policy has several arms."""
    arms: dict[str, list[Run]] = {}
    for run in sorted(group, key=lambda r: (r.seed, r.name)):
        rivals = [r for r in group if r.policy == run.policy != "static"]  # static has no options
        extra = [text.rpartition(".")[2] for text in _differences(run, rivals, ARM_TABLES)]
        arms.setdefault(_label(run, [text for text in extra if text not in PLAIN]), []).append(run)
    rank = {policy: place for place, policy in enumerate(POLICY_ORDER)}
    ordered = sorted(arms, key=lambda arm: (rank.get(arms[arm][0].policy, len(rank)), arm))
    return {arm: arms[arm] for arm in ordered}
