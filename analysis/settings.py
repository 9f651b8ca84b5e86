"""Which runs may stand side by side: settings, their arms, and static partners.

Two runs share a *setting* when they do the same work on the same device, that
is when their configs differ in nothing but the seed and in what an arm is made
of: how steps are put together (``policy``, ``cost``, ``order``, and how samples
are padded or joined) and what follows from it for the learning rate. A figure or
a table never mixes settings.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from analysis.load import Run

PLANNING = ("policy", "cost")  # which static knows nothing of
PUT_TOGETHER = ("order", "lr", "data.pad_to", "data.concatenate", "data.within_documents")
# keys of an arm and how a label says them; "" where the label goes without
WORDS = {
    "policy.kind": "", "policy.peer": "", "policy.lookahead": "W = {}", "policy.max_microbatches": "M = {}",
    "policy.strategy": "{}", "policy.sequence_packing": "packed", "policy.same_shape": "same shape",
    "order.kind": "{}", "order.pacing": "{}", "order.path": "ordered file", "lr.kind": "{} LR",
    "data.pad_to": "{}", "data.concatenate": "concatenated",
    "data.within_documents": "within documents",
}  # fmt: skip
PLAIN = {  # what an arm without these options has
    "policy.lookahead": 1, "policy.max_microbatches": 1, "policy.sequence_packing": False, "policy.same_shape": False,
    "order.kind": "shuffled", "lr.kind": "fixed", "data.pad_to": "longest", "data.concatenate": False,
    "data.within_documents": False, "order.mega_batches": 50, "order.path": None, "order.window": 1,
    "order.pacing": None, "order.start": 0.1, "order.over": 0.5, "order.stairs": 5,
}  # fmt: skip
BUDGETS = ("policy.max_tokens_for_batch", "policy.median_batch", "policy.bins", "policy.pool_size", "lr.reference")
LABELS = ("name", "study", "outputs")
POLICY_ORDER = ("static", "peer", "minmax", "balanced", "packed", "token_budget", "bins", "pool")


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


def part(run: Run, tables: tuple[str, ...]) -> dict[str, Any]:
    """The dotted keys of the run's config that belong to these tables, or are these keys."""
    flat = flatten(run.config)
    return {key: value for key, value in flat.items() if key in tables or key.partition(".")[0] in tables}


def work(run: Run) -> dict[str, Any]:
    """The config without the run's labels and without what makes the arm."""
    other = part(run, (*LABELS, *PLANNING, *PUT_TOGETHER))
    return {key: value for key, value in flatten(run.config).items() if key not in other}


def partner(run: Run, runs: Sequence[Run]) -> Run | None:
    """The static run with the same work (seed, world size, B, executor, ...) on the same device, and most like it.

    A static run with options (another order, say) has the one with fewer of them, the plain one none.
    """
    same = [r for r in runs if r.policy == "static" and r.device == run.device and work(r) == work(run)]
    if run.policy == "static":
        same = [r for r in same if len(_options(r)) < len(_options(run))]
    mine = _options(run)
    return min(
        same,
        key=lambda r: (len(mine.items() ^ _options(r).items()), r.config.get("cost") != run.config.get("cost"), r.name),
        default=None,
    )


def _options(run: Run) -> dict[str, Any]:
    """How its steps are put together beside the policy, where that is not the plain way."""
    return {key: value for key, value in part(run, PUT_TOGETHER).items() if value != PLAIN.get(key, value)}


def settings(runs: Sequence[Run]) -> list[Setting]:
    """Group the runs of one study into settings; the study's name begins each slug.

    Joined documents are slices, and a global batch counts these: such runs stand with those that differ from them
    in nothing but its size, where there are some.
    """
    groups: dict[str, list[Run]] = {}
    for run in sorted(runs, key=_is_joined):
        key = _key(run)
        if _is_joined(run):
            key = next((k for k, (first, *_) in groups.items() if _key(first, slices=True) == _key(run, True)), key)
        groups.setdefault(key, []).append(run)
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


def _is_joined(run: Run) -> bool:
    return bool(run.config["data"].get("concatenate"))


def _key(run: Run, slices: bool = False) -> str:
    """The same for runs that share a setting; with ``slices``, whatever the global batch is."""
    same = {key: value for key, value in work(run).items() if key != "seed" and not (slices and key == "global_batch")}
    return repr((run.device, sorted(same.items())))


def _base(run: Run) -> tuple[str, int, int]:
    return run.mode, int(run.config["world_size"]), int(run.config["global_batch"])


def _differences(run: Run, others: Sequence[Run]) -> list[str]:
    """``key = value`` of this run's work for each key that is not equal in all ``others``."""
    mine, theirs = work(run), [work(other) for other in others]
    keys = sorted({key for config in (mine, *theirs) for key in config} - {"seed"})
    return [f"{key} = {mine.get(key)}" for key in keys if any(c.get(key) != mine.get(key) for c in theirs)]


def _label(run: Run, rivals: Sequence[Run], quiet: tuple[str, ...]) -> str:
    """``balanced (M = 4)``: the policy, and what tells it from the rivals of that policy; a peer goes by its own name.

    ``quiet`` keys are left out.
    """
    tables = PUT_TOGETHER if run.policy == "static" else (*PLANNING, *PUT_TOGETHER)
    mine, theirs = part(run, tables), [part(rival, tables) for rival in rivals]
    keys = [key for config in (mine, *theirs) for key in config if any(c.get(key) != mine.get(key) for c in theirs)]
    if mine.get("policy.sequence_packing"):
        quiet = (*quiet, "policy.strategy")  # which rows without padding are filled without
    words = [
        WORDS.get(key, key.rpartition(".")[2] + " = {}").format(mine.get(key))
        for key in dict.fromkeys(keys)
        if key not in quiet and (key not in PLAIN or mine.get(key, PLAIN[key]) != PLAIN[key])
    ]
    name = run.config["policy"]["peer"] if run.policy == "peer" else run.policy
    said = ", ".join(filter(None, words))
    return f"{name} ({said})" if said else name


def _arms(group: Sequence[Run]) -> dict[str, list[Run]]:
    """Runs by arm label: the policy, and its options where one policy has several arms."""
    arms: dict[str, list[Run]] = {}
    for run in sorted(group, key=lambda r: (r.seed, r.name)):
        rivals = [r for r in group if r.policy == run.policy]
        short = _label(run, rivals, BUDGETS)
        # budgets follow from the options mostly; where they alone tell two arms apart, they are said
        twins = [r for r in rivals if _label(r, rivals, BUDGETS) == short]
        arms.setdefault(_label(run, rivals, ()) if _differ(run, twins) else short, []).append(run)
    rank = {policy: place for place, policy in enumerate(POLICY_ORDER)}
    ordered = sorted(arms, key=lambda arm: (rank.get(arms[arm][0].policy, len(rank)), arm))
    return {arm: arms[arm] for arm in ordered}


def _differ(run: Run, twins: Sequence[Run]) -> bool:
    return run.policy != "static" and any(part(run, BUDGETS) != part(twin, BUDGETS) for twin in twins)
