"""The whole of a run as one frozen value, read from TOML and ``key=value`` words.

``load("study.toml", ["seed=1", "policy.kind=minmax"])`` gives a ``RunConfig``.
An unknown key, a wrong type or a value out of range is a ``ConfigError`` that
names the key, what was given and what is allowed.
"""

import difflib
import tomllib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Annotated, Any, Literal, get_args

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from ddpsched.errors import ConfigError

Positive = Annotated[int, Field(gt=0)]
NonNegative = Annotated[float, Field(ge=0)]


class Table(BaseModel):
    """A frozen table of the config that knows every one of its keys."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, allow_inf_nan=False)


class DataConfig(Table):
    """Where the samples come from: a local ``path``, else a hub ``name``, else the embedded sentences.

    A path beside a name is the local copy of that data set, and is what is read.
    """

    path: str | None = None  # TSV, CSV, JSONL or Parquet file, or a folder of splits
    dev: str | None = None  # a file for evaluation; by default a dev or validation split beside path
    name: str | None = None  # data set on the hub, "nyu-mll/glue"
    subset: str | None = None  # "sst2"
    text: str = "sentence"
    label: str = "label"
    num_labels: Annotated[int, Field(ge=2)] = 2
    tokenizer: str | None = None  # folder or hub name; by default the model's, or the embedded one
    max_length: Annotated[int, Field(ge=3)] = 128
    lengths: Literal["known", "online"] = "known"
    size: Positive = 4096  # samples of the embedded set


class ModelConfig(Table):
    """Which sequence classifier, and how its weights begin."""

    name: str = "tiny"  # "tiny", a hub name, or a folder
    weights: Literal["pretrained", "random"] = "random"
    dropout: Annotated[float, Field(ge=0, lt=1)] | None = None  # None: the model's own


class OrderConfig(Table):
    """In which order an epoch visits the samples."""

    kind: Literal["shuffled", "sequential"] = "shuffled"


PACKED_PEERS = ("karmarkar_karp", "karmarkar_karp_equal", "verl", "verl_equal")


class PolicyConfig(Table):
    """Who runs what."""

    kind: Literal["static", "minmax", "balanced", "packed", "peer"] = "minmax"
    prefetch: Positive = 16  # minmax: K, samples in each rank's window
    solver: Literal["auto", "enumeration", "threshold", "ilp"] = "auto"  # of minmax
    max_microbatches: Positive = 1  # balanced: M, most micro-batches of a rank in a step; the cost chooses how many
    lookahead: Positive = 1  # balanced, packed: W, global batches planned at once; 1 keeps each as the order drew it
    peer: str | None = None  # another package's batching, named as in `ddpsched plan --peers`

    @property
    def packs(self) -> bool:
        """Whether its micro-batches may be rows without padding."""
        return self.kind == "packed" or self.peer in PACKED_PEERS

    @model_validator(mode="after")
    def _belong_together(self) -> "PolicyConfig":
        if (self.kind == "peer") != (self.peer is not None):
            raise ValueError(f"kind = {self.kind!r}, peer = {self.peer!r}: a peer is named for kind = 'peer' alone")
        if self.max_microbatches > 1 and self.kind not in ("balanced", "peer"):
            raise ValueError(f"max_microbatches belongs to kind = 'balanced', not {self.kind!r}")
        if self.lookahead > 1 and self.kind not in ("balanced", "packed"):
            raise ValueError(f"lookahead belongs to kind = 'balanced' or 'packed', not {self.kind!r}")
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
    cost: CostConfig = CostConfig()
    sync: SyncConfig = SyncConfig()
    executor: ExecutorConfig = ExecutorConfig()
    train: TrainConfig = TrainConfig()
    memory: MemoryConfig = MemoryConfig()

    @model_validator(mode="after")
    def _consistent(self) -> "RunConfig":
        if (self.steps is None) == (self.epochs is None):
            raise ValueError(f"steps = {self.steps}, epochs = {self.epochs}: give exactly one of the two")
        if self.global_batch < self.world_size:
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
        if self.data.lengths == "online" and self.policy.kind in ("balanced", "packed", "peer"):
            raise ValueError(
                f"policy.kind = {self.policy.kind!r} needs every length on every rank; "
                "use data.lengths = 'known', or policy.kind = 'minmax' with online lengths"
            )
        if self.cost.kind == "padded_tokens_squared" and (
            self.policy.kind == "packed" or self.policy.max_microbatches > 1
        ):
            raise ValueError(
                "cost.kind = 'padded_tokens_squared' does not add up over samples or micro-batches; "
                "use 'padded_tokens' (with gamma for attention), 'affine_quadratic' or 'calibrated'"
            )
        if self.cost.online and self.policy.kind in ("static", "peer"):
            raise ValueError(f"cost.online refines a cost, but policy.kind = {self.policy.kind!r} plans without one")
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
    def run_dir(self) -> Path:
        """``outputs/<study>/<name>``."""
        return Path(self.outputs) / self.study / self.name


def load(path: str | Path, overrides: Iterable[str] = ()) -> RunConfig:
    """Read a TOML file, apply ``key=value`` words, validate.

    Raises ConfigError for a missing or malformed file, an unknown key (with the
    nearest known one), a wrong type, or values that contradict each other.
    """
    return parse(apply_overrides(read_toml(path), overrides), source=str(path))


def read_toml(path: str | Path) -> dict[str, Any]:
    """The file as nested dicts; ConfigError where it is missing or malformed."""
    try:
        return tomllib.loads(Path(path).read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(f"config {path}: {error.strerror}; give the path of a TOML file") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"config {path}: not valid TOML: {error}") from None


def apply_overrides(values: Mapping[str, Any], overrides: Iterable[str]) -> dict[str, Any]:
    """A copy of ``values`` with each ``table.key=value`` set; value in TOML, or else plain text."""
    result: dict[str, Any] = {k: dict(v) if isinstance(v, dict) else v for k, v in values.items()}
    for word in overrides:
        key, equals, text = word.partition("=")
        if not equals or not key:
            raise ConfigError(f"{word!r}: overrides are written key=value, for example policy.kind=minmax")
        set_key(result, key.strip(), _toml_value(text.strip()))
    return result


def set_key(values: dict[str, Any], dotted: str, value: Any) -> None:
    """Set ``values["a"]["b"]`` for ``"a.b"``, making tables on the way."""
    *tables, last = dotted.split(".")
    for table in tables:
        values = values.setdefault(table, {})
        if not isinstance(values, dict):
            raise ConfigError(f"{dotted}: {table} is a value, not a table")
    values[last] = value


def _toml_value(text: str) -> Any:
    try:
        return tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        return text


def parse(values: Mapping[str, Any], source: str = "config") -> RunConfig:
    """Validate nested dicts into a ``RunConfig``; ConfigError lists every fault."""
    try:
        return RunConfig.model_validate(values)
    except ValidationError as error:
        faults = [_describe(fault) for fault in error.errors()]
        raise ConfigError("\n".join(f"{source}: {fault}" for fault in faults)) from None


def _describe(fault: Any) -> str:
    key = ".".join(str(part) for part in fault["loc"])
    if fault["type"] == "extra_forbidden":
        known = _known_keys(RunConfig)
        near = difflib.get_close_matches(key, known, n=1, cutoff=0.4)
        last = key.rpartition(".")[2]
        near = near or [k for k in known if k.rpartition(".")[2] == last]
        hint = f"; did you mean {near[0]}?" if near else f"; known keys: {', '.join(sorted(known))}"
        return f"unknown key {key}{hint}"
    message = fault["msg"].removeprefix("Value error, ")
    if fault["type"] == "value_error":
        return f"{key}: {message}" if key else message
    return f"{key} = {fault['input']!r}: {message[:1].lower()}{message[1:]}"


def _known_keys(table: type[BaseModel], prefix: str = "") -> list[str]:
    keys: list[str] = []
    for name, field in table.model_fields.items():
        kinds = [k for k in (field.annotation, *get_args(field.annotation)) if isinstance(k, type)]
        inner = next((k for k in kinds if issubclass(k, Table)), None)
        keys += [prefix + name] + (_known_keys(inner, f"{prefix}{name}.") if inner else [])
    return keys


def dump(config: RunConfig) -> str:
    """The config as TOML, every key resolved, unset ones left out."""
    import tomli_w

    return tomli_w.dumps(config.model_dump(exclude_none=True))
