"""PlanSource: the plans that samplers and loaders follow, from lengths, policy and order, and their state."""

import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, replace
from functools import cached_property
from hashlib import blake2b
from typing import Any

import numpy as np
import numpy.typing as npt

from ddpsched.costs.config import cost_model
from ddpsched.costs.rank_speed import Speed
from ddpsched.costs.step_times import StepTimes, calibrated_times
from ddpsched.data.lengths import KnownLengths
from ddpsched.errors import ConfigError
from ddpsched.exchange import LocalExchange
from ddpsched.integrations.agreement import Agreement, LoaderWorld, warn_of_dropping
from ddpsched.integrations.auto_choice import check_auto, choose_policy
from ddpsched.integrations.identity import check_keys, check_same
from ddpsched.integrations.loader_arguments import Arguments
from ddpsched.orders.epoch_order import Order
from ddpsched.planning.plan_spec import PlanSpec
from ddpsched.planning.planner import check_position, plan_steps
from ddpsched.planning.policies.auto import Auto
from ddpsched.planning.policies.minmax import usual_prefetch
from ddpsched.planning.policy import Policy
from ddpsched.step_plan import Position, StepPlan
from ddpsched.table import Table
from ddpsched.world import World

GROUPED = 32  # samples that orders take for a batch, where the policy lets its size vary


class PlanSource(LoaderWorld):
    """The plans of any epoch, equal on every rank; nothing is communicated.

    ``owner``, ``world``: as of :class:`LoaderWorld`. ``lengths``: (N,), or (N, 2) of two parts, as
    :class:`KnownLengths` takes them. ``last``: as of BatchSampler. ``several``: whether the owner can yield several
    micro-batches a rank and step. ``values``: of :class:`Arguments`;
    ``policy``, ``order`` and ``cost`` are names, or mappings of ``kind`` and its options, as tables of a config have
    them, and ``memory`` is such a mapping; ``speeds``: of each rank, relative to the others. ``global_batch`` is None
    for the policies that fill micro-batches, whose B varies.

    ``policy``: as given; of "auto", what all its candidates have in common. ``taken``: the one that plans. What "auto"
    takes depends on the number of ranks, and is chosen when these are first planned for; a state keeps its own.
    ``stand_in``: the id of the shortest sample, which a rank without samples can put through its model, times zero.
    ``over_budget``: samples that are longer than the budget of a pool, and run alone; 0 for other policies.

    Raises ConfigError or DataError for arguments out of range; what depends on a world that is not known yet is checked
    once it is.
    """

    def __init__(
        self, owner: str, lengths: npt.ArrayLike, world: World | None, last: str, several: bool, **values: Any
    ) -> None:
        super().__init__(owner, world)
        self._expected: int | None = None  # the world size of a state that was loaded before the world was known
        self.lengths = KnownLengths(lengths)
        # 128 bits over all lengths: other data of the same size is another stream
        self._digest = blake2b(np.ascontiguousarray(lengths, dtype="<i8").data, digest_size=16).hexdigest()
        self.arguments = arguments = Arguments.of(owner, **values)
        self.policy, self.last = arguments.policy, last
        self._times: StepTimes | None = None  # of policy auto
        self._chosen: dict[tuple[int, int], Policy] = {}  # by auto: for ranks, and the ranks of batches
        self._kept: Policy | None = None  # what auto has taken in a loaded state, which goes on with it
        if isinstance(self.policy, Auto):
            check_auto(owner, self.policy, arguments.cost, arguments.speeds)
            self._times = calibrated_times(arguments.cost)
            if not several and "max_microbatches" not in self.policy.model_fields_set:
                self.policy = self.policy.model_copy(update={"max_microbatches": 1})
        self._check()
        tokens = self.lengths.lengths(np.arange(len(self.lengths)))
        self.stand_in, self.longest = int(tokens.argmin()), int(tokens.max())
        self.over_budget = self.policy.over_budget(tokens) or 0
        self.order = Order.of(arguments.order)
        self._cost = cost_model(arguments.cost)
        self._speeds = [Speed.constant(each) for each in arguments.slowness] or None
        self._batch_ranks: int | None = None  # of a state of another number of ranks: those that batches are made for
        self._specs: dict[tuple[int, int | None], PlanSpec] = {}  # by world size, and the ranks of batches
        self._given_spec(len(self._speeds or [0]) if world is None else world.size)
        self._weights: dict[tuple[int, World], list[float]] = {}  # of epochs that were planned for them

    def _check(self) -> None:
        kind, size = self.policy.kind, self.arguments.global_batch
        if self.policy.splits and self.owner != "StepLoader":
            raise ConfigError(
                f"{self.owner}: policy 'split' runs parts of a sample on several ranks, and {self.owner} yields whole "
                "ones; use StepLoader within ddpsched.split_samples(model, loader), or policy 'packed'"
            )
        if self.policy.varies and size is not None:
            raise ConfigError(
                f"{self.owner}: global_batch = {size}, but policy {kind!r} fills micro-batches of sizes that "
                "vary, and so does the global batch; leave global_batch out"
            )
        if not self.policy.varies and size is None:
            raise ConfigError(f"{self.owner}: policy {kind!r} needs global_batch, the samples of a step over all ranks")
        speeds = self.arguments.speeds
        if speeds is not None and not self.policy.reads_cost:
            raise ConfigError(
                f"{self.owner}: speeds = {speeds}, but policy {kind!r} plans without costs; leave speeds "
                "out, or use 'minmax', 'balanced' or 'packed'"
            )
        if self.policy.bounds_parts:
            self.lengths.parts(np.arange(1))  # ConfigError where they have no parts
        for remark in self.policy.remarks:
            warnings.warn(remark, stacklevel=5)

    def settle(self) -> World:
        """Return the world of the iteration that begins. Raises ConfigError where a loaded state is of another size."""
        world = super().settle()
        if self._expected not in (None, world.size):
            raise ConfigError(f"the state is of another {self.owner}: world_size = {self._expected}, here {world.size}")
        return world

    def _spec_of(self, world_size: int) -> PlanSpec:
        """Return the input of planning for so many ranks, for which auto chooses here."""
        spec = self._given_spec(world_size)
        if not isinstance(spec.policy, Auto):
            return spec
        key = (world_size, spec.ranks_of_batch)
        if self._kept is None and key not in self._chosen:
            assert self._times is not None, "made with the policy"
            candidates, is_main = spec.policy.candidates(packs=False), self.world.rank == 0
            self._chosen[key] = choose_policy(self.owner, spec, self.lengths, candidates, self._times, is_main)
        return replace(spec, policy=self._kept or self._chosen[key])

    def _given_spec(self, world_size: int) -> PlanSpec:
        ranks = self._batch_ranks or world_size
        if (world_size, ranks) not in self._specs:
            size, policy = self.arguments.global_batch or GROUPED, self.policy
            self.arguments.check_speeds(self.owner, world_size)
            if policy.kind == "minmax" and "prefetch" not in policy.model_fields_set:
                policy = policy.model_copy(update={"prefetch": usual_prefetch(size, min(world_size, ranks))})
            caps = self.arguments.caps(self.owner, world_size, self.longest)
            try:
                self._specs[world_size, ranks] = PlanSpec(
                    world_size,
                    size,
                    policy,
                    self.arguments.seed,
                    epochs=1,
                    order=self.order,
                    cost=self._cost,
                    caps=caps,
                    max_length=self.longest,
                    last=self.last,
                    batch_ranks=ranks,
                )
            except ConfigError as error:
                raise ConfigError(f"{self.owner}: {error}") from None
        return self._specs[world_size, ranks]

    def plans(self, start: Position) -> Iterator[StepPlan]:
        """Yield the plans of the epoch of ``start``, from there on; none where it is the epoch's end."""
        size = self.world.size
        spec = replace(self._spec_of(size), epochs=start.epoch + 1)
        return plan_steps(spec, self.lengths, LocalExchange(size), self._speeds, start)

    def run(self, start: Position, end: int | None, most: int | None) -> Iterator[StepPlan]:
        """Yield the plans of epoch after epoch, up to epoch ``end``, or to ``most`` steps in all; None for no limit."""
        step = start.step
        while (end is None or start.epoch < end) and (most is None or step < most):
            for plan in self.plans(start):
                yield plan
                step = plan.step + 1
                if step == most:
                    return
            start = Position(start.epoch + 1, step)

    def num_steps(self, epoch: int) -> int:
        """Return the steps of an epoch: ceil(N / B), or one fewer where ``last`` takes the last step away.

        Where the policy lets B vary, the epoch is planned for it, once.
        """
        size = self.arguments.global_batch
        if size is None:
            return len(self.weights(epoch))
        whole, left = divmod(len(self.lengths), size)
        if self.last == "full":
            return whole
        without_last = self.last != "smaller" and whole > 0 and left < self.world.size
        return whole + (left > 0 and not without_last)

    def weights(self, epoch: int) -> list[float]:
        """Return G / B of each step of an epoch, which is planned for it, once; 0 where this rank has no samples."""
        world = self.world
        if (epoch, world) not in self._weights:
            self._weights[epoch, world] = [
                world.size / plan.global_batch if plan.ranks[world.rank] else 0.0
                for plan in self.plans(Position(epoch))
            ]
        return self._weights[epoch, world]

    def known_weight(self, epoch: int, index: int) -> float | None:
        """Return ``weights(epoch)[index]``, None where that needs planning. Raises IndexError beyond the epoch."""
        weights, size = self._weights.get((epoch, self.world)), self.arguments.global_batch
        if weights is None and size is None:
            return None
        steps = self.num_steps(epoch)
        if not 0 <= index < steps:
            raise IndexError(f"step {index} of an epoch of {steps} steps")
        if weights is not None:
            return weights[index]
        return self.world.size / size if size and self.policy.takes == "batches" and index < steps - 1 else None

    @property
    def taken(self) -> dict[str, Any]:
        """The policy that plans for the ranks there are, as the argument ``policy`` takes it."""
        policy = self._spec_of(self.world.size).policy
        return {"kind": policy.kind, **policy.model_dump(exclude_defaults=True, mode="json")}

    @property
    def config(self) -> dict[str, Any]:
        """The tables of a run's config that make these plans, as far as they are given; of auto what it takes."""
        tables: dict[str, Table] = {name: getattr(self.arguments, name) for name in ("policy", "order", "cost")}
        if isinstance(self.policy, Auto):
            tables["policy"] = self._spec_of(self.world.size).policy
        numbers = {"seed": self.arguments.seed, "global_batch": self.arguments.global_batch}
        values: dict[str, Any] = {name: number for name, number in numbers.items() if number is not None}
        return values | {name: table.model_dump(exclude_none=True, mode="json") for name, table in tables.items()}

    def drop(self, loaded: Position, epoch: int) -> None:
        """Warn where naming ``epoch`` drops a loaded position, unless nothing is left of the epoch before."""
        is_over = epoch == loaded.epoch + 1 and loaded.step >= self.num_steps(loaded.epoch)
        if loaded.cursor and not is_over:
            warn_of_dropping(self.owner, loaded.epoch, loaded.step, epoch)

    def agreement(self, start: Position, **limits: int | None) -> Agreement:
        """Begin the agreement of the ranks on the iteration from ``start`` on. ``limits``: how long it lasts."""
        identity = {**self._identity(self.world.size), "last": self.last}
        return self.agree(identity, {"epoch": start.epoch, "step": start.step, **limits})

    def state(self, position: Position, **more: int) -> dict[str, Any]:
        """Return plain values, as JSON takes them: what makes the plans, and where they stand."""
        return {**self._identity(self.world.size), **more, "position": position.as_dict()}

    def position(self, state: Mapping[str, Any], *more: str) -> Position:
        """Return the position in ``state``, which must have the keys ``more`` too; auto keeps what it took there.

        Raises ConfigError where it is of other data or another policy, seed, order or world size; the state of another
        world size is first made ready by ``for_world_size``.
        """
        ranks = state.get("batch_ranks") if isinstance(state, Mapping) else None
        if ranks is not None and (type(ranks) is not int or ranks < 1):
            raise ConfigError(f"the state's batch_ranks = {ranks!r}, needs an integer of 1 or more")
        before = self._batch_ranks, self._kept
        self._batch_ranks, self._kept = ranks, self._candidate(state)
        try:
            return self._checked_position(state, more)
        except ConfigError:
            self._batch_ranks, self._kept = before
            raise

    def _candidate(self, state: Any) -> Policy | None:
        """Return the policy of a state where auto could have taken it; else None, and the state is compared."""
        given = state.get("policy") if isinstance(state, Mapping) else None
        candidates = self.policy.candidates(packs=False) if isinstance(self.policy, Auto) else {}
        return next((each for each in candidates.values() if _options(each) == given), None)

    def _checked_position(self, state: Mapping[str, Any], more: Sequence[str]) -> Position:
        # of a state that was dealt to as many ranks as it began with elsewhere, it differs from the world's size alone
        begun = {"batch_ranks": self._batch_ranks} if isinstance(state, Mapping) and "batch_ranks" in state else {}
        identity = {**begun, **self._identity(self.world.size)}
        check_keys(self.owner, state, [*identity, *more, "position"])
        size = state["world_size"]
        early = self._given is None and self.world.size == 1 and type(size) is int and size > 1
        # before the world is known, it may become that of the state
        here = {**begun, **self._identity(size)} if early else identity
        if {**state, "world_size": here["world_size"]}.items() >= here.items():  # all else is the same
            check_same(self.owner, state, here, f"load ddpsched.for_world_size(state, {self.world.size})")
        if {**state, "global_batch": here["global_batch"]}.items() >= here.items():  # as where batch_size is a rank's
            check_same(self.owner, state, here, f"give this one global_batch={state['global_batch']}")
        check_same(self.owner, state, here)
        position = Position.from_dict(state["position"])
        check_position(self._spec_of(size), len(self.lengths), position)
        self._expected = size if early else None
        return position

    def _identity(self, world_size: int) -> dict[str, Any]:
        spec = self._spec_of(world_size)
        options = _options(spec.policy)
        if "prefetch" not in self.policy.model_fields_set:
            options.pop("prefetch", None)  # it follows from B and the number of ranks
        begun = {} if self._batch_ranks in (None, world_size) else {"batch_ranks": self._batch_ranks}
        return {
            **begun,
            "policy": options,
            "order": self._order_identity,
            "cost": asdict(self._cost),
            "memory": self._memory_identity,
            "speeds": self.arguments.speeds,
            "global_batch": self.arguments.global_batch,
            "world_size": world_size,
            "seed": spec.seed,
            "num_samples": len(self.lengths),
            "data": self._digest,
        }

    @cached_property
    def _memory_identity(self) -> dict[str, Any] | None:
        return self.arguments.memory_identity()

    @cached_property
    def _order_identity(self) -> dict[str, Any]:
        """The options that this kind reads; an ordered file by its contents, wherever it lies."""
        options, file = self.order.options, self.order.file
        if options.kind == "length_grouped":
            return options.model_dump(include={"kind", "mega_batches"})
        values = options.model_dump(exclude_defaults=True) | {"kind": options.kind}
        return values if file is None else values | {"path": file.digest}


def _options(policy: Policy) -> dict[str, Any]:
    """Return the options that its steps follow from: infinite_loop limits how long a run is, and changes no step."""
    return policy.model_dump(exclude={"infinite_loop"}, exclude_defaults=True) | {"kind": policy.kind}


def and_last(plans: Iterator[StepPlan]) -> Iterator[tuple[StepPlan, bool]]:
    """Yield each plan, and whether it is the last, which planning one step ahead tells."""
    plan = next(plans, None)
    while plan is not None:
        after = next(plans, None)
        yield plan, after is None
        plan = after
