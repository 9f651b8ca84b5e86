"""The tables of a config that training reads: [model], [lr], [sync], [compile], [executor], [log] and [train]."""

from typing import Annotated, Any, Literal

from pydantic import Field, field_validator, model_validator

from ddpsched.denominators import Target, check_target
from ddpsched.table import Float32, NonNegative, Positive, Table, Text, Threads, Timeout


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
    packed_attention: Literal["auto", "sdpa"] = "auto"
    """Packed rows attend by torch's kernel for varying lengths, where it can, or by SDPA for each length."""

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


class CompileConfig(Table):
    """[compile]: whether torch.compile makes programs of the model, and for which shapes."""

    kind: Literal["eager", "dynamic", "static"] = "eager"
    """Not at all, one program for all shapes, or one for each shape of a menu."""
    shapes: Annotated[int, Field(ge=1, le=256)] = 8
    """static: the most shapes of the menu."""
    menu: Annotated[list[Annotated[list[Positive], Field(min_length=2, max_length=2)]], Field(min_length=1)] | None = (
        None
    )
    """static: the menu itself, [rows, length] of each shape; None: the one that loses least."""
    cover: Literal["warm_up", "order"] = "warm_up"
    """static: run every shape once before the first step, or let the first steps of an epoch meet every shape."""
    backend: Literal["inductor", "aot_eager"] = "inductor"
    """The compiler; aot_eager traces alone, and needs no C++ compiler."""
    mode: Literal["default", "reduce-overhead", "max-autotune", "max-autotune-no-cudagraphs"] = "default"
    """The mode of inductor."""
    split: bool = True
    """ddp: cut the program at bucket boundaries, so that gradients travel while backward runs."""
    on_failure: Literal["eager", "stop"] = "eager"
    """Train eagerly, with one warning, or stop, where the compiler fails."""
    on_recompile: Literal["record", "stop"] = "record"
    """Record a compilation within a step, with its reason, or stop at it."""
    cache: Text | None = None
    """The folder of compiled programs, which later runs take them from; None: torch's own."""
    live: Annotated[int, Field(ge=1, le=256)] | None = None
    """static: the most programs at a time, or those of one step; samples must come by length. None: all."""

    @property
    def records_graphs(self) -> bool:
        """Whether programs are recorded as CUDA graphs, where the device has them."""
        return self.mode in ("reduce-overhead", "max-autotune")

    @model_validator(mode="after")
    def _belong_together(self) -> "CompileConfig":
        fields = type(self).model_fields
        foreign = {"eager": [*fields][1:], "dynamic": ["shapes", "menu", "cover", "live"], "static": []}[self.kind]
        changed = [name for name in foreign if getattr(self, name) != fields[name].default]
        if changed:
            fault = f"{changed[0]} = {getattr(self, changed[0])!r} does nothing with kind = {self.kind!r}"
            raise ValueError(f"{fault}; leave it out, or use kind = 'static'")
        if self.menu is not None and len(self.menu) > self.shapes:
            fault = f"menu has {len(self.menu)} shapes, more than shapes = {self.shapes}"
            raise ValueError(f"{fault}; raise shapes, or leave some out: each takes a compilation")
        if self.menu is not None and len({tuple(shape) for shape in self.menu}) < len(self.menu):
            raise ValueError(f"menu = {self.menu} names a shape twice; leave one out")
        if self.backend != "inductor" and self.mode != "default":
            raise ValueError(f"mode = {self.mode!r} is of backend = 'inductor', not {self.backend!r}; leave one out")
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
    max_groups: Annotated[int, Field(ge=1, le=4096)] = 64
    """policy.kind = 'split': the most groups of ranks that are kept for split samples."""
    slowness: list[Annotated[float, Field(gt=0, le=1e6)]] | None = None
    """How many times each rank does its work, for experiments; 2.0: twice. Below 1 in simulated runs alone."""
    timeline: bool = False
    """Note when each micro-batch and each message of gradients began and ended."""
    calibration: Text | None = None
    """Simulated: JSON of `ddpsched calibrate`, in place of alpha_s, beta_s and gamma_s."""
    network: Text | None = None
    """Simulated: JSON of `ddpsched calibrate --network`, in place of gradient_bytes and the two after it."""
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

    @model_validator(mode="after")
    def _belong_together(self) -> "ExecutorConfig":
        fields = type(self).model_fields
        for path, names in (
            ("calibration", ("alpha_s", "beta_s", "gamma_s")),
            ("network", ("gradient_bytes", "bandwidth_bytes_per_s", "latency_s")),
        ):
            changed = [name for name in names if getattr(self, name) != fields[name].default]
            if getattr(self, path) is not None and changed:
                fault = f"{path} = {getattr(self, path)!r} and {changed[0]} = {getattr(self, changed[0])!r}"
                raise ValueError(f"{fault} both tell what takes how long; leave out one of the two")
        return self


class LogConfig(Table):
    """[log]: where a run's numbers are sent as it goes, beside its records."""

    sinks: list[Literal["tensorboard", "wandb", "trackio"]] = []  # noqa: RUF012  (pydantic copies it)
    """Receivers of each step's numbers, from rank 0."""

    @field_validator("sinks", mode="before")
    @classmethod
    def _is_a_list(cls, value: Any) -> Any:
        if isinstance(value, str):
            raise ValueError(f"{value!r} is no list; give one of 'tensorboard', 'wandb' or 'trackio', as [\"wandb\"]")
        return value

    @field_validator("sinks")
    @classmethod
    def _are_named_once(cls, value: list[str]) -> list[str]:
        if len(set(value)) < len(value):
            raise ValueError(f"{value} names a sink twice; leave one out")
        return value


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
