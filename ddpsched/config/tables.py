"""[model], [lr], [sync], [executor] and [train]: the tables that training reads."""

from typing import Annotated, Literal

from pydantic import Field, model_validator

from ddpsched.table import NonNegative, Positive, Table


class ModelConfig(Table):
    """[model]: the model that is trained, and how its weights begin."""

    task: Literal["classification", "causal_lm"] = "classification"
    name: str = "tiny"  # "tiny", a hub name, or a folder
    weights: Literal["pretrained", "random"] = "random"
    dropout: Annotated[float, Field(ge=0, lt=1)] | None = None  # None: the model's default
    # the attention mask, which hides padding: (B, T) of tokens, (B, T, T) of pairs, or one causal (T, T) for all
    mask: Literal["key_padding", "per_sample", "shared"] = "key_padding"

    @model_validator(mode="after")
    def _belong_together(self) -> "ModelConfig":
        if self.mask == "shared" and self.task != "causal_lm":
            fault = "mask = 'shared' hides padding only where tokens look to the left, as in task = 'causal_lm'"
            raise ValueError(f"{fault}; use 'key_padding' or 'per_sample'")
        return self


class LrConfig(Table):
    """[lr]: how the learning rate follows the size of a step whose global batch varies."""

    kind: Literal["fixed", "linear", "sqrt"] = "fixed"  # times size / reference, or its root
    per: Literal["samples", "tokens"] = "samples"  # what the size of a step counts
    reference: Positive | None = None  # the size that train.learning_rate is meant for; samples: global_batch

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
    bucket_mb: Annotated[float, Field(gt=0)] = 25.0  # bucketed, ddp: MiB of gradients in one message
    precision: Literal["float32", "bfloat16", "float16"] = "float32"  # of gradients in messages; float64 ones keep it
    barrier: bool = False  # naive: a barrier comes first, so that waiting and moving gradients are timed apart

    @model_validator(mode="after")
    def _belong_together(self) -> "SyncConfig":
        if self.barrier and self.kind != "naive":
            raise ValueError(f"barrier belongs to kind = 'naive', not {self.kind!r}, whose messages travel in backward")
        return self


class ExecutorConfig(Table):
    """[executor]: the executor that runs the plans, and its device."""

    kind: Literal["distributed", "virtual", "simulated"] = "virtual"
    device: Literal["auto", "cpu", "cuda"] = "auto"
    threads: Positive = 1  # of each process; the same for every arm of a study
    timeout_s: Annotated[float, Field(gt=0)] = 60.0  # a rank silent for longer has failed
    slowness: list[Annotated[float, Field(ge=1)]] | None = None  # 2.0: a rank does its work twice, for experiments
    timeline: bool = False  # note when each micro-batch and each message of gradients began and ended
    # the simulated executor's clock: DistilBERT on one CPU core, and no network
    alpha_s: NonNegative = 0.09  # seconds per micro-batch
    beta_s: NonNegative = 2.6e-3  # seconds per padded token
    gamma_s: NonNegative = 0.0  # seconds per count * max_length**2
    gradient_bytes: NonNegative = 0.0  # of one all-reduce
    bandwidth_bytes_per_s: Annotated[float, Field(gt=0)] = 1e9
    latency_s: NonNegative = 0.0  # per message


class TrainConfig(Table):
    """[train]: the loss, the optimizer and evaluations."""

    # equal weights in the gradient for all samples, or for all label tokens (causal_lm)
    target: Literal["sample_mean", "token_mean"] | None = None  # None: token_mean for causal_lm, else sample_mean
    learning_rate: Annotated[float, Field(gt=0)] = 2e-5
    weight_decay: NonNegative = 0.01
    warmup: Annotated[float, Field(ge=0, le=1)] = 0.1  # share of all steps
    max_grad_norm: Annotated[float, Field(gt=0)] = 1.0
    precision: Literal["auto", "float32", "float64", "bfloat16"] = "auto"  # auto: bfloat16 autocast on CUDA
    non_finite: Literal["stop", "skip"] = "stop"  # on all ranks, at a gradient that is NaN or infinite
    eval_every: Annotated[int, Field(ge=0)] = 0  # steps; 0: once, after the last step
