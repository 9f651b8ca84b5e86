"""Model, data and optimizer on one device, which both executors use, and a rank's share of a step on them."""

import logging
import math
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import replace
from functools import partial
from itertools import pairwise
from pathlib import Path
from time import process_time
from typing import Any

import numpy as np
import torch
from torch.func import functional_call

from ddpsched.config import RunConfig
from ddpsched.costs.cost_model import CostModel
from ddpsched.data.samples import Samples
from ddpsched.errors import ConfigError
from ddpsched.exchange import Flag
from ddpsched.parts import Part
from ddpsched.planning.policies.auto import Auto
from ddpsched.planning.shapes.choose import NO_MENU, Menu
from ddpsched.step_plan import NO_IDS, Ids, Microbatch, StepPlan
from ddpsched.training.attention import leave_cudnn_attention
from ddpsched.training.clock import Clock, PeakMemory, return_freed_memory
from ddpsched.training.collate import Batch, Collator, without_trace
from ddpsched.training.compiled import Programs, run_eagerly, uncompile
from ddpsched.training.denominator import Denominator
from ddpsched.training.evaluate import Evaluation, evaluate
from ddpsched.training.loss import Counts, loss_sum
from ddpsched.training.masks import enable_mask
from ddpsched.training.meeting import wait_for_all
from ddpsched.training.model import build_model, num_positions
from ddpsched.training.optimise import Optimiser
from ddpsched.training.packed import can_pack, enable_packing
from ddpsched.training.part_rows import Gather
from ddpsched.training.rank_step import RankStep, repeats
from ddpsched.training.save import save_pretrained
from ddpsched.training.split import enable_splitting
from ddpsched.training.state import Snapshot, restore
from ddpsched.training.sync import SYNCS
from ddpsched.training.sync.synchroniser import Synchroniser

log = logging.getLogger("ddpsched")
NO_STEP = -1
STATISTICS = ("running_mean", "running_var", "num_batches_tracked")  # buffers that forward changes in training


def step_seed(seed: int, step: int, rank: int) -> int:
    """Return the seed of a rank's dropout in a step, the same in every executor."""
    return int(np.random.SeedSequence([seed, step, rank]).generate_state(1)[0])


class Learner:
    """The seeded model in the precision asked for, with all that steps and evaluation need.

    ``synchronised``: this process is one rank of many, and ``sync`` adds up their gradients. ``forward``: what
    micro-batches run through, the model; a rank of many sets it to ``sync.module`` before its first step. ``autocast``:
    the dtype of mixed precision, or None for the model's dtype.
    """

    def __init__(self, config: RunConfig, samples: Samples, device: torch.device, synchronised: bool = False) -> None:
        torch.set_num_threads(config.executor.threads)
        torch.manual_seed(config.seed)
        model = build_model(config.model, config.data.num_labels, samples.vocab_size, samples.pad_id)
        default = "bfloat16" if device.type == "cuda" else "float32"
        precision = default if config.train.precision == "auto" else config.train.precision
        longest = num_positions(model)
        if longest is not None and config.data.max_length > longest:
            raise ConfigError(
                f"data.max_length = {config.data.max_length}, but {config.model.name!r} has {longest} positions; lower "
                "data.max_length, or take a model with more"
            )
        self.packs = config.policy.packs or config.data.within_documents
        if self.packs:
            enable_packing(model, config.model.name, config.data.max_length, config.model.packed_attention)
            if config.policy.splits:
                enable_splitting(model, config.model.name, config.data.max_length)
        elif isinstance(config.policy, Auto) and config.policy.packed:
            self.packs = can_pack(model, config.data.max_length, config.model.packed_attention)
        enable_mask(model, config.model.name, config.model.mask, config.data.max_length)
        leave_cudnn_attention(device)
        self.device, self.clock = device, Clock(device)
        dtype = torch.float64 if precision == "float64" else torch.float32
        self.model: torch.nn.Module = model.to(device, dtype).train()
        self.autocast: Any = torch.bfloat16 if precision == "bfloat16" else None
        if synchronised:
            wait_for_all("built its model")
        kind = SYNCS[config.sync.kind] if synchronised else Synchroniser
        self.sync = kind(self.model, self.clock, config.sync)
        self.forward: Any = self.model
        self._statistics = [b for name, b in model.named_buffers() if name.rpartition(".")[2] in STATISTICS]
        self._before: list[torch.Tensor] = []  # these, at the step's start
        # of split samples by id: the parts that run here, and how they meet the others
        self.shares: dict[int, tuple[Sequence[Part], Gather]] = {}
        self.beat: Callable[[str], object] = lambda phase: None  # called as a phase of a step begins
        self._memory = PeakMemory(device)
        self.optimiser = Optimiser(self.model, config.train, 1, config.lr, config.global_batch)
        self._samples, self._config = samples, config
        labels = samples.dataset.train.labels
        self.denominator = Denominator(config, samples)
        weigh = self.denominator.weigh if self.denominator.weighs else None
        self._as_they_come = self._cost = config.cost_on(())
        self._step, self._broken = NO_STEP, NO_STEP
        self.collate = Collator(samples.train, labels, samples.pad_id, device, config.model.mask, weigh)
        self._programs = Programs(config.compile, NO_MENU)
        self.num_parameters = sum(p.numel() for p in self.model.parameters())
        # entries of environment.json; a CPU's name is in it already
        name = torch.cuda.get_device_name(device) if device.type == "cuda" else None
        self.facts: dict[str, Any] = {"device": name, "num_parameters": self.num_parameters}

    def loss_sum(self, batch: Batch) -> torch.Tensor:
        """Run forward and return the summed loss of a micro-batch."""
        with run_eagerly(self.model) if self._is_repetition else nullcontext():
            return self._loss_sum(self.forward, batch)

    @property
    def cost(self) -> CostModel:
        """The cost on the menu of shapes; in a step that is repeated, whose micro-batches run as they come, without."""
        return self._as_they_come if self._is_repetition else self._cost

    @property
    def _is_repetition(self) -> bool:
        """Whether this step broke off before: filled up to the menu, its halves would need as much memory again."""
        return self._step == self._broken != NO_STEP

    def _loss_sum(self, forward: Callable[..., Any], batch: Batch) -> torch.Tensor:
        with torch.autocast(self.device.type, self.autocast, enabled=self.autocast is not None):
            logits = forward(**batch.inputs).logits
        return loss_sum(logits, batch.labels, batch.weights)

    def begin_step(self) -> None:
        """Keep what forward changes beside gradients, for ``forget_step``; call it before ``run``."""
        self._before = [buffer.clone() for buffer in self._statistics]
        self._programs.begin_step()

    def warm_up(self) -> None:
        """Run one synthetic forward and backward: first calls allocate and compile, which counts in no step."""
        self.loss_sum(self.collate.synthetic(2, 8)).backward()
        self.optimiser.clear()

    def use(self, config: RunConfig, menu: Menu) -> dict[str, Any]:
        """Take the policy and the cost of this config, and compile the model for its menu; all ranks call it together.

        Returns an entry for environment.json. Raises ConfigError for a model that rows of weight 0 would change.
        """
        self._config, self._cost = config, config.cost_on(menu.shapes)
        self.collate = replace(self.collate, shape=self.cost.shape)
        self._programs = Programs(config.compile, menu)
        uncompile(self.model)
        self.optimiser.keep_memory(config.compile.records_graphs)
        if self._config.compile.kind == "eager":
            return {}
        if self._statistics and self._config.compile.kind == "static":
            raise ConfigError(
                f"compile.kind = 'static' fills micro-batches up with rows of weight 0, which would count in the "
                f"running statistics of {type(self.model).__name__}; use compile.kind = 'dynamic'"
            )
        self.begin_step()
        facts = self._programs.make(self.model, self._try)
        self.undo()
        wait_for_all("compiled its model")
        return {"compile": facts}

    def _try(self, rows: int, length: int) -> None:
        self.beat("compile")
        with self.sync.trial():
            self.loss_sum(self.collate.synthetic(rows, length, int(min(rows, length) > 1))).backward()

    def prepare(self, plan: StepPlan) -> None:
        """Have the programs of this step's shapes, where only some may be there; all ranks call it together.

        A step that broke off runs again without programs, each micro-batch as long as its longest sample.
        """
        self._step = plan.step
        self.collate = replace(self.collate, shape=self.cost.shape)
        if self._is_repetition or not self._programs.are_few:
            return
        micros = [micro for rank in plan.ranks for micro in rank]
        needed = {self.cost.shape(len(micro), micro.padded_length(self.lengths(micro.ids))) for micro in micros}
        if self._programs.exchange(self.model, needed, plan.step, self._try):
            self.optimiser.clear()
            wait_for_all("compiled its model")

    def lengths(self, ids: Ids) -> Ids:
        """Return the tokens of these training samples, (n,)."""
        return self._samples.train.lengths(ids)

    def run(
        self, microbatches: Sequence[Microbatch], scale: Callable[[], float], seed: int, slowness: float = 1.0,
        meetings: int = 0,
    ) -> RankStep:  # fmt: skip
        """Add ``scale()`` times the gradient of the summed loss to the model's; return the rank's loss and times.

        ``scale`` is called after the first forward: it may have to wait, as label tokens
        are added up over ranks meanwhile. That wait is in the backward's time, as waits
        for other ranks are. With a synchroniser the last backward also starts the
        exchange of gradients; a rank without samples runs a synthetic one at weight 0
        where the synchroniser needs a backward.
        ``seed`` fixes dropout by step and rank, so that executors draw the same masks.
        ``slowness``: how many times as long this rank's work is to take, at least 1. ``meetings``: micro-batches that
        all ranks run together; what this rank lacks of them are synthetic ones, too.
        """
        torch.manual_seed(seed)
        if self._config.memory.path is not None and self.device.type == "cpu":  # plans keep to a memory budget
            return_freed_memory()
        self._memory.reset()
        sync = self.sync
        self._spans: dict[str, list[Any]] = {"data": [], "forward": [], "backward": []}
        losses: list[torch.Tensor] = []
        begin, cpu = self.clock.anchor(), process_time()
        count = max(len(microbatches), meetings, int(sync.needs_backward))
        for position, micro in enumerate(microbatches):
            with sync.synchronise() if position == count - 1 else sync.accumulate():
                # before the real work, as compute ends when its last gradient is ready
                for extra in repeats(len(micro), slowness):
                    self._run_without_effect(micro, extra)
                collate = partial(self.collate, micro.ids, micro.packed, micro.pad_to)
                if micro.part is not None:
                    collate = partial(self.collate.parts, int(micro.ids[0]), *self.shares[int(micro.ids[0])])
                self.beat("forward")
                losses.append(self._run_timed(collate, self.loss_sum, partial(self._backward, scale)))
        for position in range(len(microbatches), count):
            with without_trace(sync.module), sync.synchronise() if position == count - 1 else sync.accumulate():
                (self.loss_sum(self.collate.synthetic(1, 4)) * 0.0).backward()
        recompiled = self._programs.recompiled()  # before waiting: a rank that stops here still joins the others
        self.beat("gradients")
        sync.wait()
        done = self.clock.mark()
        cpu_s, peak = process_time() - cpu, self._memory.read()
        collectives, sent = sync.log.take()
        spans, barrier = self._spans, sync.barrier
        return RankStep(begin, sync.ready, done, losses, spans, cpu_s, peak, collectives, barrier, sent, recompiled)

    def _backward(self, scale: Callable[[], float], loss: torch.Tensor) -> None:
        self.beat("backward")
        (loss * scale()).backward()

    def _run_timed(self, collate: Callable[[], Batch], forward: Callable, backward: Callable) -> torch.Tensor:
        """Run the three on a micro-batch, each on what the one before returned, with marks; return the loss."""
        mark = self.clock.mark
        begin, batch = mark(), collate()
        collated, loss = mark(), forward(batch)
        forwarded, _ = mark(), backward(loss)
        marks = begin, collated, forwarded, mark()
        for span, pair in zip(self._spans.values(), pairwise(marks), strict=True):
            span.append(pair)
        return loss.detach()

    def _run_without_effect(self, micro: Microbatch, count: int) -> None:
        """Run ``count`` samples of a micro-batch without an effect on gradients, buffers or random numbers.

        ``torch.autograd.grad`` returns the gradients instead of adding them to the
        model's, so no hook of a synchroniser runs.
        """
        parameters = [p for p in self.model.parameters() if p.requires_grad]
        buffers = {name: buffer.clone() for name, buffer in self.model.named_buffers()}
        devices = [self.device] if self.device.type == "cuda" else []
        with torch.random.fork_rng(devices):  # dropout of the real work is drawn as if this had not been
            self._run_timed(
                lambda: self.collate(self.collate.some(micro.ids, count), micro.packed, micro.pad_to),
                partial(self._loss_sum, lambda **inputs: functional_call(self.model, buffers, kwargs=inputs)),
                partial(torch.autograd.grad, inputs=parameters, allow_unused=True),
            )

    def counts(self, micros: Sequence[Microbatch]) -> Counts:
        """Return how many samples, tokens and label tokens these micro-batches of one rank are."""
        train, is_lm = self._samples.train, self._config.model.task == "causal_lm"
        whole = np.concatenate([NO_IDS, *(micro.ids for micro in micros if micro.part is None)])
        tokens, targets = int(train.lengths(whole).sum()), int(train.num_targets(whole).sum()) if is_lm else 0
        for micro in micros:
            if micro.part is not None:
                tokens += micro.part.tokens
                targets += self.part_targets(int(micro.ids[0]), micro.part) if is_lm else 0
        return Counts(sum(len(micro.counted) for micro in micros), tokens, targets)

    def part_targets(self, id: int, part: Part) -> int:
        """Return the label tokens that a part predicts; of a classifier's sample 1 with its first token, else 0."""
        if self._config.model.task == "causal_lm":
            return self.collate.part_targets(id, part)
        return int(part.ranges[0][0] == 0)

    def gradient_norm(self) -> float:
        """Clip the gradient of the step; return its norm before that, which is not finite where the gradient is not."""
        begin = self.clock.mark()
        self._norm = float(self.optimiser.gradient_norm())
        self._norm_s = self.clock.seconds(begin, self.clock.mark())
        return self._norm

    def objection(self, step: RankStep) -> Flag:
        """Return the flag to vote with after a step: whose gradient is not finite, where the run has to stop for it."""
        if math.isfinite(self.gradient_norm()) or self._config.train.non_finite == "skip":
            return Flag.OK
        own = bool(torch.isfinite(step.loss_sum)) and step.is_own_gradient_finite
        return Flag.SUM_NON_FINITE if own else Flag.NON_FINITE

    def update(self, step: int, total: Counts) -> dict[str, Any]:
        """Apply the gradient that ``objection`` has clipped, or skip it where it is not finite.

        ``total``: over all ranks of the step. Returns columns of the record.
        """
        begin, norm, rate = self.clock.mark(), self._norm, None
        if math.isfinite(norm):
            rate = self.optimiser.step(total.tokens if self._config.lr.per == "tokens" else total.samples)
        else:
            log.warning("step %d: the gradient is NaN or infinite; skipped on all ranks", step)
            self.optimiser.skip()
        optimizer_s = self._norm_s + self.clock.seconds(begin, self.clock.mark())
        return {"optimizer_s": optimizer_s, "grad_norm": norm if math.isfinite(norm) else None, "lr": rate}

    def forget_step(self) -> None:
        """Drop all effects of a step that broke off, and make the synchroniser fit for its repetition."""
        self._broken = self._step
        self.undo()
        self.sync.renew()
        if self.device.type == "cuda":
            torch.cuda.empty_cache()

    @torch.no_grad()
    def undo(self) -> None:
        """Drop what was run since ``begin_step``: gradients, and what forward changed."""
        self.optimiser.clear()
        for buffer, before in zip(self._statistics, self._before, strict=True):
            buffer.copy_(before)

    def label_tokens(self, counts: Counts) -> int | None:
        """Return the label tokens for a record: None for a classifier, which has none."""
        return counts.targets if self._config.model.task == "causal_lm" else None

    def snapshot(self) -> Snapshot:
        """Return the copies of weights, buffers and moments that a checkpoint is written from."""
        return Snapshot(self.model, self.optimiser.torch_optimizer)

    def restore(self, folder: Path) -> None:
        """Go on with the weights and moments of a checkpoint. Raises DataError where they are of another model."""
        restore(self.model, self.optimiser.torch_optimizer, folder)

    def save_model(self, path: Path, writes: bool = True) -> None:
        """Write the model and its tokenizer as a folder for ``from_pretrained``; a rank of many calls it with others.

        ``writes``: whether this process writes it, or only gives its share.
        """
        save_pretrained(self.model, self._config.data, path, writes)

    def evaluate(self, rank: int = 0, size: int = 1) -> Evaluation | None:
        """Evaluate every ``size``-th dev sample from ``rank`` on; return None without a dev split."""
        return evaluate(self.model, self._samples, self._config.model.mask, self.device, rank, size)
