"""Settings, groups of comparable runs, with their arms and static partners.

Two runs share a *setting* when they do the same work on the same device: their
configs differ only in the seed, the steps that each seed has, and in the keys of an arm. These determine the
contents of steps (``policy``, ``cost``, ``order``, and how samples are padded or
joined) and the learning rate that follows from them. No figure or table mixes
settings.
"""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from analysis.load import Run

PLANNING = ("policy", "cost")  # tables that static does not use
PUT_TOGETHER = ("order", "lr", "data.pad_to", "data.concatenate", "data.within_documents")
# keys of an arm and their words in a label; "" where the label leaves them out
WORDS = {
    "policy.kind": "", "policy.peer": "", "policy.prefetch": "K = {}",
    "policy.lookahead": "W = {}", "policy.max_microbatches": "M = {}",
    "policy.strategy": "{}", "policy.sequence_packing": "packed", "policy.same_shape": "same shape",
    "order.kind": "{}", "order.pacing": "{}", "order.path": "ordered file", "lr.kind": "{} LR",
    "data.pad_to": "{}", "data.concatenate": "concatenated",
    "data.within_documents": "within documents", "cost.kind": "{}", "cost.path": "{}", "cost.online": "online",
}  # fmt: skip
PLAIN = {  # the values of an arm without these options
    "policy.lookahead": 1, "policy.max_microbatches": 1, "policy.sequence_packing": False, "policy.same_shape": False,
    "order.kind": "shuffled", "lr.kind": "fixed", "data.pad_to": "longest", "data.concatenate": False,
    "data.within_documents": False, "cost.kind": "padded_tokens", "cost.path": None, "cost.online": False,
    "order.mega_batches": 50, "order.path": None, "order.window": 1,
    "order.pacing": None, "order.start": 0.1, "order.over": 0.5, "order.stairs": 5,
}  # fmt: skip
BUDGETS = (
    "policy.max_tokens_for_batch", "policy.median_batch", "policy.bins", "policy.pool_size", "lr.reference",
    "cost.alpha", "cost.beta", "cost.gamma",
)  # fmt: skip
ALWAYS = ("policy.max_microbatches",)  # in a label where it is not plain, although no other arm differs in it
LABELS = ("name", "study", "outputs", "aa", "log")
AA = "A/A"  # the label of the baseline's second run
POLICY_ORDER = ("static", "peer", "minmax", "balanced", "packed", "token_budget", "bins", "pool")


@dataclass(frozen=True, eq=False)
class Setting:
    """Runs of one setting by arm, static first; an arm's runs in order of seed. ``beside``: its study's other runs."""

    slug: str
    label: str
    arms: dict[str, list[Run]]
    beside: Sequence[Run] = ()

    @property
    def runs(self) -> list[Run]:
        """The runs of all arms."""
        return [run for runs in self.arms.values() for run in runs]

    @property
    def took_turns(self) -> bool:
        """Whether arms shared processes, whose peak memory is then that of all of them."""
        return any(run.took_turns for run in self.runs)


def flatten(config: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    """Return nested tables as one dict of dotted keys.

    >>> flatten({"seed": 0, "policy": {"kind": "minmax"}})
    {'seed': 0, 'policy.kind': 'minmax'}
    """
    flat: dict[str, Any] = {}
    for key, value in config.items():
        flat |= flatten(value, f"{prefix}{key}.") if isinstance(value, dict) else {prefix + key: value}
    return flat


def part(config: dict[str, Any], tables: tuple[str, ...]) -> dict[str, Any]:
    """Return a run's config by dotted keys, as far as they belong to these tables or are these keys."""
    there = {key.partition(".")[0] for key in tables}
    flat = flatten({name: value for name, value in config.items() if name in there})
    return {key: value for key, value in flat.items() if key in tables or key.partition(".")[0] in tables}


def work(config: dict[str, Any], slices: bool = False) -> dict[str, Any]:
    """Return a run's config by dotted keys, without labels and without the keys of an arm.

    ``slices``: without the size of its global batch, too, as that of joined documents counts slices.
    """
    other = part(config, (*LABELS, *PLANNING, *PUT_TOGETHER, *(("global_batch",) if slices else ())))
    return {key: value for key, value in flatten(config).items() if key not in other}


def grouped(configs: Sequence[dict[str, Any]], keys: Sequence[Any]) -> list[list[int]]:
    """Return the places of configs of the same work, seeds and steps aside, and the same key, in groups.

    Joined documents are cut into slices, and a global batch counts these: such configs belong to the group of those
    that differ from them only in its size, where there are some.
    """
    groups: dict[str, list[int]] = {}

    def name(place: int, slices: bool = False) -> str:
        same = work(configs[place], slices)
        return repr((keys[place], sorted((key, value) for key, value in same.items() if key not in ("seed", "steps"))))

    for place in sorted(range(len(configs)), key=lambda place: is_joined(configs[place])):
        key = name(place)
        if is_joined(configs[place]):
            key = next((k for k, (first, *_) in groups.items() if name(first, True) == name(place, True)), key)
        groups.setdefault(key, []).append(place)
    return list(groups.values())


def is_joined(config: dict[str, Any]) -> bool:
    """Return whether the samples are slices of documents joined end to end."""
    return bool(config["data"].get("concatenate"))


def partner(run: Run, runs: Sequence[Run]) -> Run | None:
    """Return the most similar static run with the same work (seed, world size, B, executor, ...) and device, or None.

    The partner of a static run with options (another order, say) is one with fewer options; the plain one has none.
    """
    same = [r for r in runs if r.policy == "static" and r.device == run.device and not r.config.get("aa")]
    mine, wanted = _options(run), work(run.config)
    same = [r for r in same if r.seed == run.seed and work(r.config) == wanted]
    if run.policy == "static":
        same = [r for r in same if len(_options(r)) < len(mine)]
    return min(
        same,
        key=lambda r: (len(mine.items() ^ _options(r).items()), r.config.get("cost") != run.config.get("cost"), r.name),
        default=None,
    )


def _options(run: Run) -> dict[str, Any]:
    """Return the keys of an arm beside the policy that do not have their plain value."""
    return {key: value for key, value in part(run.config, PUT_TOGETHER).items() if value != PLAIN.get(key, value)}


def settings(runs: Sequence[Run]) -> list[Setting]:
    """Group the runs of one study into settings; the study's name begins each slug."""
    result: list[Setting] = []
    numbers = defaultdict[int, set[Any]](set)
    for run in runs:
        numbers[run.seed].add(run.config.get("steps"))
    # further seeds may have fewer steps, to measure times; of one seed, runs of other steps are other work
    by_steps = any(len(each) > 1 for each in numbers.values())
    keys = [(run.device, run.content, run.config.get("steps") if by_steps else None) for run in runs]
    groups = [[runs[place] for place in group] for group in grouped([run.config for run in runs], keys)]
    members = sorted(groups, key=lambda group: (_base(group[0]), group[0].name))
    for group in members:
        twins = [g[0] for g in members if _base(g[0]) == _base(group[0])]
        extra = _differences(group[0], twins)
        mode, world_size, batch = _base(group[0])
        number = f"-{twins.index(group[0]) + 1}" if len(twins) > 1 else ""
        device = [] if mode == "simulated" else [group[0].device]
        label = ", ".join([f"G = {world_size}", f"B = {batch}", mode, *device, *extra])
        slug = f"{group[0].study}-{mode}-g{world_size}-b{batch}{number}"
        result.append(Setting(slug, label, _arms(group), [run for run in runs if run not in group]))
    return result


def _base(run: Run) -> tuple[str, int, int]:
    return run.mode, int(run.config["world_size"]), int(run.config["global_batch"])


def _differences(run: Run, others: Sequence[Run]) -> list[str]:
    """Return ``key = value`` of this run's work, and of its data's content, where it is not equal in all ``others``."""
    mine, *other_work = ({**work(each.config), "content of data": each.content} for each in (run, *others))
    keys = sorted({key for config in (mine, *other_work) for key in config} - {"seed"})
    return [f"{key} = {mine.get(key)}" for key in keys if any(c.get(key) != mine.get(key) for c in other_work)]


def _label(run: Run, rivals: Sequence[Run], quiet: tuple[str, ...]) -> str:
    """Return the label, ``balanced (M = 4)``: the policy, M above 1, and what distinguishes it from others of it.

    A peer has the name of its package, a loop of one's own that of its run. ``quiet`` keys are left out.
    """
    if run.config.get("aa"):
        return AA
    if run.policy == "other":  # a loop of someone's own, whose run is all that tells it from others
        return run.name
    tables = PUT_TOGETHER if run.policy == "static" else (*PLANNING, *PUT_TOGETHER)
    mine, others = part(run.config, tables), [part(rival.config, tables) for rival in rivals]
    there = dict.fromkeys(key for config in (mine, *others) for key in config)
    keys = [key for key in there if key in ALWAYS or any(c.get(key) != mine.get(key) for c in others)]
    if mine.get("policy.sequence_packing"):
        quiet = (*quiet, "policy.strategy")  # rows without padding are filled without a strategy
    words = [
        WORDS.get(key, key.rpartition(".")[2] + " = {}").format(_shown(key, mine.get(key)))
        for key in keys
        if key not in quiet and (key not in PLAIN or mine.get(key, PLAIN[key]) != PLAIN[key])
    ]
    name = run.config["policy"]["peer"] if run.policy == "peer" else run.policy
    options = ", ".join(filter(None, words))
    return f"{name} ({options})" if options else name


def _shown(key: str, value: Any) -> Any:
    """Return a value as a label has it: of a file its name alone."""
    return Path(value).stem if key.endswith(".path") and value else value


def couples(mine: Sequence[Run], others: Sequence[Run]) -> list[tuple[Run, Run]]:
    """Return runs of one arm, each with the run of another that shares its launch: one couple a launch and seed.

    A launch is one observation, however many runs of an arm it has; the first by name counts. Of a seed that no launch
    has of both arms the first runs are a couple, for whoever says why they are not compared.
    """
    found: list[tuple[Run, Run]] = []
    for seed in dict.fromkeys(run.seed for run in mine):
        ours, theirs = ([run for run in runs if run.seed == seed] for runs in (mine, others))
        both = dict[Any, tuple[Run, Run]]()
        for run in ours:
            for other in (other for other in theirs if other.observation == run.observation):
                both.setdefault(run.observation, (run, other))
        found += list(both.values()) or list(zip(ours[:1], theirs[:1], strict=False))
    return found


def _arms(group: Sequence[Run]) -> dict[str, list[Run]]:
    """Return runs by arm label: the policy, and its options where one policy has several arms."""
    arms: dict[str, list[Run]] = {}
    rivals = defaultdict[str, list[Run]](list)  # by policy
    for run in group:
        if not run.config.get("aa"):
            rivals[run.policy].append(run)
    short = {run: _label(run, rivals[run.policy], BUDGETS) for run in group}
    for run in sorted(group, key=lambda r: (r.seed, r.name)):
        # budgets mostly follow from the options; they are in the label where they alone distinguish two arms
        twins = [r for r in rivals[run.policy] if short[r] == short[run]]
        name = _label(run, rivals[run.policy], ()) if _differ(run, twins) else short[run]
        arms.setdefault(name, []).append(run)
    rank = {policy: place for place, policy in enumerate(POLICY_ORDER)}
    ordered = sorted(arms, key=lambda arm: (rank.get(arms[arm][0].policy, len(rank)), arm == AA, arm))
    return {arm: arms[arm] for arm in ordered}


def _differ(run: Run, twins: Sequence[Run]) -> bool:
    mine = part(run.config, BUDGETS)
    return run.policy != "static" and any(mine != part(twin.config, BUDGETS) for twin in twins)
