"""A run as one value, and what must agree between its tables."""

from pathlib import Path
from typing import Annotated

from pydantic import Field, model_validator

from ddpsched.config.base import Positive, Table
from ddpsched.config.policy import FILLING, PolicyConfig
from ddpsched.config.tables import (
    CostConfig,
    DataConfig,
    ExecutorConfig,
    LrConfig,
    MemoryConfig,
    ModelConfig,
    OrderConfig,
    SyncConfig,
    TrainConfig,
)


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
    policy: PolicyConfig = PolicyConfig()
    lr: LrConfig = LrConfig()
    cost: CostConfig = CostConfig()
    sync: SyncConfig = SyncConfig()
    executor: ExecutorConfig = ExecutorConfig()
    train: TrainConfig = TrainConfig()
    memory: MemoryConfig = MemoryConfig()

    @model_validator(mode="after")
    def _consistent(self) -> "RunConfig":
        if (self.steps is None) == (self.epochs is None):
            raise ValueError(f"steps = {self.steps}, epochs = {self.epochs}: give exactly one of the two")
        if self.global_batch < self.world_size and not self.policy.fills:
            raise ValueError(
                f"global_batch = {self.global_batch} is smaller than world_size = {self.world_size}: "
                "every rank needs at least one sample; raise global_batch or lower world_size"
            )
        window = self.policy.prefetch * self.world_size
        if self.policy.kind == "minmax" and window < self.global_batch:
            raise ValueError(
                f"policy.prefetch * world_size = {self.policy.prefetch} * {self.world_size} = {window} is smaller "
                f"than global_batch = {self.global_batch}: the windows cannot fill a step; raise policy.prefetch "
                f"to at least {-(-self.global_batch // self.world_size)}"
            )
        if self.data.lengths == "online" and self.policy.kind in ("balanced", "packed", "peer", *FILLING):
            raise ValueError(
                f"policy.kind = {self.policy.kind!r} needs every length on every rank; "
                "use data.lengths = 'known', or policy.kind = 'minmax' with online lengths"
            )
        if self.cost.kind == "padded_tokens_squared" and (
            self.policy.kind == "packed"
            or self.policy.sequence_packing
            or self.policy.max_microbatches > 1
            or self.policy.batches_per_optimizer_step > 1
        ):
            raise ValueError(
                "cost.kind = 'padded_tokens_squared' does not add up over samples or micro-batches; "
                "use 'padded_tokens' (with gamma for attention), 'affine_quadratic' or 'calibrated'"
            )
        if self.data.lengths == "online" and (
            self.order.kind == "length_grouped" or (self.order.sorts and self.order.path is None)
        ):
            raise ValueError(f"order.kind = {self.order.kind!r} sorts by length; use data.lengths = 'known'")
        if self.order.sorts and self.data.concatenate:
            raise ValueError(
                f"order.kind = {self.order.kind!r} sorts samples, but data.concatenate cuts all documents into slices "
                "of one length; leave out one of the two"
            )
        if self.data.pad_to == "max_length" and self.policy.kind != "static":
            raise ValueError(
                "data.pad_to = 'max_length' makes all samples as long, which leaves policy.kind = "
                f"{self.policy.kind!r} nothing to gain; use it with 'static', as the approach to compare with"
            )
        if self.model.task != "causal_lm":
            if self.data.concatenate or self.data.prompt is not None:
                raise ValueError("data.concatenate and data.prompt belong to model.task = 'causal_lm'")
            if self.train.target == "token_mean":
                raise ValueError(
                    "train.target = 'token_mean' weighs label tokens, of which a classifier has none; use "
                    "'sample_mean', or model.task = 'causal_lm'"
                )
        if (self.data.within_documents or self.policy.packs) and self.model.mask != "key_padding":
            raise ValueError(
                "rows of documents or samples end to end have attention of their own; leave model.mask out"
            )
        if isinstance(self.policy.max_tokens_for_batch, list) and self.data.prompt is None:
            raise ValueError(
                f"policy.max_tokens_for_batch = {self.policy.max_tokens_for_batch} bounds prompt and text; "
                "name the prompt's column in data.prompt, or give one number"
            )
        if self.cost.online and self.policy.kind in ("static", "peer", *FILLING):
            raise ValueError(f"cost.online refines a cost, but policy.kind = {self.policy.kind!r} plans without one")
        if not self.policy.infinite_loop and (self.epochs or 1) > 1:
            raise ValueError(
                f"policy.infinite_loop = false ends after one epoch, but epochs = {self.epochs}; leave out one of the "
                "two, or give steps, a most that one epoch may end before"
            )
        if self.policy.fills and self.memory.probe:
            raise ValueError(
                f"memory.probe tries samples of data.max_length up to the global batch, which policy.kind = "
                f"{self.policy.kind!r} lets vary; use memory.path, a file of `ddpsched calibrate`"
            )
        if self.policy.kind == "peer" and (self.memory.probe or self.memory.path):
            raise ValueError("a peer knows no memory caps; leave memory out with policy.kind = 'peer'")
        if self.executor.kind == "simulated" and self.memory.path and self.memory.budget_bytes is None:
            raise ValueError("memory.path in a simulated run needs budget_bytes, as there is no device to ask")
        if self.data.lengths == "online" and self.executor.kind == "simulated":
            raise ValueError("a simulated run plays every rank and knows all lengths; use data.lengths = 'known'")
        if self.executor.timeline and self.executor.kind != "distributed":
            raise ValueError(
                f"executor.timeline is of ranks that run side by side; executor.kind = {self.executor.kind!r} plays "
                "them in turn; use 'distributed', or leave it out (`python -m analysis.timeline` draws any run)"
            )
        if self.executor.kind == "simulated" and self.memory.probe:
            raise ValueError("memory.probe measures a device; a simulated run has none")
        slowness = self.executor.slowness
        if slowness is not None and len(slowness) != self.world_size:
            raise ValueError(f"executor.slowness names {len(slowness)} ranks, world_size = {self.world_size}")
        if self.sync.kind == "fsdp" and (slowness or self.memory.probe or self.memory.path):
            raise ValueError(
                "executor.slowness and memory run the model outside a step, which sync.kind = 'fsdp' has sharded; "
                "use 'bucketed' or 'ddp'"
            )
        return self

    @property
    def target(self) -> str:
        """ "sample_mean" or "token_mean": what weighs the same in the gradient."""
        return self.train.target or ("token_mean" if self.model.task == "causal_lm" else "sample_mean")

    @property
    def run_dir(self) -> Path:
        """``outputs/<study>/<name>``."""
        return Path(self.outputs) / self.study / self.name
