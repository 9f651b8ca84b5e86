"""This process is one rank of many, started by torchrun."""

import math
from datetime import timedelta
from time import perf_counter

import numpy as np
import torch
import torch.distributed as dist

from ddpsched.config import RunConfig
from ddpsched.errors import NonFiniteError, RankFailure
from ddpsched.plan import StepPlan
from ddpsched.planning.columns import plan_columns
from ddpsched.planning.messages import Flag, verdict, vote_row
from ddpsched.planning.samples import Samples
from ddpsched.records import StepRecord
from ddpsched.training.calibrate import check_calibrations
from ddpsched.training.exchange import GroupExchange
from ddpsched.training.learner import Evaluation, Learner, pick_device, step_seed
from ddpsched.training.loss import sum_scale
from ddpsched.training.probe import allowance
from ddpsched.training.rank_step import RankStep
from ddpsched.training.sync import SYNCS
from ddpsched.training.trouble import flag_of
from ddpsched.world import World


class DistributedExecutor:
    """Gradients are averaged over ranks, so each summed loss is scaled by G/B.

    A step: forward and backward of this rank's micro-batches while the sum of all
    ranks' counts and, in another thread, the next step's offers travel; then the
    vote; then clipping and the optimizer, the same on every rank.
    """

    def __init__(
        self, config: RunConfig, samples: Samples, total_steps: int, world: World, force: bool = False
    ) -> None:
        self._config, self._source, self._world = config, samples.train, world
        self._slowness = (config.executor.slowness or [1.0] * world.size)[world.rank]
        device = pick_device(config, world.local_rank)
        start_group(device, world, config.executor.timeout_s)
        try:
            self._set_up(samples, total_steps, device, force)
        except BaseException:
            dist.destroy_process_group()
            raise
        self._objection = Flag.OK  # raised between steps, voted in the next

    def _set_up(self, samples: Samples, total_steps: int, device: torch.device, force: bool) -> None:
        config, world = self._config, self._world
        self.exchange = GroupExchange(world, config.executor.timeout_s)
        self.learner = Learner(config, samples, total_steps, device)
        clock = self.learner.stepper().clock
        self._sync = SYNCS[config.sync.kind](self.learner.model, clock)
        self.caps: list[int] | None = None
        self.world_caps: list[int] | None = None
        check_calibrations(config, self.learner, force)
        # after the synchroniser has taken its buffers, which are as large as the gradients
        gradients = sum(p.numel() * p.element_size() for p in self.learner.model.parameters() if p.requires_grad)
        allowed = allowance(self.learner, config, taken_bytes=gradients)
        if allowed is not None:
            self.caps = [allowed]
            self.world_caps = self.exchange.vote(np.array([self.caps], dtype=np.int64))[:, 0].tolist()
        self._stepper = self.learner.stepper(self._sync)

    def object(self, flag: Flag) -> None:
        """Say at the next vote that this rank cannot go on."""
        self._objection |= flag

    def execute(self, plan: StepPlan) -> list[StepRecord]:
        """Run this rank's share of the step; its one record."""
        begin = perf_counter()
        rank, count = self._world.rank, int(plan.counts[self._world.rank])
        total = self.exchange.sum_batch(count)
        scale = sum_scale(plan.global_batch, averaged_over=self._world.size)
        step, trouble = self._run(plan, rank, scale)
        gathered = self._stepper.clock.mark()
        vote_from = perf_counter()
        summed = total.wait()
        self._vote(plan, self._objection if trouble is None else flag_of(trouble), trouble)
        vote_s = perf_counter() - vote_from
        assert step is not None
        assert summed == plan.global_batch, f"step {plan.step}: B = {plan.global_batch}, but ranks sum to {summed}"
        optimizer_from = self._stepper.clock.mark()
        norm = self.learner.optimiser.gradient_norm()
        if not math.isfinite(norm):  # every rank sees it, as the gradient is shared; the votes tell whose it is
            finite = bool(torch.isfinite(step.loss_sum))
            self._vote(plan, Flag.OK if finite else Flag.NON_FINITE, None)
            raise NonFiniteError(
                f"step {plan.step}: the gradient is NaN or infinite though every rank's loss is finite"
            )
        rate = self.learner.optimiser.step()
        optimizer_to = self._stepper.clock.mark()
        clock = self._stepper.clock
        own = step.columns(clock, count)
        wait_s = clock.seconds(step.ready, gathered)
        optimizer_s = clock.seconds(optimizer_from, optimizer_to)
        step_s = perf_counter() - begin + (plan.times.wait_s or 0.0)
        return [
            StepRecord(
                **plan_columns(self._config, plan, rank, self._source),
                **own,
                wait_s=wait_s,
                vote_s=vote_s,
                optimizer_s=optimizer_s,
                step_s=step_s,
                grad_norm=float(norm),
                lr=rate,
            )
        ]

    def _run(self, plan: StepPlan, rank: int, scale: float) -> tuple[RankStep | None, Exception | None]:
        """The step, or what broke it; then the other ranks are still given their collectives."""
        try:
            seed = step_seed(self._config.seed, plan.step, rank)
            return self._stepper.run(plan.ranks[rank], scale, seed, self._sync, self._slowness), None
        except Exception as error:
            if _lost_connection(error):
                raise
            trouble = error
        self.learner.optimiser.clear()
        self._sync.join()
        return None, trouble

    def _vote(self, plan: StepPlan, flag: Flag, trouble: Exception | None) -> None:
        columns = plan_columns(self._config, plan, self._world.rank, self._source)
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
        return Evaluation(total(own.loss_sum), total(own.num_correct), total(own.num_samples), own.majority)

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
