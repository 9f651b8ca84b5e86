"""A run as one value, its tables that training reads, and the checks between tables."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import Field, field_validator, model_validator

from ddpsched.costs.config import CostConfig, MemoryConfig, caps_of, cost_model
from ddpsched.data.config import DataConfig
from ddpsched.denominators import BY_GROUP, Target, check_target
from ddpsched.orders.config import OrderConfig
from ddpsched.orders.epoch_order import Order
from ddpsched.planning.plan_spec import PlanSpec
from ddpsched.planning.policies import AnyPolicy
from ddpsched.planning.policies.minmax import Minmax
from ddpsched.planning.policy import Setting
from ddpsched.table import (
    BatchSize,
    Float32,
    FolderName,
    NonNegative,
    Positive,
    Ranks,
    Seed,
    Table,
    Text,
    Threads,
    Timeout,
)

if TYPE_CHECKING:
    from ddpsched.data.samples import Samples


class ModelConfig(Table):
    """[model]: the model that is trained, and how its weights begin."""

    task: Literal["classification", "causal_lm"] = "classification"
    """The learner's aim: the label of a text, or each next token."""
    name: Text = "tiny"
    """ "tiny", a hub name, or a folder."""
    weights: Literal["pretrained", "random"] = "random"
    """Where training begins: the model's published weights, or random ones."""
    dropout: Annotated[float, Field(ge=0, lt=1)] | None = None
    """The rate of every dropout layer; None: the model's default."""
    mask: Literal["key_padding", "per_sample", "shared"] = "key_padding"
    """The attention mask, which hides padding: (B, T) of tokens, (B, T, T) of pairs, or one causal (T, T) for all."""

    @model_validator(mode="after")
    def _belong_together(self) -> "ModelConfig":
        if self.mask == "shared" and self.task != "causal_lm":
            fault = "mask = 'shared' hides padding only where tokens look to the left, as in task = 'causal_lm'"
            raise ValueError(f"{fault}; use 'key_padding' or 'per_sample'")
        return self


class LrConfig(Table):
    """[lr]: how the learning rate follows the size of a step whose global batch varies."""

    kind: Literal["fixed", "linear", "sqrt"] = "fixed"
    """The rate is fixed, or times size / reference, or times its root."""
    per: Literal["samples", "tokens"] = "samples"
    """The unit of a step's size."""
    reference: Positive | None = None
    """The size that train.learning_rate is meant for; of samples by default global_batch."""

    @model_validator(mode="after")
    def _has_a_reference(self) -> "LrConfig":
        if self.kind == "fixed" and (self.reference is not None or self.per != "samples"):
            raise ValueError("per and reference belong to kind = 'linear' or 'sqrt', not 'fixed'")
        if self.kind != "fixed" and self.per == "tokens" and self.reference is None:
            raise ValueError("per = 'tokens' needs reference, the tokens of a step that train.learning_rate is for")
        return self


class SyncConfig(Table):
    """[sync]: how gradients are synchronised."""

    kind: Literal["naive", "overlap", "bucketed", "ddp", "fsdp"] = "ddp"
    """How gradients are added over ranks: after backward, each with it, in buckets, by torch's DDP, or sharded."""
    bucket_mb: Annotated[float, Field(ge=2**-20, le=2**20)] = 25.0
    """bucketed, ddp: MiB of gradients in one message."""
    precision: Literal["float32", "bfloat16", "float16"] = "float32"
    """The type of gradients in messages; float64 ones keep theirs."""
    reshard: bool = False
    """fsdp: gather weights anew for each micro-batch, of which all ranks then need as many."""
    barrier: bool = False
    """naive: a barrier comes first, so that waiting and moving gradients are timed apart."""

    @model_validator(mode="after")
    def _belong_together(self) -> "SyncConfig":
        if self.reshard and self.kind != "fsdp":
            raise ValueError(f"reshard belongs to kind = 'fsdp', not {self.kind!r}, whose ranks have all weights")
        if self.barrier and self.kind != "naive":
            raise ValueError(f"barrier belongs to kind = 'naive', not {self.kind!r}, whose messages travel in backward")
        return self


class ExecutorConfig(Table):
    """[executor]: the executor that runs the plans, and its device."""

    kind: Literal["distributed", "virtual", "simulated"] = "virtual"
    """Ranks are processes of torchrun, play on one device in turn, or are simulated."""
    device: Literal["auto", "cpu", "cuda"] = "auto"
    """The device of each rank; auto takes CUDA where there is one."""
    threads: Threads = 1
    """Processor threads of each process; the same for every arm of a study."""
    timeout_s: Timeout = 120.0
    """Seconds of silence after which a rank has failed."""
    elastic: bool = False
    """Under torchrun: world_size is as many ranks as it started, now or after a restart."""
    slowness: list[Annotated[float, Field(ge=1, le=1e6)]] | None = None
    """How many times each rank does its work, for experiments; 2.0: twice."""
    timeline: bool = False
    """Note when each micro-batch and each message of gradients began and ended."""
    alpha_s: NonNegative = 0.09
    """Simulated: seconds per micro-batch; by default DistilBERT's on one CPU core."""
    beta_s: NonNegative = 2.6e-3
    """Simulated: seconds per padded token."""
    gamma_s: NonNegative = 0.0
    """Simulated: seconds per count * max_length**2."""
    gradient_bytes: NonNegative = 0.0
    """Simulated: bytes of one all-reduce."""
    bandwidth_bytes_per_s: Annotated[float, Field(ge=1, le=1e15)] = 1e9
    """Simulated: bytes per second of the network."""
    latency_s: NonNegative = 0.0
    """Simulated: seconds per message."""


class TrainConfig(Table):
    """[train]: the loss, the optimizer and evaluations."""

    target: Target | None = None
    """The mean that the gradient is of; None: token_mean for causal_lm, else sample_mean."""
    length: Annotated[float, Field(gt=0, le=2**40)] | None = None
    """constant_length: L, which each sample's sum over label tokens is divided by."""
    learning_rate: Float32 = 2e-5
    """AdamW's rate after the warm-up."""
    weight_decay: NonNegative = 0.01
    """AdamW's decay."""
    warmup: Annotated[float, Field(ge=0, le=1)] = 0.1
    """The share of all steps in which the rate rises."""
    max_grad_norm: Float32 = 1.0
    """The norm to which gradients are clipped; 1e30: never."""
    precision: Literal["auto", "float32", "float64", "bfloat16"] = "auto"
    """The type of arithmetic; auto: bfloat16 autocast on CUDA, else float32."""
    non_finite: Literal["stop", "skip"] = "stop"
    """Stop, or skip the step, on all ranks, at a gradient that is NaN or infinite."""
    eval_every: Annotated[int, Field(ge=0, le=2**31 - 1)] = 0
    """Steps between evaluations; 0: one, after the last step."""
    checkpoint_every: Annotated[int, Field(ge=0, le=2**31 - 1)] = 0
    """Steps between checkpoints, from which a run that was stopped goes on; 0: none."""
    keep: Positive = 2
    """The newest checkpoints that stay."""
    save_model: bool = True
    """Save the trained model, as from_pretrained reads it."""

    @field_validator("target", mode="before")
    @classmethod
    def _is_known(cls, value: Any) -> Any:
        return value if value is None else check_target(value, "target")

    @model_validator(mode="after")
    def _length_belongs_to_its_target(self) -> "TrainConfig":
        if (self.target == "constant_length") != (self.length is not None):
            raise ValueError("target = 'constant_length' and length belong together; give both, or leave both out")
        return self


class RunConfig(Table):
    """One run."""

    name: FolderName = "run"
    """The run's folder in its study's."""
    study: FolderName = "runs"
    """The folder of the runs that are compared."""
    outputs: Text = "outputs"
    """The folder of all studies."""
    seed: Seed = 0
    """Decides the order, random weights and dropout."""
    aa: bool = False
    """The baseline of a study once more (A/A), whose ratio to the first is noise."""
    steps: Positive | None = None
    """Optimizer steps; give these or epochs."""
    epochs: Positive | None = None
    """Epochs; give these or steps."""
    global_batch: BatchSize = 32
    """B, the samples of a step over all ranks."""
    world_size: Ranks = 4
    """G, the ranks."""
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

    @model_validator(mode="after")
    def _consistent(self) -> "RunConfig":
        if (self.steps is None) == (self.epochs is None):
            raise ValueError(f"steps = {self.steps}, epochs = {self.epochs}: give exactly one of the two")
        setting = Setting(
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
        self.policy.check(setting)
        sorts_by_length = self.order.kind == "length_grouped" or (self.order.sorts and self.order.path is None)
        if sorts_by_length and self.data.lengths == "online":
            raise ValueError(f"order.kind = {self.order.kind!r} sorts by length; use data.lengths = 'known'")
        if self.order.sorts and self.data.concatenate:
            fault = "sorts samples, but data.concatenate cuts all documents into slices of one length"
            raise ValueError(f"order.kind = {self.order.kind!r} {fault}; leave out one of the two")
        if self.order.path is not None and self.data.on_bad == "skip":
            fault = f"order.path = {self.order.path!r} orders all rows of a file, data.on_bad = 'skip' leaves some out"
            raise ValueError(f"{fault}; correct the file's rows, or leave out one of the two")
        if self.model.task != "causal_lm":
            if self.data.concatenate or self.data.prompt is not None:
                raise ValueError("data.concatenate and data.prompt belong to model.task = 'causal_lm'")
            if self.train.target not in (None, "sample_mean"):
                fault = f"train.target = {self.train.target!r} weighs label tokens, of which a classifier has none"
                raise ValueError(f"{fault}; use 'sample_mean', or model.task = 'causal_lm'")
        self._check_groups()
        if (self.data.within_documents or self.policy.packs) and self.model.mask != "key_padding":
            raise ValueError(f"model.mask = {self.model.mask!r} does not apply to packed rows; leave it out")
        return self

    def _check_groups(self) -> None:
        target, data = self.train.target, self.data
        if data.group is not None and target not in BY_GROUP:
            fault = f"data.group = {data.group!r} is for train.target = {' or '.join(map(repr, BY_GROUP))}"
            raise ValueError(f"{fault}, not {target!r}; leave it out, or set the target")
        if target in BY_GROUP and data.group is None and (data.prompt is None or target != "group_mean"):
            of = " (or data.prompt, whose equal texts are then a group)" * (target == "group_mean")
            raise ValueError(f"train.target = {target!r} needs the group of each sample; name a column, data.group{of}")
        if target in BY_GROUP and data.concatenate:
            raise ValueError("data.concatenate cuts samples of several groups into one; leave it out, or data.group")
        if target == "window_token_mean" and data.lengths == "online":
            fault = "divides by label tokens of samples that come later"
            raise ValueError(f"train.target = 'window_token_mean' {fault}; use data.lengths = 'known'")

    @model_validator(mode="after")
    def _runs_on_its_executor(self) -> "RunConfig":
        simulated, slowness = self.executor.kind == "simulated", self.executor.slowness
        if simulated and self.memory.path and self.memory.budget_bytes is None:
            raise ValueError("memory.path in a simulated run needs budget_bytes, as there is no device to ask")
        if simulated and self.data.lengths == "online":
            raise ValueError("a simulated run knows the lengths of all ranks; use data.lengths = 'known'")
        if self.executor.elastic and self.executor.kind != "distributed":
            fault = f"executor.elastic follows the ranks that torchrun started, executor.kind = {self.executor.kind!r}"
            raise ValueError(f"{fault} has none; use 'distributed', or leave it out")
        if self.executor.timeline and self.executor.kind != "distributed":
            fault = f"executor.timeline is of several processes, executor.kind = {self.executor.kind!r} has one"
            remedy = "use 'distributed', or leave it out (`ddpsched timeline` draws any run)"
            raise ValueError(f"{fault}; {remedy}")
        if self.train.checkpoint_every and not self.policy.resumes:
            fault = f"but policy.kind = {self.policy.kind!r} cannot go on within an epoch"
            raise ValueError(f"train.checkpoint_every = {self.train.checkpoint_every}, {fault}; leave it out")
        if simulated and self.train.checkpoint_every:
            fault = f"train.checkpoint_every = {self.train.checkpoint_every}, but a simulated run trains no model"
            raise ValueError(f"{fault}; leave it out: it begins anew within seconds")
        if simulated and self.memory.probe:
            remedy = "leave it out, or give memory.path and memory.budget_bytes"
            raise ValueError(f"memory.probe = true measures a device; a simulated run has none; {remedy}")
        if slowness is not None and len(slowness) != self.world_size:
            raise ValueError(
                f"executor.slowness names {len(slowness)} ranks, world_size = {self.world_size}; give a number a rank"
            )
        if self.sync.reshard and self.policy.most_microbatches > 1 and not self.policy.in_lockstep:
            fault = f"policy.kind = {self.policy.kind!r} with {self.policy.most_microbatches} micro-batches a rank"
            has = any(name == "lockstep" for name in type(self.policy).model_fields)
            remedy = "set policy.lockstep = true" if has else "use 'packed' or 'balanced' with lockstep = true"
            raise ValueError(f"sync.reshard = true needs as many on each rank, and {fault} may differ; {remedy}")
        if self.sync.kind == "fsdp" and (slowness or self.memory.probe or self.memory.path):
            fault = "executor.slowness and memory run the model outside a step, but sync.kind = 'fsdp' shards it"
            raise ValueError(f"{fault}; use 'bucketed' or 'ddp'")
        return self

    @property
    def target(self) -> str:
        """The mean that the gradient is of, one of ``ddpsched.denominators.TARGETS``."""
        return self.train.target or ("token_mean" if self.model.task == "causal_lm" else "sample_mean")

    @property
    def run_dir(self) -> Path:
        """``outputs/<study>/<name>``."""
        return Path(self.outputs) / self.study / self.name

    @property
    def labels(self) -> dict[str, Any]:
        """The columns that every record of the run shares."""
        return {"run": self.name, "mode": self.executor.kind, "policy": self.policy.kind, "seed": self.seed}

    def plan_spec(self, allowed: Sequence[int] | None = None, batch_ranks: int | None = None) -> PlanSpec:
        """Return the arguments of planning; a fitted cost, a calibration and an order are read from their files here.

        ``allowed``: each rank's memory limit, in bytes where ``memory.path`` names a calibration, else in samples of
        ``data.max_length``; None for no limit. ``batch_ranks``: of a run that goes on with another world size, the one
        it began with. Raises ConfigError or DataError for files that cannot be read.
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
            batch_ranks=batch_ranks,
        )

    def load_samples(self) -> "Samples":
        """Load and tokenise the data; see :func:`ddpsched.data.samples.load_samples`."""
        from ddpsched.data.samples import load_samples

        return load_samples(
            self.data, seed=self.seed, task=self.model.task, model=self.model.name, order_path=self.order.path
        )
