"""PlanSource: the plans of samplers and loaders, from lengths, policy and order; and the state that tells two apart."""

import itertools
import warnings
from collections.abc import Iterator, Mapping
from functools import cached_property
from hashlib import blake2b
from typing import Annotated, Any

import numpy as np
import numpy.typing as npt
from pydantic import Field

from ddpsched.config import validate
from ddpsched.data.lengths import KnownLengths
from ddpsched.errors import ConfigError
from ddpsched.exchange import LocalExchange
from ddpsched.integrations.agreement import Agreement
from ddpsched.orders.config import OrderConfig
from ddpsched.orders.epoch_order import Order
from ddpsched.plan import Position, StepPlan
from ddpsched.planning.plan_spec import PlanSpec
from ddpsched.planning.planner import check_position, plan_epoch
from ddpsched.planning.policies import AnyPolicy
from ddpsched.table import Positive, Table
from ddpsched.world import World

_DEFAULT = "the default"  # of an option that a state leaves out
GROUPED = 32  # samples that orders take for a batch, where the policy lets its size vary
_made = itertools.count()  # samplers and loaders of several ranks, in the order that this process makes them


class Arguments(Table):
    """The arguments of a sampler or loader, checked like the tables of a run."""

    policy: AnyPolicy
    order: OrderConfig
    seed: Annotated[int, Field(ge=0)]
    global_batch: Positive | None


class PlanSource:
    """The plans of any epoch, equal on every rank; nothing is communicated.

    ``lengths``: (N,), or (N, 2) of two parts, as :class:`KnownLengths` takes them. ``world``: None for the one that
    ``settle()`` finds. ``policy``: a name, or a mapping of ``kind`` and its options, as the table [policy] of a config
    has them. ``global_batch``: B; None for the policies that fill micro-batches, whose B varies. ``order``: a name, or
    a mapping like [order]. ``last``: "smaller", "join" or "drop". ``owner``: who asks, for messages. Raises
    ConfigError or DataError for arguments out of range; what depends on a world that is not known yet is checked then.
    """

    def __init__(
        self,
        owner: str,
        lengths: npt.ArrayLike,
        world: World | None,
        policy: str | Mapping[str, Any],
        global_batch: int | None,
        seed: int,
        order: str | Mapping[str, Any],
        last: str = "smaller",
    ) -> None:
        self.owner, self._given, self._settled = owner, world, world
        self._expected: int | None = None  # the world size of a state that was loaded before there was a world
        self._number = number_among(world)
        self._agreement: Agreement | None = None  # of the last iteration; a copy has none
        self.lengths = KnownLengths(lengths)
        self._array = np.asarray(lengths)
        options = options_of(owner, "policy", policy)
        if options["kind"] == "peer":
            raise ConfigError(f"{owner}: policy 'peer' asks another package, whose own loader is the way to use it")
        values = {
            "policy": options,
            "order": options_of(owner, "order", order),
            "seed": seed,
            "global_batch": global_batch,
        }
        self._arguments = validate(Arguments, plain_values(values), owner)
        self.policy, self.last = self._arguments.policy, last
        self._check(options)
        self._specs: dict[int, PlanSpec] = {}
        self._order = Order.of(self._arguments.order)
        self._spec_of(1 if world is None else world.size)
        self._planned: dict[tuple[int, World], tuple[float, ...]] = {}

    def _check(self, options: Mapping[str, Any]) -> None:
        kind, size = self.policy.kind, self._arguments.global_batch
        if self.policy.varies and size is not None:
            raise ConfigError(
                f"{self.owner}: global_batch = {size}, but policy {kind!r} fills micro-batches of sizes of their "
                "own, so the global batch varies; leave global_batch out"
            )
        if not self.policy.varies and size is None:
            raise ConfigError(f"{self.owner}: policy {kind!r} needs global_batch, the samples of a step over all ranks")
        if self.policy.bounds_parts:
            self.lengths.parts(np.arange(1))  # ConfigError where they have no parts
        for remark in self.policy.remarks:
            warnings.warn(remark, stacklevel=5)
        self._chooses_prefetch = kind == "minmax" and options.get("prefetch") is None

    def __len__(self) -> int:
        """N, samples."""
        return len(self.lengths)

    @property
    def world(self) -> World:
        """The one given; else what is to be seen now, or was when the last iteration began."""
        if self._given is not None:
            return self._given
        try:
            now = World.detect()
        except ConfigError:
            if self._settled is None:
                raise
            return self._settled
        return now if now.size > 1 or self._settled is None else self._settled

    def settle(self) -> World:
        """As an iteration begins: the world that it is for. A launcher may have set up its ranks only now."""
        world = self._settled = self._given or World.detect()
        if self._expected not in (None, world.size):
            raise ConfigError(f"the state is of another {self.owner}: world_size = {self._expected}, here {world.size}")
        return world

    @property
    def spec(self) -> PlanSpec:
        """The value that the plans follow from, in this world."""
        return self._spec_of(self.world.size)

    def _spec_of(self, world_size: int) -> PlanSpec:
        if world_size not in self._specs:
            size, policy = self._arguments.global_batch or GROUPED, self.policy
            if self._chooses_prefetch:
                policy = policy.model_copy(update={"prefetch": -(-2 * size // world_size)})
            try:
                self._specs[world_size] = PlanSpec(
                    world_size,
                    size,
                    policy,
                    self._arguments.seed,
                    epochs=1,
                    order=self._order,
                    max_length=int(self.lengths.lengths(np.arange(len(self))).max()),
                    last=self.last,
                )
            except ConfigError as error:
                raise ConfigError(f"{self.owner}: {error}") from None
        return self._specs[world_size]

    @property
    def varies(self) -> bool:
        """Whether the global batch varies from step to step."""
        return self.policy.varies

    @property
    def over_budget(self) -> int:
        """Samples that are longer than the budget of a pool, and run alone; 0 for other policies."""
        return self.policy.over_budget(self.lengths.lengths(np.arange(len(self)))) or 0

    def plans(self, start: Position) -> Iterator[StepPlan]:
        """Yield the plans of the epoch of ``start``, from there on; none where it is the epoch's end."""
        check_position(self.spec, len(self), start)  # it may have been loaded before the world was known
        return plan_epoch(self.spec, self.lengths, LocalExchange(self.world.size), start)

    def run(self, start: Position, end: int | None, most: int | None) -> Iterator[StepPlan]:
        """Epoch after epoch, until ``end`` would begin, or ``most`` steps are there in all; None for no such limit."""
        step = start.step
        while (end is None or start.epoch < end) and (most is None or step < most):
            for plan in self.plans(start):
                yield plan
                step = plan.step + 1
                if step == most:
                    return
            start = Position(start.epoch + 1, step)

    def num_steps(self, epoch: int) -> int:
        """ceil(N / B), or where ``last`` takes the last step away one fewer; else found by planning the epoch, once."""
        if self.varies:
            return len(self.weights(epoch))
        size = self._arguments.global_batch
        assert size is not None, "_check() refuses it"
        whole, left = divmod(len(self), size)
        gone = self.last != "smaller" and whole > 0
        return whole + (left > 0 and not (gone and left < self.world.size))

    def weights(self, epoch: int) -> tuple[float, ...]:
        """G / B of each step of an epoch that is planned for it, once; 0 where this rank has no samples."""
        rank, key = self.world.rank, (epoch, self.world)
        if key not in self._planned:
            plans = self.plans(Position(epoch))
            self._planned[key] = tuple(weight(plan, rank) for plan in plans)
        return self._planned[key]

    def known_weight(self, epoch: int, index: int) -> float | None:
        """The ``index``-th of ``weights(epoch)``, where it is known without planning; IndexError beyond the epoch."""
        planned = self._planned.get((epoch, self.world))
        if planned is not None or not self.varies:
            steps = self.num_steps(epoch)
            if not 0 <= index < steps:
                raise IndexError(f"step {index} of an epoch of {steps} steps")
            if planned is not None:
                return planned[index]
            if self.policy.takes == "batches" and index < steps - 1:
                return self.world.size / self.spec.global_batch
        return None

    def stand_in(self) -> int:
        """The shortest sample: what a rank without samples can put through its model, times zero."""
        return int(self.lengths.lengths(np.arange(len(self))).argmin())

    def agreement(self, start: Position, **more: int | None) -> Agreement:
        """Begin the agreement of the ranks on the iteration from ``start`` on. ``more``: how long it goes on."""
        waits = self._agreement is None or not self._agreement.has_compared
        begin = {"epoch": start.epoch, "step": start.step, **more}
        identity = _flat({**self._identity, "last": self.last})
        self._agreement = Agreement(self.owner, self.world, identity, begin, self._number, waits)
        self._agreement.first()
        return self._agreement

    def state(self, position: Position, **more: int) -> dict[str, Any]:
        """Plain values, as JSON takes them: what makes the plans, and where they stand."""
        return {**self._identity, **more, "position": position.as_dict()}

    def position(self, state: Mapping[str, Any], *more: str) -> Position:
        """Return the position in ``state``; ConfigError for that of other data, policy, seed, order or world size.

        ``more``: further keys that it must have.
        """
        own = self._identity
        needed = sorted([*own, *more, "position"])
        if not isinstance(state, Mapping) or set(state) != set(needed):
            given = sorted(map(str, state)) if isinstance(state, Mapping) else repr(state)
            raise ConfigError(f"the state of a {self.owner} needs exactly {needed}, got {given}")
        size = state["world_size"]
        early = self._given is None and self.world.size == 1 and type(size) is int and size > 1
        if early:  # there is no world yet to hold it against
            own = self._identity_in(size)
        theirs, ours = _flat({key: state[key] for key in own}), _flat(own)
        differs = [
            _difference(key, theirs.get(key, _DEFAULT), ours.get(key, _DEFAULT))
            for key in dict.fromkeys([*ours, *theirs])
            if theirs.get(key, _DEFAULT) != ours.get(key, _DEFAULT)
        ]
        if differs:
            raise ConfigError(f"the state is of another {self.owner}: {'; '.join(differs)}")
        position = Position.from_dict(state["position"])
        check_position(self._spec_of(size), len(self), position)
        self._expected = size if early else None
        return position

    @property
    def _identity(self) -> dict[str, Any]:
        return self._identity_in(self.world.size)

    def _identity_in(self, world_size: int) -> dict[str, Any]:
        spec = self._spec_of(world_size)
        # infinite_loop says how long a run goes on, not what its steps are
        options = spec.policy.model_dump(exclude={"infinite_loop"}, exclude_defaults=True)
        return {
            "policy": options | {"kind": spec.policy.kind},
            "order": self._order_identity,
            "global_batch": self._arguments.global_batch,
            "world_size": world_size,
            "seed": spec.seed,
            "num_samples": len(self),
            "data": self._digest,
        }

    @cached_property
    def _order_identity(self) -> dict[str, Any]:
        """The keys that this kind reads; of an ordered file what it holds, wherever it lies."""
        options, file = self._order.options, self._order.file
        if options.kind == "length_grouped":
            return options.model_dump(include={"kind", "mega_batches"})
        found = options.model_dump(exclude_defaults=True) | {"kind": options.kind}
        return found if file is None else found | {"path": file.digest}

    @cached_property
    def _digest(self) -> str:
        """128 bits over all lengths: other data of the same size is another stream."""
        return blake2b(np.ascontiguousarray(self._array, dtype="<i8").data, digest_size=16).hexdigest()


def weight(plan: StepPlan, rank: int) -> float:
    """G / B: what this rank's summed loss is multiplied by under DDP; 0 where it has no samples."""
    return plan.world_size / plan.global_batch if plan.ranks[rank] else 0.0


def number_among(world: World | None) -> int:
    """The number of a sampler or loader of several ranks, as it is made."""
    return next(_made) if world is None or world.size > 1 else -1


def whole_number(what: str, value: Any, least: int, meaning: str) -> int:
    """``value``, numpy's integers included; ConfigError where it is none, or below ``least``."""
    if isinstance(value, bool) or not isinstance(value, int | np.integer) or value < least:
        raise ConfigError(f"{what}: got {value!r}; {meaning}")
    return int(value)


def epoch_number(epoch: Any) -> int:
    """ConfigError where it is not the number of an epoch."""
    return whole_number("set_epoch", epoch, 0, "epochs are numbered from 0")


def number_of_steps(count: Any) -> int:
    """ConfigError where so many steps cannot be skipped."""
    return whole_number("skip_batches", count, 0, "give a number of optimizer steps, 0 or more")


def options_of(owner: str, name: str, given: str | Mapping[str, Any]) -> dict[str, Any]:
    if isinstance(given, str):
        return {"kind": given}
    if not isinstance(given, Mapping) or not isinstance(given.get("kind"), str):
        raise ConfigError(f"{owner}: {name} = {given!r}, needs a name, or a mapping with its name under 'kind'")
    return dict(given)


def plain_values(value: Any) -> Any:
    """Numbers of NumPy and tuples as the config takes them: budgets are often computed from lengths."""
    if isinstance(value, Mapping):
        return {key: plain_values(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [plain_values(inner) for inner in value]
    return value.item() if isinstance(value, np.generic) else value


def _flat(values: Mapping[str, Any]) -> dict[str, Any]:
    """``{"policy": {"kind": k}}`` -> ``{"policy.kind": k}``."""
    flat: dict[str, Any] = {}
    for key, value in values.items():
        if isinstance(value, Mapping):
            flat |= {f"{key}.{inner}": each for inner, each in value.items()}
        else:
            flat[key] = value
    return flat


def _difference(key: str, theirs: Any, ours: Any) -> str:
    said = [each if each is _DEFAULT else repr(each) for each in (theirs, ours)]
    if key == "data":
        return f"other data: the digest of its lengths is {said[0]}, here {said[1]}"
    return f"{key} = {said[0]}, here {said[1]}"
