"""The tables of a run beside its policy."""

from typing import Annotated, Literal

from pydantic import Field, model_validator

from ddpsched.config.base import NonNegative, Positive, Table


class DataConfig(Table):
    """Where the samples come from: a local ``path``, else a hub ``name``, else the embedded sentences.

    A path beside a name is the local copy of that data set, and is what is read.
    """

    path: str | None = None  # TSV, CSV, JSONL or Parquet file, or a folder of splits
    dev: str | None = None  # a file for evaluation; by default a dev or validation split beside path
    name: str | None = None  # data set on the hub, "nyu-mll/glue"
    subset: str | None = None  # "sst2"
    text: str = "sentence"  # the text to classify; for causal_lm what is learnt
    prompt: str | None = None  # causal_lm: a column that stands before the text and is not learnt, "question"
    label: str = "label"  # classification
    num_labels: Annotated[int, Field(ge=2)] = 2
    rows: Positive | None = None  # only the first so many rows of the training split
    held_out: Annotated[float, Field(ge=0, lt=1)] = 0.0  # share of the training rows evaluated on, without a dev split
    tokenizer: str | None = None  # folder or hub name; by default the model's, or the embedded one
    max_length: Annotated[int, Field(ge=3)] = 128
    lengths: Literal["known", "online"] = "known"
    size: Positive = 4096  # samples of the embedded set
    pad_to: Literal["longest", "max_length"] = "longest"  # static: of its micro-batch, or always to max_length
    # causal_lm: all documents joined, and cut into samples of max_length tokens
    concatenate: bool = False
    within_documents: bool = False  # concatenate: tokens attend to their own document alone

    @model_validator(mode="after")
    def _belong_together(self) -> "DataConfig":
        if self.within_documents and not self.concatenate:
            raise ValueError("within_documents says how joined documents attend; set concatenate = true with it")
        if self.concatenate and self.lengths == "online":
            raise ValueError("concatenate joins all documents before training; use lengths = 'known'")
        return self


class ModelConfig(Table):
    """What is trained, and how its weights begin."""

    task: Literal["classification", "causal_lm"] = "classification"
    name: str = "tiny"  # "tiny", a hub name, or a folder
    weights: Literal["pretrained", "random"] = "random"
    dropout: Annotated[float, Field(ge=0, lt=1)] | None = None  # None: the model's own
    # what keeps padding from being attended to: (B, T) of tokens, (B, T, T) of pairs, or one causal (T, T) for all
    mask: Literal["key_padding", "per_sample", "shared"] = "key_padding"

    @model_validator(mode="after")
    def _belong_together(self) -> "ModelConfig":
        if self.mask == "shared" and self.task != "causal_lm":
            raise ValueError(
                "mask = 'shared' leaves padding to the right unseen only where tokens look to the left, as in "
                "task = 'causal_lm'; use 'key_padding' or 'per_sample'"
            )
        return self


class OrderConfig(Table):
    """In which order an epoch visits the samples."""

    kind: Literal["shuffled", "sequential", "length_grouped", "curriculum", "curriculum_local"] = "shuffled"
    mega_batches: Positive = 50  # length_grouped: global batches sorted together, fewer where the data has fewer
    # curriculum, curriculum_local: a file of `ddpsched sort`, easiest first; None: by length
    path: str | None = None
    window: Positive = 1  # curriculum: so many neighbours of the order change places anew each epoch
    # curriculum: how the share of samples that is open grows, the easiest first; None: one after another
    pacing: Literal["linear", "root", "step"] | None = None
    start: Annotated[float, Field(gt=0, le=1)] = 0.1  # pacing: the share open at first
    over: Annotated[float, Field(gt=0, le=1)] = 0.5  # pacing: the share of the first epoch after which all is open
    stairs: Positive = 5  # pacing = "step": in how many the share rises

    @model_validator(mode="after")
    def _belong_together(self) -> "OrderConfig":
        if self.kind != "length_grouped" and self.mega_batches != 50:
            raise ValueError(f"mega_batches belongs to kind = 'length_grouped', not {self.kind!r}")
        if self.path is not None and not self.kind.startswith("curriculum"):
            raise ValueError(f"path, a file of `ddpsched sort`, belongs to kind = 'curriculum', not {self.kind!r}")
        changed = {key for key in ("window", "pacing", "start", "over", "stairs") if key in self.model_fields_set}
        changed -= {key for key in changed if getattr(self, key) == type(self).model_fields[key].default}
        if changed and self.kind != "curriculum":
            raise ValueError(f"{', '.join(sorted(changed))} belong to kind = 'curriculum', not {self.kind!r}")
        if self.pacing is None and changed & {"start", "over", "stairs"}:
            raise ValueError("start, over and stairs say how a share grows; name pacing = 'linear', 'root' or 'step'")
        if self.pacing is not None and self.window > 1:
            raise ValueError("pacing draws among all that is open; window reshuffles neighbours: give one of the two")
        if self.stairs != 5 and self.pacing != "step":
            raise ValueError(f"stairs belongs to pacing = 'step', not {self.pacing!r}")
        return self

    @property
    def sorts(self) -> bool:
        """Whether neighbours of the order are about as difficult, so that ranks are dealt them in turn."""
        return self.kind in ("curriculum", "curriculum_local")


class LrConfig(Table):
    """How the learning rate follows the size of a step whose global batch varies."""

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


class CostConfig(Table):
    """What a micro-batch costs, in the planner's eyes."""

    kind: Literal["padded_tokens", "padded_tokens_squared", "affine_quadratic", "calibrated"] = "padded_tokens"
    path: str | None = None  # JSON of a fit or a calibration; else alpha, beta and gamma
    # in seconds for affine_quadratic, in padded tokens for padded_tokens (whose beta is 1)
    alpha: NonNegative = 0.0  # per micro-batch
    beta: NonNegative = 0.0  # per padded token
    gamma: NonNegative = 0.0  # per count * max_length**2
    online: bool = False  # each rank's measured speed, offered step by step, scales its cost

    @model_validator(mode="after")
    def _has_numbers(self) -> "CostConfig":
        given = self.path or self.alpha or self.beta or self.gamma
        if self.kind == "calibrated" and (not self.path or self.alpha or self.beta or self.gamma):
            raise ValueError("calibrated needs path, a file that `ddpsched calibrate` wrote, and no other numbers")
        if self.kind == "affine_quadratic" and not given:
            raise ValueError("affine_quadratic needs path (a fit), or alpha, beta and gamma in seconds")
        if self.kind not in ("affine_quadratic", "calibrated") and (self.path or self.beta):
            raise ValueError(f"path and beta belong to kind = 'affine_quadratic', not {self.kind!r}")
        if self.online and self.kind not in ("affine_quadratic", "calibrated"):
            raise ValueError("online compares measured with predicted seconds; use kind = 'calibrated'")
        if self.kind == "padded_tokens_squared" and given:
            raise ValueError("alpha and gamma belong to kind = 'padded_tokens' or 'affine_quadratic'")
        return self


class SyncConfig(Table):
    """How gradients meet."""

    kind: Literal["naive", "overlap", "bucketed", "ddp", "fsdp"] = "ddp"
    bucket_mb: Annotated[float, Field(gt=0)] = 25.0  # bucketed, ddp: MiB of gradients in one message
    precision: Literal["float32", "bfloat16", "float16"] = (
        "float32"  # in which gradients travel; float64 ones in theirs
    )
    barrier: bool = False  # naive: ranks meet first, so that waiting and moving gradients are timed apart

    @model_validator(mode="after")
    def _belong_together(self) -> "SyncConfig":
        if self.barrier and self.kind != "naive":
            raise ValueError(f"barrier belongs to kind = 'naive', not {self.kind!r}, whose messages travel in backward")
        return self


class ExecutorConfig(Table):
    """What runs the plans, and on which device."""

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
    """The optimizer's side."""

    # what weighs the same in the gradient: each sample, or each token that is learnt (causal_lm)
    target: Literal["sample_mean", "token_mean"] | None = None  # None: token_mean for causal_lm, else sample_mean
    learning_rate: Annotated[float, Field(gt=0)] = 2e-5
    weight_decay: NonNegative = 0.01
    warmup: Annotated[float, Field(ge=0, le=1)] = 0.1  # share of all steps
    max_grad_norm: Annotated[float, Field(gt=0)] = 1.0
    precision: Literal["auto", "float32", "float64", "bfloat16"] = "auto"  # auto: bfloat16 autocast on CUDA
    non_finite: Literal["stop", "skip"] = "stop"  # what all ranks do with a gradient that is NaN or infinite
    eval_every: Annotated[int, Field(ge=0)] = 0  # steps; 0: once, after the last step


class MemoryConfig(Table):
    """What caps a rank's micro-batches: a calibrated model of (count, longest), or a probe at start-up."""

    path: str | None = None  # a calibration, whose memory model says what a micro-batch needs
    probe: bool = False  # else: measure how many samples of data.max_length fit
    budget_bytes: Annotated[int, Field(gt=0, le=2**60)] | None = (
        None  # of each rank; CPU: must be given; CUDA: 90 % of the device by default
    )

    @model_validator(mode="after")
    def _somebody_uses_it(self) -> "MemoryConfig":
        if self.path and self.probe:
            raise ValueError("path and probe = true both cap a micro-batch; give one of the two")
        if self.budget_bytes and not (self.probe or self.path):
            raise ValueError("budget_bytes is given but nothing uses it; set probe = true, or path to a calibration")
        return self
