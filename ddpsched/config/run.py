"""A run as one value, and the checks between its tables."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from pydantic import field_validator, model_validator

from ddpsched.config.tables import (
    CompileConfig,
    ExecutorConfig,
    LogConfig,
    LrConfig,
    ModelConfig,
    SyncConfig,
    TrainConfig,
)
from ddpsched.costs.config import CostConfig, MemoryConfig, caps_of, cost_model
from ddpsched.costs.cost_model import CostModel
from ddpsched.costs.shape_menu import Shape, on_menu
from ddpsched.data.config import DataConfig
from ddpsched.data.lengths import Lengths
from ddpsched.denominators import BY_GROUP
from ddpsched.orders.config import OrderConfig
from ddpsched.orders.epoch_order import Order
from ddpsched.planning.plan_spec import PlanSpec
from ddpsched.planning.policies import AnyPolicy
from ddpsched.planning.policies.minmax import Minmax
from ddpsched.planning.policy import Setting
from ddpsched.planning.shapes.choose import NO_MENU, Menu, check_menu
from ddpsched.planning.shapes.cover import cover, covering_order
from ddpsched.planning.shapes.kept import kept_shapes
from ddpsched.table import (
    BatchSize,
    FolderName,
    Positive,
    Ranks,
    Seed,
    Table,
    Text,
)

if TYPE_CHECKING:
    from ddpsched.data.samples import Samples


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
    compile: CompileConfig = CompileConfig()
    executor: ExecutorConfig = ExecutorConfig()
    train: TrainConfig = TrainConfig()
    memory: MemoryConfig = MemoryConfig()
    log: LogConfig = LogConfig()

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
        if self.policy.splits:
            for name, value in (
                ("executor.slowness", slowness), ("sync.kind = 'fsdp'", self.sync.kind == "fsdp"),
                ("data.within_documents", self.data.within_documents),
            ):  # fmt: skip
                if value:
                    fault = "policy.kind = 'split' runs parts of a sample on ranks that wait for each other, without"
                    raise ValueError(f"{fault} {name}; leave that out, or use policy.kind = 'packed'")
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
        if slowness is not None and not simulated and min(slowness) < 1:
            raise ValueError(
                f"executor.slowness = {slowness}: a rank of executor.kind = {self.executor.kind!r} repeats work, which "
                "makes it slower alone; give numbers of at least 1"
            )
        if self.sync.reshard and self.policy.most_microbatches > 1 and not self.policy.in_lockstep:
            fault = f"policy.kind = {self.policy.kind!r} with {self.policy.most_microbatches} micro-batches a rank"
            has = any(name == "lockstep" for name in type(self.policy).model_fields)
            remedy = "set policy.lockstep = true" if has else "use 'packed' or 'balanced' with lockstep = true"
            if self.policy.kind == "auto":
                remedy = "set policy.max_microbatches = 1"
            raise ValueError(f"sync.reshard = true needs as many on each rank, and {fault} may differ; {remedy}")
        if self.policy.kind == "auto" and slowness:
            fault = "policy.kind = 'auto' measures ranks as they are, and executor.slowness makes them slower"
            raise ValueError(f"{fault}; name a policy, or leave executor.slowness out")
        if self.sync.kind == "fsdp" and (slowness or self.memory.probe or self.memory.path):
            fault = "executor.slowness and memory run the model outside a step, but sync.kind = 'fsdp' shards it"
            raise ValueError(f"{fault}; use 'bucketed' or 'ddp'")
        return self

    @model_validator(mode="after")
    def _can_be_compiled(self) -> "RunConfig":
        kind = self.compile.kind
        if kind == "eager":
            return self
        given = f"compile.kind = {kind!r}"
        if self.executor.kind == "simulated" and kind == "dynamic":
            raise ValueError(f"{given} changes nothing in a simulated run, which has no model; leave it out")
        if self.policy.packs or self.data.within_documents:
            who = f"policy.kind = {self.policy.kind!r}" if self.policy.packs else "data.within_documents"
            fault = f"makes programs for padded micro-batches, and {who} joins samples to rows of any length"
            raise ValueError(f"{given} {fault}; use 'eager', or policy.kind = 'balanced'")
        if self.sync.kind == "fsdp":
            raise ValueError(f"{given} is not tried with sync.kind = 'fsdp'; use 'ddp' or 'bucketed'")
        if self.executor.slowness:
            raise ValueError(f"{given} compiles no repeated work of executor.slowness; leave out one of the two")
        mode = self.compile.mode
        if self.executor.kind == "distributed" and mode in ("reduce-overhead", "max-autotune"):
            fault = f"compile.mode = {mode!r} records CUDA graphs, of which messages between ranks cannot be part"
            raise ValueError(f"{fault}; use 'max-autotune-no-cudagraphs' on several ranks")
        if kind == "dynamic":
            return self
        for name, value in (
            ("memory", self.memory.path or self.memory.probe), ("cost.online", self.cost.online),
            ("policy.lockstep", self.policy.in_lockstep),
        ):  # fmt: skip
            if value:
                fault = f"plans on a menu of shapes, which {name} has no part in"
                raise ValueError(f"{given} {fault}; leave out one of the two")
        if self.compile.live is not None and not self.order.sorts:
            fault = f"compile.live = {self.compile.live} makes programs anew when steps need others"
            remedy = (
                f"order.kind = {self.order.kind!r} needs all of them at any time; use 'curriculum', or leave it out"
            )
            raise ValueError(f"{fault}, and {remedy}")
        if self.data.lengths == "online" and self.compile.menu is None:
            raise ValueError(f"{given} chooses its menu by all lengths; use data.lengths = 'known', or compile.menu")
        if self.compile.cover == "order":
            fault = ""
            if self.policy.takes != "batches" or self.policy.batches_at_once > 1:
                fault = f"policy.kind = {self.policy.kind!r} makes each step from what came before"
            elif self.data.lengths == "online" or self.order.sorts:
                fault = "an order that sorts, or lengths that are found online, cannot be arranged"
            if fault:
                raise ValueError(f"compile.cover = 'order' moves whole batches, but {fault}; use cover = 'warm_up'")
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

    def menu(self, lengths: Lengths, goes_on: bool = False, batch_ranks: int | None = None) -> Menu:
        """Return the menu of shapes that micro-batches are filled up to, and what runs before a step.

        ``lengths``: of all training samples. ``goes_on``: after some of the steps, in another process; then all are.
        ``batch_ranks``: as of :meth:`plan_spec`. Raises ConfigError where the policy plans on no menu.
        """
        spec = self.plan_spec(batch_ranks=batch_ranks)
        shapes = self.shapes_of(spec, lengths)
        if not shapes:
            return NO_MENU
        if self.compile.cover == "warm_up":
            return Menu(shapes, shapes)
        begun = replace(spec, world_size=spec.ranks_of_batch, batch_ranks=None)
        first = shapes if begun.world_size == self.world_size else self.shapes_of(begun, lengths)
        if goes_on:
            return Menu(shapes, shapes, cover=first)
        found = cover(begun, lengths, begun.epoch_order(lengths, 0), first)
        missed = [each for each in shapes if not all((rank, each) in found.met for rank in range(self.world_size))]
        return Menu(shapes, tuple(missed), found.steps, first)

    def shapes_of(self, spec: PlanSpec, lengths: Lengths) -> tuple[Shape, ...]:
        """Return the shapes of a menu for plans of ``spec``; () where models are not compiled for one."""
        if self.compile.kind != "static":
            return ()
        if self.compile.menu is not None:
            shapes = tuple((rows, length) for rows, length in self.compile.menu)
            if self.data.lengths == "known":
                check_menu(spec, shapes, lengths.lengths(np.arange(len(lengths))))
            return shapes
        return kept_shapes(spec, lengths, self.compile.shapes)

    def cost_on(self, shapes: Sequence[Shape]) -> CostModel:
        """Return the cost that plans rest on, of a menu of shapes where there is one."""
        cost = cost_model(self.cost)
        return on_menu(cost, shapes) if shapes else cost

    def plan_spec(
        self, allowed: Sequence[int] | None = None, batch_ranks: int | None = None, menu: Menu = NO_MENU
    ) -> PlanSpec:
        """Return the arguments of planning; a fitted cost, a calibration and an order are read from their files here.

        ``allowed``: each rank's memory limit, in bytes where ``memory.path`` names a calibration, else in samples of
        ``data.max_length``; None for no limit. ``batch_ranks``: of a run that goes on with another world size, the one
        it began with. ``menu``: of :meth:`menu`. Raises ConfigError or DataError for files that cannot be read.
        """
        return PlanSpec(
            world_size=self.world_size,
            global_batch=self.global_batch,
            policy=self.policy,
            seed=self.seed,
            epochs=self.epochs,
            steps=self.steps,
            order=Order.of(self.order),
            cost=self.cost_on(menu.shapes),
            caps=None if allowed is None else caps_of(self.memory, allowed, self.data.max_length),
            max_length=self.data.max_length,
            pad_to=self.data.max_length if self.data.pad_to == "max_length" else 0,
            refined=self.cost.online,
            lengths_known=self.data.lengths == "known",
            batch_ranks=batch_ranks,
            arrange=partial(covering_order, menu.cover) if menu.cover else None,
        )

    def load_samples(self) -> "Samples":
        """Load and tokenise the data; see :func:`ddpsched.data.samples.load_samples`."""
        from ddpsched.data.samples import load_samples

        return load_samples(
            self.data, seed=self.seed, task=self.model.task, model=self.model.name, order_path=self.order.path
        )
