"""This process is one rank of many, started by torchrun."""

import logging
import math
from collections.abc import Callable
from dataclasses import asdict
from datetime import timedelta
from time import perf_counter
from typing import Any

import numpy as np
import torch
import torch.distributed as dist

from ddpsched.config import RunConfig
from ddpsched.data.samples import Samples
from ddpsched.errors import NonFiniteError, RankFailure
from ddpsched.exchange import Flag, verdict, vote_row
from ddpsched.plan import StepPlan
from ddpsched.planning.record_columns import plan_columns
from ddpsched.records import StepRecord
from ddpsched.training.calibrate import check_calibrations
from ddpsched.training.group_exchange import GroupExchange
from ddpsched.training.learner import Evaluation, Learner, pick_device, step_seed
from ddpsched.training.loss import Counts, sum_scale
from ddpsched.training.out_of_memory import flag_of
from ddpsched.training.probe import allowance
from ddpsched.training.rank_step import RankStep
from ddpsched.world import World

log = logging.getLogger("ddpsched")


class DistributedExecutor:
    """Gradients are added over ranks, so each summed loss is scaled by 1/B, or by 1/N of the step's label tokens.

    A step: forward and backward of this rank's micro-batches while the sum of all
    ranks' counts (for 1/N it has to be there before the first backward) and, in another
    thread, the next step's offers travel; then the vote; then clipping and the
    optimizer, the same on every rank.
    """

    def __init__(self, config: RunConfig, samples: Samples, world: World, force: bool = False) -> None:
        self._config, self._source, self._world = config, samples.train, world
        self._slowness = (config.executor.slowness or [1.0] * world.size)[world.rank]
        device = pick_device(config, world.local_rank)
        start_group(device, world, config.executor.timeout_s)
        try:
            self._set_up(samples, device, force)
        except BaseException:
            dist.destroy_process_group()
            raise
        self._objection = Flag.OK  # raised between steps, voted in the next

    def _set_up(self, samples: Samples, device: torch.device, force: bool) -> None:
        config, world = self._config, self._world
        self.exchange = GroupExchange(world, config.executor.timeout_s)
        self.clock_offsets = self.exchange.clock_offsets()
        self.learner = Learner(config, samples, device, synchronised=True)
        self.caps: list[int] | None = None
        check_calibrations(config, self.learner, force)
        # after the synchroniser has taken its buffers, which are as large as the gradients
        gradients = sum(p.numel() * p.element_size() for p in self.learner.model.parameters() if p.requires_grad)
        allowed = allowance(self.learner, config, taken_bytes=gradients)
        if allowed is not None:
            self.caps = self.exchange.vote(np.array([[allowed]], dtype=np.int64))[:, 0].tolist()
        self._stepper = self.learner.stepper(synchronised=True)
        self._zero_s: float | None = None  # the run's first step on this host's clock
        self.timeline: dict[str, Any] | None = None  # of the last step

    @property
    def facts(self) -> dict[str, Any]:
        """What environment.json says of where this runs."""
        return {**self.learner.facts, "clocks": [asdict(clock) for clock in self.clock_offsets] or None}

    def object(self, flag: Flag) -> bool:
        """Say at the next vote that this rank cannot go on."""
        self._objection |= flag
        return True

    def expect(self, total_steps: int) -> None:
        """Let the learning rate fall over so many steps."""
        self.learner.optimiser.schedule(total_steps)

    def execute(self, plan: StepPlan) -> list[StepRecord]:
        """Run this rank's share of the step; its one record."""
        begin = perf_counter()
        rank, target = self._world.rank, self._config.target
        counts = self.learner.counts(plan.rank_ids(rank))
        summed = self.exchange.sum_batch(counts)

        def scale() -> float:
            return sum_scale(plan.global_batch if target == "sample_mean" else Counts(*summed.wait()).targets)

        step, trouble = self._run(plan, rank, scale)
        vote_from = perf_counter()
        total = Counts(*summed.wait())
        columns = plan_columns(self._config.labels, plan, rank, self._source)
        self._vote(plan, columns, self._objection if trouble is None else flag_of(trouble), trouble)
        vote_s = perf_counter() - vote_from
        assert step is not None
        assert total.samples == plan.global_batch, f"step {plan.step}: B = {plan.global_batch}, ranks sum to {total}"
        clock = self.learner.clock
        optimizer_from = clock.mark()
        norm = self.learner.optimiser.gradient_norm()
        rate = self._update(plan, columns, step, float(norm), total)
        optimizer_s = clock.seconds(optimizer_from, clock.mark())
        own = step.columns(clock, counts.of(target))
        wait_s = clock.seconds(step.ready, step.done)
        step_s = perf_counter() - begin + (plan.times.wait_s or 0.0)
        zero_s = self._first_step(begin)
        if self._config.executor.timeline:
            self.timeline = {"step": plan.step, **step.times(clock, zero_s)}
        return [
            StepRecord(
                **columns,
                **own,
                num_targets=self.learner.label_tokens(counts),
                began_at_s=clock.host_s(step.begin) - zero_s,
                wait_s=wait_s,
                vote_s=vote_s,
                optimizer_s=optimizer_s,
                step_s=step_s,
                grad_norm=float(norm) if math.isfinite(norm) else None,
                lr=rate,
            )
        ]

    def _update(
        self, plan: StepPlan, columns: dict[str, Any], step: RankStep, norm: float, total: Counts
    ) -> float | None:
        """The rate that was used; None where the step was skipped. Every rank sees the same norm and does alike."""
        if math.isfinite(norm):
            return self.learner.optimiser.step(self.learner.size(total))
        if self._config.train.non_finite == "skip":
            log.warning("step %d: the gradient is NaN or infinite; skipped on all ranks", plan.step)
            self.learner.optimiser.skip()
            return None
        finite = bool(torch.isfinite(step.loss_sum))  # the votes tell whose it is
        self._vote(plan, columns, Flag.OK if finite else Flag.NON_FINITE, None)
        raise NonFiniteError(f"step {plan.step}: the gradient is NaN or infinite though every rank's loss is finite")

    def _first_step(self, begin_s: float) -> float:
        """When the run's first step began on rank 0, on this host's clock."""
        if self._zero_s is None:
            on_rank_0 = self.exchange.from_rank_0(begin_s)
            self._zero_s = on_rank_0 - self.clock_offsets[self._world.rank].offset_s
        return self._zero_s

    def _run(self, plan: StepPlan, rank: int, scale: Callable[[], float]) -> tuple[RankStep | None, Exception | None]:
        """The step, or what broke it; then the other ranks are still given their collectives."""
        sync = self.learner.sync
        assert sync is not None
        try:
            seed = step_seed(self._config.seed, plan.step, rank)
            return self._stepper.run(plan.ranks[rank], scale, seed, self._slowness), None
        except Exception as error:
            if _lost_connection(error) or not sync.joins:
                raise
            trouble = error
        self.learner.optimiser.clear()
        sync.join()
        return None, trouble

    def _vote(self, plan: StepPlan, columns: dict[str, Any], flag: Flag, trouble: Exception | None) -> None:
        row = vote_row(plan.step, plan.digest, flag, columns["num_samples"], columns["max_length"])
        objection = verdict(self.exchange.vote(row[None]))
        if objection is None:
            return
        if isinstance(objection, RankFailure) and trouble is not None:
            raise trouble
        raise objection from trouble

    def evaluate(self) -> Evaluation | None:
        """Every rank takes its share of the dev split."""
        own = self.learner.evaluate(self._world.rank, self._world.size)
        if own is None:
            return None
        total = self.exchange.total
        return Evaluation(
            total(own.loss_sum),
            total(own.num_correct),
            total(own.num_samples),
            own.majority,
            None if own.num_targets is None else total(own.num_targets),
        )

    def close(self) -> None:
        dist.destroy_process_group()


def start_group(device: torch.device, world: World, timeout_s: float) -> None:
    """Join the ranks that the launcher started: NCCL for gradients on CUDA, gloo on a CPU.

    Raises RankFailure where the rendezvous cannot be reached, with its address.
    """
    import os

    backend = "nccl" if device.type == "cuda" else "gloo"
    if device.type == "cuda":
        torch.cuda.set_device(device)
    alone = None if World.launched() else dist.HashStore()  # a single rank needs no rendezvous
    try:
        dist.init_process_group(
            backend, store=alone, timeout=timedelta(seconds=timeout_s), rank=world.rank, world_size=world.size
        )
    except (RuntimeError, ValueError) as error:
        address = f"{os.environ.get('MASTER_ADDR', '(unset)')}:{os.environ.get('MASTER_PORT', '(unset)')}"
        in_use = "EADDRINUSE" in str(error) or "address already in use" in str(error)
        why = "this port is in use by another program" if in_use else str(error).splitlines()[0]
        raise RankFailure(
            f"rank {world.rank} of {world.size} could not meet the others at {address}: {why}; start the ranks with "
            "torchrun --standalone, which finds a free port, or set MASTER_ADDR and MASTER_PORT to a free one"
        ) from None


def _lost_connection(error: Exception) -> bool:
    """A collective failed: there is nobody left to join with."""
    words = ("Connection closed", "Connection reset", "Broken pipe", "Timed out", "timed out", "gloo", "NCCL")
    return isinstance(error, RuntimeError) and any(word in str(error) for word in words)
