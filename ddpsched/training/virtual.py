"""All ranks one after another on one device: the same plans and gradients, without a network."""

from itertools import zip_longest
from pathlib import Path
from typing import NoReturn

import numpy as np
import torch

from ddpsched.config import RunConfig
from ddpsched.costs.memory_cap import UNLIMITED
from ddpsched.data.samples import Samples
from ddpsched.exchange import Flag, LocalExchange, verdict, vote_row
from ddpsched.heartbeat import Heartbeat
from ddpsched.planning.record_columns import largest_need, plan_columns
from ddpsched.planning.shapes.choose import Menu
from ddpsched.records import StepRecord
from ddpsched.step_plan import StepPlan
from ddpsched.training.calibrate import allowance, check_calibrations
from ddpsched.training.clock import StepClock, pick_device
from ddpsched.training.learner import Learner, step_seed
from ddpsched.training.loss import Counts
from ddpsched.training.out_of_memory import flag_of
from ddpsched.training.rank_step import RankStep
from ddpsched.training.split import joined, share_losses, share_times
from ddpsched.training.state import Snapshot


class VirtualExecutor:
    """An executor in which ranks take turns. Gradients add up in place, so losses are scaled for sums.

    Ranks run in an order that rotates from step to step, so that it is not always the
    same rank that meets a cold cache. A step lasts as long as the slowest rank's compute
    (in lockstep the sum over micro-batches of the slowest rank's) and the optimizer: what
    G such devices with a perfect network would take.
    """

    def __init__(self, config: RunConfig, samples: Samples, force: bool = False) -> None:
        self._config, self._lengths = config, samples.train
        self._slowness = config.executor.slowness or [1.0] * config.world_size
        self.exchange = LocalExchange(config.world_size)
        self.learner = Learner(config, samples, pick_device(config, 0))
        self.facts, self.timeline = {**self.learner.facts, "clocks": None}, None
        self.expect = self.learner.optimiser.schedule  # lets the learning rate fall over so many steps
        self.evaluate = self.learner.evaluate
        check_calibrations(config, self.learner, force)
        allowed = allowance(self.learner, config)  # one device plays every rank, so all have the same
        self.caps = None if allowed is None else [allowed] * config.world_size
        self.learner.warm_up()
        self.cap, self.needs = UNLIMITED, [0] * config.world_size

    def use(self, config: RunConfig, menu: Menu) -> None:
        """Take the policy and the cost of this config, and a menu of shapes; compile the model for them."""
        self._config = config
        self.facts |= self.learner.use(config, menu)

    @property
    def packs(self) -> bool:
        """Whether the model runs packed rows."""
        return self.learner.packs

    def beat_into(self, heart: Heartbeat) -> None:
        """Do nothing, as nobody waits for this process."""

    def object(self, flag: Flag) -> bool:
        """Return False: there are no other processes to inform."""
        return False

    def execute(self, plan: StepPlan) -> list[StepRecord]:
        """Run the step; return one record per rank, in rank order."""
        self.learner.prepare(plan)
        config, size, started = self._config, plan.world_size, StepClock()
        counts = [self.learner.counts(micros) for micros in plan.ranks]
        self.learner.shares, run = joined(plan, self.learner.device)
        total = Counts(*map(sum, zip(*counts, strict=True)))
        assert total.samples == plan.global_batch
        denominator = self.learner.denominator
        each = [denominator.step_counts(plan, counts[rank], plan.rank_ids(rank)) for rank in range(size)]
        sums = np.sum(each, axis=0).tolist()
        denominator.begin(plan, lambda: sums)
        self.learner.begin_step()
        done: dict[int, RankStep] = {}
        for turn in range(size):
            rank = (plan.step + turn) % size
            try:
                seed = step_seed(config.seed, plan.step, rank)
                done[rank] = self.learner.run(run[rank], denominator.scale, seed, slowness=self._slowness[rank])
            except Exception as error:
                self._fail(plan, rank, flag_of(error), error)
        lost = next((rank for rank in range(size) if not torch.isfinite(done[rank].loss_sum)), 0)
        if flag := self.learner.objection(done[lost]):
            self._fail(plan, lost, flag)
        self.needs = [largest_need(self.cap, plan, rank, self._lengths) for rank in range(size)]
        update = self.learner.update(plan.step, total)
        if plan.parts:
            share_losses(plan, [done[rank] for rank in range(size)], self.learner.part_targets)
        measured = [done[rank].columns(self.learner.clock, denominator.count(counts[rank])) for rank in range(size)]
        slowest = max(columns["compute_s"] for columns in measured)
        if plan.parts:
            slowest = share_times(plan, [done[rank] for rank in range(size)], measured, self.learner.clock)
        if config.policy.in_lockstep:
            micros = [done[rank].microbatches_s(self.learner.clock) for rank in range(size)]
            slowest = max(slowest, sum(map(max, zip_longest(*micros, fillvalue=0.0))))
        for rank, columns in enumerate(measured):
            columns |= {"num_targets": self.learner.label_tokens(counts[rank]), **update}
            columns |= {"wait_s": slowest - columns["compute_s"], "step_s": slowest + update["optimizer_s"]}
            columns |= started.columns()
        cost = self.learner.cost
        planned = (plan_columns(config.labels, plan, rank, self._lengths, cost) for rank in range(size))
        return [StepRecord(**one, **other) for one, other in zip(planned, measured, strict=True)]

    repeats = True

    def recover(self) -> None:
        """Make ready for the repetition of a step that broke off."""
        self.learner.forget_step()

    def _fail(self, plan: StepPlan, rank: int, flag: Flag, cause: Exception | None = None) -> NoReturn:
        """Raise the error that every rank would raise after this vote of a real rank."""
        if flag is Flag.FAILED and cause is not None:
            raise cause
        longest = plan_columns(self._config.labels, plan, rank, self._lengths)["max_length"]
        flags = [flag if r == rank else Flag.OK for r in range(plan.world_size)]
        rows = [vote_row(plan.step, plan.digest, flags[r], int(plan.counts[r]), longest) for r in range(len(flags))]
        objection = verdict(np.stack(rows))
        assert objection is not None
        raise objection from cause

    def snapshot(self) -> Snapshot:
        """Return the copies that a checkpoint is written from."""
        return self.learner.snapshot()

    def restore(self, folder: Path) -> None:
        """Go on with the weights and moments of a checkpoint."""
        self.learner.restore(folder)

    def save_model(self, path: Path) -> None:
        """Write the model and its tokenizer as a folder for ``from_pretrained``."""
        self.learner.save_model(path)

    def close(self) -> None:
        """Do nothing: nothing is open."""
