"""Policies and peers side by side without training: an epoch's plans, made, timed and measured.

Nothing is trained and torch is not imported; a peer may import it.
"""

import gc
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, fields, replace
from time import perf_counter
from typing import Any

import numpy as np

from ddpsched.compare.gap import gap
from ddpsched.config import validate
from ddpsched.costs.config import CostConfig, MemoryConfig, caps_of, cost_model
from ddpsched.costs.cost_model import CostModel, Int
from ddpsched.data.lengths import KnownLengths
from ddpsched.errors import ConfigError, DdpschedError, InfeasibleError, PeerMissing
from ddpsched.exchange import LocalExchange
from ddpsched.orders.config import OrderConfig
from ddpsched.orders.epoch_order import Order
from ddpsched.peers import PEERS, Problem
from ddpsched.peers.budget import fit_budget
from ddpsched.planning.plan_spec import PlanSpec
from ddpsched.planning.planner import num_steps, plan_steps
from ddpsched.planning.policies import AnyPolicy
from ddpsched.planning.policies.minmax import usual_prefetch
from ddpsched.planning.yardstick import GroupsRuler, Ruler, SplitRuler, Yardstick
from ddpsched.table import BatchSize, Positive, Ranks, Seed, Table

MICROBATCHES = 4  # of the arm with several, where none is asked for
POOL, POOL_BATCHES = 32, 4  # samples in a rank's pool: its default, or as many batches where that is more

Arm = dict[str, Any]  # tables of a config: [policy], [order]; and whether it "pads_to_max"
# the option on which the size of a step depends; it is searched so that a step has B samples on average
FITTED = {"token_budget": "max_tokens_for_batch", "bins": "median_batch", "pool": "max_tokens_for_batch"}


@dataclass(frozen=True)
class Question:
    """The comparison: the same samples in the same order for every arm.

    ``lengths``: (N,), int64. ``cost``: the ``[cost]`` table of a config, which plans and scores; ``memory`` likewise,
    with a budget where plans are capped.
    """

    lengths: Int
    world_size: int
    global_batch: int
    max_microbatches: int | None = None
    max_tokens: int | None = None
    lookahead: int = 1
    prefetch: int | None = None
    epochs: int = 1
    seed: int = 0
    cost: dict[str, Any] | None = None
    memory: dict[str, Any] | None = None

    def time(self, spec: PlanSpec) -> CostModel | None:
        """Return the cost in nanoseconds that predicts step times: that of plans, where it is in seconds."""
        return spec.cost if (self.cost or {}).get("kind") in ("calibrated", "affine_quadratic") else None

    def spec(self, arm: Arm) -> PlanSpec:
        """Return the value that this arm's plans follow from. Raises ConfigError."""
        policy = dict(arm["policy"])
        if policy["kind"] == "minmax":
            policy.setdefault("prefetch", self.prefetch or usual_prefetch(self.global_batch, self.world_size))
        if (key := FITTED.get(policy["kind"])) is not None:  # the least, where ``fitted`` has not searched it
            policy.setdefault(key, int(self.lengths.max()) if key == "max_tokens_for_batch" else 1)
        numbers = {name: getattr(self, name) for name in ("world_size", "global_batch", "seed", "epochs")}
        given = {"order": arm.get("order"), "cost": self.cost, "memory": self.memory}
        given = {name: table for name, table in given.items() if table is not None}
        tables = validate(Tables, {"policy": policy, **given, **numbers}, "ddpsched plan")
        longest, budget = int(self.lengths.max()), tables.memory.budget_bytes
        try:
            return PlanSpec(
                **numbers,
                policy=tables.policy,
                order=Order.of(tables.order),
                cost=cost_model(tables.cost),
                caps=None if budget is None else caps_of(tables.memory, [budget] * self.world_size, longest),
                max_length=longest,
                pad_to=longest if arm.get("pads_to_max") else 0,
            )
        except ConfigError as error:
            raise ConfigError(f"ddpsched plan: {error}") from None


class Tables(Table):
    """The options of a comparison, checked like the tables of a run."""

    policy: AnyPolicy
    order: OrderConfig = OrderConfig()
    cost: CostConfig = CostConfig()
    memory: MemoryConfig = MemoryConfig()
    seed: Seed
    epochs: Positive
    global_batch: BatchSize
    world_size: Ranks


@dataclass(frozen=True)
class Row:
    """One arm's figures, or the reason why it was skipped.

    ``package``: of a peer, the package that planned, or that the algorithm is written again here; None for policies.
    ``times_static``: this yardstick over static's. ``same_gradient``: whether each step has the samples of static's, so
    that with an exact loss its gradient is static's too; ``batches`` is the digest that says so.
    """

    arm: str
    figures: Yardstick | None = None
    planning_us: float | None = None  # per sample, from the step's ids and lengths to its plan and digest
    gap: float | None = None  # sum of makespans / sum of lower bounds - 1; None where the method has no bound
    skipped: str | None = None
    options: dict[str, Any] | None = None  # of [policy], where one was searched
    package: str | None = None
    times_static: float | None = None
    same_gradient: bool | None = None
    batches: str = ""

    def beside(self, static: "Row | None") -> "Row":
        """Return this row with the columns that compare it with static, where that could be planned."""
        if self.figures is None or static is None or static.figures is None:
            return self
        ratio = self.figures.yardstick / static.figures.yardstick
        return replace(self, times_static=ratio, same_gradient=self.batches == static.batches)

    def flat(self) -> dict[str, Any]:
        """Return all values in one level, for JSON and frames."""
        values = asdict(self)
        del values["batches"]
        figures = values.pop("figures") or dict.fromkeys(field.name for field in fields(Yardstick))
        return {"arm": values.pop("arm"), **figures, **values}


def arms(question: Question, policies: Sequence[str]) -> dict[str, Arm]:
    """Return the tables of a config by arm: of the policies that are named, or of all that apply."""
    most, ahead = question.max_microbatches, question.lookahead

    def arm(kind: str, most: int = 1, ahead: int = 1) -> tuple[str, Arm]:
        policy: dict[str, Any] = {"kind": kind}
        words = [kind]
        if kind == "pool":
            policy["pool_size"] = max(POOL, POOL_BATCHES * question.global_batch // question.world_size)
        if kind == "balanced" and most > 1:
            policy["max_microbatches"] = most
            words.append(f"M = {most}")
        if kind in ("balanced", "packed") and ahead > 1:
            policy["lookahead"] = ahead
            words.append(f"W = {ahead}")
        if kind == "split" and question.max_tokens is not None:
            policy["max_tokens"] = question.max_tokens
            words.append(f"{question.max_tokens} tokens")
        return ", ".join(words), {"policy": policy}

    if policies:
        return dict(arm(kind, most or 1, ahead) for kind in policies)
    several = most or MICROBATCHES
    # of equal arms one stays
    wanted: list[tuple[Any, ...]] = [("static",), ("minmax",), ("balanced",), ("balanced", several), ("packed",)]
    if ahead > 1:
        wanted += [("balanced", 1, ahead), ("balanced", several, ahead), ("packed", 1, ahead)]
    chosen = dict(arm(*each) for each in [*wanted, *((kind,) for kind in FITTED)])
    return {
        "padded to the longest": {"policy": {"kind": "static"}, "pads_to_max": True},
        **chosen,
        "pool, packed": {"policy": {**chosen["pool"]["policy"], "sequence_packing": True}},
        "static, length_grouped": {"policy": {"kind": "static"}, "order": {"kind": "length_grouped"}},
    }


def fitted(question: Question, arm: Arm) -> PlanSpec:
    """Return an arm's spec, its budget or batch size such that the first epoch's steps have B samples on average."""
    if (key := FITTED.get(arm["policy"]["kind"])) is None:
        return question.spec(arm)
    known, tokens, spec = KnownLengths(question.lengths), key == "max_tokens_for_batch", question.spec(arm)
    lowest = getattr(spec.policy, key)

    def sized(value: int) -> PlanSpec:
        return replace(spec, policy=spec.policy.model_copy(update={key: value}))

    def mean(value: int) -> float:
        return len(question.lengths) / num_steps(replace(sized(value), epochs=1), known)

    share = question.global_batch / question.world_size
    guess = share * float(question.lengths.mean()) if tokens else share
    target = min(question.global_batch, len(question.lengths))
    return sized(fit_budget(mean, target, lowest, max(1, round(guess))))


def compare(question: Question, policies: Sequence[str] = (), peers: Sequence[str] = ()) -> Iterator[Row]:
    """Yield a row for each of ``policies`` and ``peers``, as it is done; without policies for all that apply.

    Raises ConfigError for what no arm could plan.
    """
    for name in peers:
        if name not in PEERS:
            raise ConfigError(f"peer {name!r} is none of: {', '.join(PEERS)}")
    static = _row(question, "static", {"policy": {"kind": "static"}})
    for name, arm in arms(question, policies).items():
        if name == "static" and (static.figures or not policies):
            row = static
        else:  # what is asked for by name raises its own error
            row = measure(question, name, fitted(question, arm)) if policies else _row(question, name, arm)
        yield row.beside(static)
    for name in peers:
        try:
            yield _peer(question, name).beside(static)
        except PeerMissing as error:
            yield Row(name, skipped=error.reason, package=PEERS[name].package)
        except InfeasibleError as error:
            yield Row(name, skipped=str(error), package=PEERS[name].package)


def _row(question: Question, name: str, arm: Arm) -> Row:
    try:
        return measure(question, name, fitted(question, arm))
    except DdpschedError as error:
        return Row(name, skipped=str(error))


def measure(question: Question, name: str, spec: PlanSpec) -> Row:
    """Return the row ``name`` of an arm whose epochs are planned by ``spec``, timed, and then scored."""
    policy, time = spec.policy, question.time(spec)
    kind = SplitRuler if policy.splits else Ruler
    ruler = kind(question.lengths, question.world_size, spec.cost, policy.packs, time, policy.in_lockstep)
    collects = gc.isenabled()
    gc.disable()  # this arm's time does not include a search of other objects for garbage
    try:
        made = list(plan_steps(spec, KnownLengths(question.lengths), LocalExchange(question.world_size)))
    finally:
        if collects:
            gc.enable()
    times = [plan.times for plan in made]
    seconds = sum((t.offer_s or 0.0) + (t.exchange_s or 0.0) + (t.solve_s or 0.0) for t in times)
    for epoch in range(question.epochs):
        steps = [plan for plan in made if plan.epoch == epoch]
        of_plans: list[Any] = [[[micro.ids for micro in rank] for rank in plan.ranks] for plan in steps]
        if policy.splits:
            of_plans = [plan.ranks for plan in steps]
        ruler.add_epoch(of_plans, [max(micro.pad_to for rank in plan.ranks for micro in rank) for plan in steps])
    planning_us = seconds / (len(question.lengths) * question.epochs) * 1e6
    options = {"kind": policy.kind, **policy.model_dump(exclude_defaults=True)} if policy.varies else None
    found = gap(spec, question.lengths, made)
    return Row(name, ruler.read(), planning_us, found, options=options, batches=ruler.batches)


def _peer(question: Question, name: str) -> Row:
    peer = PEERS[name]
    spec = question.spec({"policy": {"kind": "static"}})
    if peer.packed and not spec.cost.linear:
        fault = f"packed rows have no cost.kind = {(question.cost or {}).get('kind')!r}"
        return Row(name, skipped=fault, package=peer.package)
    kind = GroupsRuler if peer.splits else Ruler
    ruler = kind(question.lengths, question.world_size, spec.cost, peer.packed, question.time(spec))
    problem = Problem(
        lengths=question.lengths,
        order=np.arange(len(question.lengths)),
        world_size=question.world_size,
        global_batch=question.global_batch,
        max_microbatches=question.max_microbatches or MICROBATCHES,
        seed=question.seed,
        cost=spec.cost,
        max_tokens=question.max_tokens,
    )
    seconds = 0.0
    for epoch in range(question.epochs):
        order = spec.epoch_order(KnownLengths(question.lengths), epoch)
        problem = peer.fitted(replace(problem, order=order, epoch=epoch))
        next(peer.steps(problem), None)  # imports for the first step are not timed
        begin = perf_counter()
        steps = list(peer.steps(problem))
        seconds += perf_counter() - begin
        ruler.add_epoch(steps)
    planning_us = seconds / (len(question.lengths) * question.epochs) * 1e6
    return Row(name, ruler.read(), planning_us, package=peer.package, batches=ruler.batches)
