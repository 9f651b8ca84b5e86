"""A run as one value, and what must agree between its tables."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from pydantic import Field, field_validator, model_validator

from ddpsched.config.tables import ExecutorConfig, LrConfig, ModelConfig, SyncConfig, TrainConfig
from ddpsched.costs.config import CostConfig, MemoryConfig, caps_of, cost_model
from ddpsched.data.config import DataConfig
from ddpsched.orders.config import OrderConfig
from ddpsched.orders.epoch_order import Order
from ddpsched.planning.plan_spec import PlanSpec
from ddpsched.planning.policies import AnyPolicy
from ddpsched.planning.policies.minmax import Minmax
from ddpsched.planning.policy import Setting
from ddpsched.table import Positive, Table

if TYPE_CHECKING:
    from ddpsched.data.samples import Samples


class RunConfig(Table):
    """One run."""

    name: Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$")] = "run"
    study: Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$")] = "runs"
    outputs: str = "outputs"
    seed: Annotated[int, Field(ge=0)] = 0
    steps: Positive | None = None
    epochs: Positive | None = None
    global_batch: Positive = 32
    world_size: Positive = 4
    data: DataConfig = DataConfig()
    model: ModelConfig = ModelConfig()
    order: OrderConfig = OrderConfig()
    policy: AnyPolicy = Minmax()
    lr: LrConfig = LrConfig()
    cost: CostConfig = CostConfig()
    sync: SyncConfig = SyncConfig()
    executor: ExecutorConfig = ExecutorConfig()
    train: TrainConfig = TrainConfig()
    memory: MemoryConfig = MemoryConfig()

    @field_validator("policy", mode="before")
    @classmethod
    def _kind_by_default(cls, value: Any) -> Any:
        return {"kind": "minmax", **value} if isinstance(value, Mapping) else value

    @property
    def _setting(self) -> Setting:
        return Setting(
            self.world_size,
            self.global_batch,
            self.epochs,
            lengths_known=self.data.lengths == "known",
            has_parts=self.data.prompt is not None,
            pads_to_max=self.data.pad_to == "max_length",
            squared_cost=self.cost.kind == "padded_tokens_squared",
            refined_cost=self.cost.online,
            memory="probe" if self.memory.probe else "model" if self.memory.path else "none",
        )

    @model_validator(mode="after")
    def _consistent(self) -> "RunConfig":
        if (self.steps is None) == (self.epochs is None):
            raise ValueError(f"steps = {self.steps}, epochs = {self.epochs}: give exactly one of the two")
        self.policy.check(self._setting)
        if self.data.lengths == "online" and (
            self.order.kind == "length_grouped" or (self.order.sorts and self.order.path is None)
        ):
            raise ValueError(f"order.kind = {self.order.kind!r} sorts by length; use data.lengths = 'known'")
        if self.order.sorts and self.data.concatenate:
            fault = "sorts samples, but data.concatenate cuts all documents into slices of one length"
            raise ValueError(f"order.kind = {self.order.kind!r} {fault}; leave out one of the two")
        if self.model.task != "causal_lm":
            if self.data.concatenate or self.data.prompt is not None:
                raise ValueError("data.concatenate and data.prompt belong to model.task = 'causal_lm'")
            if self.train.target == "token_mean":
                fault = "train.target = 'token_mean' weighs label tokens, of which a classifier has none"
                raise ValueError(f"{fault}; use 'sample_mean', or model.task = 'causal_lm'")
        if (self.data.within_documents or self.policy.packs) and self.model.mask != "key_padding":
            raise ValueError(f"model.mask = {self.model.mask!r} does not apply to packed rows; leave it out")
        return self

    @model_validator(mode="after")
    def _runs_on_its_executor(self) -> "RunConfig":
        if self.executor.kind == "simulated" and self.memory.path and self.memory.budget_bytes is None:
            raise ValueError("memory.path in a simulated run needs budget_bytes, as there is no device to ask")
        if self.data.lengths == "online" and self.executor.kind == "simulated":
            raise ValueError("a simulated run knows the lengths of all ranks; use data.lengths = 'known'")
        if self.executor.timeline and self.executor.kind != "distributed":
            remedy = "use 'distributed', or leave it out (`python -m analysis.timeline` draws any run)"
            raise ValueError(f"executor.timeline with executor.kind = {self.executor.kind!r}, one process; {remedy}")
        if self.executor.kind == "simulated" and self.memory.probe:
            raise ValueError("memory.probe measures a device; a simulated run has none")
        slowness = self.executor.slowness
        if slowness is not None and len(slowness) != self.world_size:
            raise ValueError(f"executor.slowness names {len(slowness)} ranks, world_size = {self.world_size}")
        if self.sync.kind == "fsdp" and (slowness or self.memory.probe or self.memory.path):
            fault = "executor.slowness and memory run the model outside a step, but sync.kind = 'fsdp' shards it"
            raise ValueError(f"{fault}; use 'bucketed' or 'ddp'")
        return self

    @property
    def target(self) -> str:
        """ "sample_mean" or "token_mean": the mean that the gradient is of."""
        return self.train.target or ("token_mean" if self.model.task == "causal_lm" else "sample_mean")

    @property
    def run_dir(self) -> Path:
        """``outputs/<study>/<name>``."""
        return Path(self.outputs) / self.study / self.name

    @property
    def labels(self) -> dict[str, Any]:
        """The columns that every record of the run shares."""
        return {"run": self.name, "mode": self.executor.kind, "policy": self.policy.kind, "seed": self.seed}

    def plan_spec(self, allowed: Sequence[int] | None = None) -> PlanSpec:
        """Return the arguments of planning; a fitted cost, a calibration and an order are read from their files here.

        ``allowed``: each rank's memory limit, in bytes where ``memory.path`` names a calibration, else in samples of
        ``data.max_length``; None for no limit. Raises ConfigError or DataError for files that cannot be read.
        """
        return PlanSpec(
            world_size=self.world_size,
            global_batch=self.global_batch,
            policy=self.policy,
            seed=self.seed,
            epochs=self.epochs,
            steps=self.steps,
            order=Order.of(self.order),
            cost=cost_model(self.cost),
            caps=None if allowed is None else caps_of(self.memory, allowed, self.data.max_length),
            max_length=self.data.max_length,
            pad_to=self.data.max_length if self.data.pad_to == "max_length" else 0,
            refined=self.cost.online,
            lengths_known=self.data.lengths == "known",
        )

    def load_samples(self) -> "Samples":
        """Load and tokenise the data; see :func:`ddpsched.data.samples.load_samples`."""
        from ddpsched.data.samples import load_samples

        return load_samples(
            self.data, seed=self.seed, task=self.model.task, model=self.model.name, order_path=self.order.path
        )
