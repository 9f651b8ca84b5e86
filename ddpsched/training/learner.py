"""Model, data and optimizer on one device, which both executors use."""

import logging
import math
from typing import Any

import numpy as np
import torch

from ddpsched.config import RunConfig
from ddpsched.data.samples import Samples
from ddpsched.errors import ConfigError
from ddpsched.plan import Ids
from ddpsched.training.clock import Clock
from ddpsched.training.collate import Collator
from ddpsched.training.evaluate import Evaluation, evaluate
from ddpsched.training.loss import Counts
from ddpsched.training.masks import enable_mask
from ddpsched.training.model import build_model, num_positions
from ddpsched.training.optimise import Optimiser
from ddpsched.training.packed import enable_packing
from ddpsched.training.rank_step import RankStepper
from ddpsched.training.sync import SYNCS, Synchroniser

log = logging.getLogger("ddpsched")


def step_seed(seed: int, step: int, rank: int) -> int:
    """Return the seed of a rank's dropout in a step, the same in every executor."""
    return int(np.random.SeedSequence([seed, step, rank]).generate_state(1)[0])


def pick_device(config: RunConfig, local_rank: int) -> torch.device:
    """Return the device that the config asks for; raise ConfigError where this machine has none for ``local_rank``."""
    wanted = config.executor.device
    if wanted == "cuda" and not torch.cuda.is_available():
        raise ConfigError('executor.device = "cuda", but torch sees no CUDA device; use "cpu" or "auto"')
    if wanted == "cpu" or not torch.cuda.is_available():
        return torch.device("cpu")
    if local_rank >= torch.cuda.device_count():
        raise ConfigError(
            f"local rank {local_rank} needs a CUDA device for itself, and there are {torch.cuda.device_count()} here; "
            'start fewer ranks, or use executor.kind = "virtual", or executor.device = "cpu"'
        )
    return torch.device("cuda", local_rank)


class Learner:
    """The seeded model in the precision asked for, with all that steps and evaluation need.

    ``synchronised``: this process is one rank of many, and ``sync`` adds up their gradients.
    """

    def __init__(self, config: RunConfig, samples: Samples, device: torch.device, synchronised: bool = False) -> None:
        torch.set_num_threads(config.executor.threads)
        torch.manual_seed(config.seed)
        model = build_model(config.model, config.data.num_labels, samples.vocab_size, samples.pad_id)
        precision = config.train.precision
        if precision == "auto":
            precision = "bfloat16" if device.type == "cuda" else "float32"
        longest = num_positions(model)
        if longest is not None and config.data.max_length > longest:
            raise ConfigError(
                f"data.max_length = {config.data.max_length}, but {config.model.name!r} has {longest} positions; lower "
                "data.max_length, or take a model with more"
            )
        if config.policy.packs or config.data.within_documents:
            enable_packing(model, config.model.name, config.data.max_length)
        enable_mask(model, config.model.name, config.model.mask, config.data.max_length)
        self.device, self.clock = device, Clock(device)
        self.model: torch.nn.Module = model.to(
            device, torch.float64 if precision == "float64" else torch.float32
        ).train()
        self.autocast: Any = torch.bfloat16 if precision == "bfloat16" else None
        kind = SYNCS[config.sync.kind] if synchronised else Synchroniser
        self.sync = kind(self.model, self.clock, config.sync)
        self.optimiser = Optimiser(self.model, config.train, 1, config.lr, config.global_batch)
        self._samples, self._config = samples, config
        labels, weighted = samples.dataset.train.labels, config.target == "sample_mean"
        self.collate = Collator(samples.train, labels, samples.pad_id, device, config.model.mask, weighted)

    @property
    def num_parameters(self) -> int:
        """Number of weights of the model."""
        return sum(p.numel() for p in self.model.parameters())

    @property
    def facts(self) -> dict[str, Any]:
        """Entries of environment.json about the model and its device; a CPU's name is in it already."""
        name = torch.cuda.get_device_name(self.device) if self.device.type == "cuda" else None
        return {"device": name, "num_parameters": self.num_parameters}

    def stepper(self, synchronised: bool = False) -> RankStepper:
        """Return a stepper that runs micro-batches through the model, or through the synchroniser's module."""
        sync = self.sync if synchronised else None
        bounded = self._config.memory.path is not None
        return RankStepper(self.model, self.collate, self.clock, self.autocast, bounded, sync)

    def counts(self, ids: Ids) -> Counts:
        """Return how many samples, tokens and label tokens these training samples are.

        ``ids``: of one rank, as no rank needs to know the lengths of another's samples.
        """
        train = self._samples.train
        num_targets = int(train.num_targets(ids).sum()) if self._config.model.task == "causal_lm" else 0
        return Counts(len(ids), int(train.lengths(ids).sum()), num_targets)

    def update(self, step: int, total: Counts) -> dict[str, Any] | None:
        """Clip the gradient and apply it, or skip it where it is not finite and the config says so.

        ``total``: over all ranks of the step. Returns columns of the record; None where
        the gradient is not finite and the run has to stop.
        """
        begin = self.clock.mark()
        norm, rate = float(self.optimiser.gradient_norm()), None
        finite = math.isfinite(norm)
        if finite:
            rate = self.optimiser.step(total.tokens if self._config.lr.per == "tokens" else total.samples)
        elif self._config.train.non_finite == "skip":
            log.warning("step %d: the gradient is NaN or infinite; skipped on all ranks", step)
            self.optimiser.skip()
        else:
            return None
        optimizer_s = self.clock.seconds(begin, self.clock.mark())
        return {"optimizer_s": optimizer_s, "grad_norm": norm if finite else None, "lr": rate}

    def label_tokens(self, counts: Counts) -> int | None:
        """Return the label tokens for a record: None for a classifier, which has none."""
        return counts.targets if self._config.model.task == "causal_lm" else None

    def evaluate(self, rank: int = 0, size: int = 1) -> Evaluation | None:
        """Evaluate every ``size``-th dev sample from ``rank`` on; return None without a dev split."""
        return evaluate(self.model, self._samples, self._config.model.mask, self.device, rank, size)
