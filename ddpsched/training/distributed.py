"""This process is one rank of many, started by torchrun."""

import logging
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import asdict, replace
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np
import torch.distributed as dist

from ddpsched.config import RunConfig
from ddpsched.costs.memory_cap import UNLIMITED
from ddpsched.data.samples import Samples
from ddpsched.errors import ConfigError, PlanMismatch, RankFailure
from ddpsched.exchange import Flag, differing, verdict, vote_row
from ddpsched.heartbeat import Heartbeat
from ddpsched.plan_difference import difference
from ddpsched.planning.record_columns import largest_need, plan_columns
from ddpsched.planning.shapes.choose import Menu
from ddpsched.records import StepRecord
from ddpsched.step_plan import StepPlan
from ddpsched.training.calibrate import allowance, check_calibrations
from ddpsched.training.clock import StepClock, pick_device
from ddpsched.training.group_exchange import GroupExchange, start_group
from ddpsched.training.learner import Evaluation, Learner, step_seed
from ddpsched.training.loss import Counts
from ddpsched.training.meeting import wait_for_all
from ddpsched.training.out_of_memory import flag_of
from ddpsched.training.part_groups import PartGroups
from ddpsched.training.rank_step import RankStep
from ddpsched.training.state import Snapshot
from ddpsched.world import World

log = logging.getLogger("ddpsched")


class DistributedExecutor:
    """An executor of one rank. Gradients are added over ranks, so losses are scaled for sums.

    A step has three parts: forward and backward of this rank's micro-batches; the vote;
    clipping and the optimizer, the same on every rank. In the first, all ranks' counts
    are added up (N is needed before the first backward), and another thread exchanges
    the next step's offers.
    """

    def __init__(self, config: RunConfig, samples: Samples, world: World, force: bool = False) -> None:
        self._config, self._lengths, self._world = config, samples.train, world
        self._slowness = (config.executor.slowness or [1.0] * world.size)[world.rank]
        device = pick_device(config, world.local_rank)
        self._owns_group = not dist.is_initialized()  # several runs of one process share the group
        if self._owns_group:
            wait_for_all("read its data")
            start_group(device, world, config.executor.timeout_s)
        with ExitStack() as stack:
            stack.callback(self.close)
            self.exchange = GroupExchange(world, config.executor.timeout_s)
            self.clock_offsets = self.exchange.clock_offsets()
            self.learner = Learner(config, samples, device, synchronised=True)
            check_calibrations(config, self.learner, force)
            # after the synchroniser has taken its buffers, which are as large as the gradients
            gradients = sum(p.numel() * p.element_size() for p in self.learner.model.parameters() if p.requires_grad)
            allowed = allowance(self.learner, config, taken_bytes=gradients)
            wait_for_all("measured its memory")
            self.caps: list[int] | None = None
            if allowed is not None:
                self.caps = self.exchange.vote(np.array([[allowed]], dtype=np.int64))[:, 0].tolist()
            stack.pop_all()  # close() leaves the group
        self.facts = {**self.learner.facts, "clocks": [asdict(clock) for clock in self.clock_offsets]}
        self.expect = self.learner.optimiser.schedule  # lets the learning rate fall over so many steps
        self.learner.forward = self.learner.sync.module
        self._step = 0
        self._groups = PartGroups(world.rank, config.executor.max_groups, config.executor.timeout_s)
        self._objection = Flag.OK  # raised between steps, for the next vote
        self._zero_s: float | None = None  # when the first step began on rank 0, by this host's clock
        self.timeline: dict[str, Any] | None = None  # of the last step
        self.cap, self.needs = UNLIMITED, [0] * world.size
        self._heart: Heartbeat | None = None

    def use(self, config: RunConfig, menu: Menu) -> None:
        """Take the policy and the cost of this config, and a menu of shapes; compile the model, as all ranks do."""
        self._config = config
        self.facts |= self.learner.use(config, menu)
        if config.compile.kind != "eager":
            self._note_failed(self.facts["compile"])

    def _note_failed(self, made: dict[str, Any]) -> None:
        """Note on which ranks the compiler failed: they run eagerly, and the others wait for them in each step."""
        failed = np.flatnonzero(self.exchange.vote(np.array([["failed" in made]], dtype=np.int64))[:, 0]).tolist()
        if failed:
            made["failed_ranks"] = failed
        if failed and self._world.is_main and 0 not in failed:
            log.warning("compile: the compiler failed on ranks %s, which run eagerly; their logs say why", failed)

    @property
    def packs(self) -> bool:
        """Whether the model runs packed rows."""
        return self.learner.packs

    def beat_into(self, heart: Heartbeat) -> None:
        """Write from now on in which phase of a step this rank is."""
        self._heart = heart
        self.learner.beat = self._beat
        self.learner.sync.log.on_launch = heart.collective

    def _beat(self, phase: str) -> None:
        if self._heart is not None:
            self._heart.beat(phase, self._step)

    def object(self, flag: Flag) -> bool:
        """Vote with ``flag`` in the next step; return True, as the other ranks will know."""
        self._objection |= flag
        return True

    def execute(self, plan: StepPlan) -> list[StepRecord]:
        """Run this rank's share of the step; return its one record.

        Raises on every rank alike: StepOutOfMemory, NonFiniteError or the error of a rank that fails, once all have
        voted; then no weights were changed.
        """
        self._step = plan.step
        self.learner.prepare(plan)
        if plan.parts:
            self.learner.shares = self._groups.shares(plan, self.learner.device, self.learner.sync.log)
        meetings = meetings_of(plan) if self.learner.sync.meets else 0
        begin, started = perf_counter(), StepClock()
        rank, denominator = self._world.rank, self.learner.denominator
        counts = self.learner.counts(plan.ranks[rank])
        summed = self.exchange.sum_batch(denominator.step_counts(plan, counts, plan.rank_ids(rank)))
        denominator.begin(plan, summed.wait)
        self.learner.begin_step()
        self._beat("forward")
        step, error = self._run(plan, rank, denominator.scale, meetings)
        flag = flag_of(error) if error is not None else self.learner.objection(step) if step else Flag.OK
        self._beat("vote")
        vote_begin = perf_counter()
        total = Counts(*summed.wait()[:3])
        columns = plan_columns(self._config.labels, plan, rank, self._lengths, self.learner.cost)
        self._vote(plan, columns, self._objection | flag, error)
        vote_s = perf_counter() - vote_begin
        assert step is not None
        assert total.samples == plan.global_batch, f"step {plan.step}: B = {plan.global_batch}, ranks sum to {total}"
        self._beat("optimizer")
        update = self.learner.update(plan.step, total)
        clock = self.learner.clock
        measured = step.columns(clock, denominator.count(counts)) | {"num_targets": self.learner.label_tokens(counts)}
        times: dict[str, Any] = {"wait_s": clock.seconds(step.ready, step.done), "vote_s": vote_s}
        times["step_s"] = perf_counter() - begin + (plan.times.wait_s or 0.0)
        if self._zero_s is None:
            self._zero_s = self.exchange.from_rank_0(begin) - self.clock_offsets[rank].offset_s
        if self._config.executor.timeline:
            self.timeline = {"step": plan.step, **step.times(clock, self._zero_s)}
        began_at_s = clock.host_s(step.begin) - self._zero_s
        self._beat("records")
        return [StepRecord(**columns, **measured, **update, **times, **started.columns(), began_at_s=began_at_s)]

    @property
    def repeats(self) -> bool:
        """Whether a step that broke off can be run again: its ranks have to have joined all its collectives."""
        return self.learner.sync.joins

    def recover(self) -> None:
        """Make ready for the repetition of a step that broke off; all ranks call it."""
        self.learner.forward = self.learner.model  # a synchroniser may have to be rid of its module first
        self.learner.forget_step()
        self.learner.forward = self.learner.sync.module

    def _run(
        self, plan: StepPlan, rank: int, scale: Callable[[], float], meetings: int
    ) -> tuple[RankStep | None, Exception | None]:
        """Run the step; return it, or the error that broke it off after joining the other ranks' collectives."""
        try:
            seed = step_seed(self._config.seed, plan.step, rank)
            return self.learner.run(plan.ranks[rank], scale, seed, self._slowness, meetings), None
        except Exception as error:
            # the ranks that have the other parts of a sample wait within it, and nobody can stand in for this one
            if _lost_connection(error) or not self.learner.sync.joins or plan.parts:
                raise
            broken_by = error
        self.learner.optimiser.clear()
        self.learner.sync.join()
        return None, broken_by

    def _vote(self, plan: StepPlan, columns: dict[str, Any], flag: Flag, error: Exception | None) -> None:
        """Vote, and raise what the votes of all ranks demand; ``error``: what broke this rank's step off."""
        need = largest_need(self.cap, plan, self._world.rank, self._lengths)
        row = vote_row(plan.step, plan.digest, flag, columns["num_samples"], columns["max_length"], need)
        table = self.exchange.vote(row[None])
        self.needs = table[:, 6].tolist()
        objection = verdict(table)
        if isinstance(objection, PlanMismatch) and differing(table):
            raise PlanMismatch(f"{objection}\n{difference(plan, table, self.exchange)}")
        if isinstance(objection, RankFailure) and error is not None:
            raise error
        if objection is not None:
            raise objection from error

    def evaluate(self) -> Evaluation | None:
        """Evaluate this rank's share of the dev split; return sums over all ranks, None without a dev split."""
        share = self.learner.evaluate(self._world.rank, self._world.size)
        if share is None:
            return None
        sums = {key: value for key, value in asdict(share).items() if key != "majority" and value is not None}
        return replace(share, **{key: self.exchange.total(value) for key, value in sums.items()})

    def snapshot(self) -> Snapshot:
        """Return the copies that a checkpoint is written from."""
        return self.learner.snapshot()

    def restore(self, folder: Path) -> None:
        """Go on with the weights and moments of a checkpoint, as all ranks do."""
        self.learner.restore(folder)

    def save_model(self, path: Path) -> None:
        """Write the model and its tokenizer as a folder for ``from_pretrained``, on rank 0; all ranks call it."""
        self.learner.save_model(path, writes=self._world.is_main)

    def close(self) -> None:
        """Leave the process group, if this executor joined it."""
        if self._owns_group:
            dist.destroy_process_group()


def meetings_of(plan: StepPlan) -> int:
    """Return how many micro-batches all ranks run together.

    Ranks may have fewer where samples are too few, as in an epoch's last step. Raises ConfigError, on all ranks alike,
    where a plan has other numbers for them.
    """
    counts = [len(rank) for rank in plan.ranks]
    most = max(counts)
    if most > 1 and min(counts) < most and plan.global_batch >= most * plan.world_size:
        raise ConfigError(
            f"step {plan.step}: rank {counts.index(min(counts))} has {min(counts)} micro-batches and rank "
            f"{counts.index(most)} has {most}, but with sync.reshard = true ranks run each together, and would wait "
            "for ever; set policy.lockstep = true, or sync.reshard = false"
        )
    return most


def _lost_connection(error: Exception) -> bool:
    """Return whether a collective failed: then no ranks are left to join."""
    words = ("Connection closed", "Connection reset", "Broken pipe", "Timed out", "timed out", "gloo", "NCCL")
    return isinstance(error, RuntimeError) and any(word in str(error) for word in words)
