"""What is trained and with what: model, data and optimizer on one device. Both executors drive it."""

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


def step_seed(seed: int, step: int, rank: int) -> int:
    """The seed of a rank's dropout in a step, whatever executes it."""
    return int(np.random.SeedSequence([seed, step, rank]).generate_state(1)[0])


def pick_device(config: RunConfig, local_rank: int) -> torch.device:
    """The device that the config asks for; ConfigError where it is not there."""
    wanted = config.executor.device
    if wanted == "cuda" and not torch.cuda.is_available():
        raise ConfigError('executor.device = "cuda", but torch sees no CUDA device; use "cpu" or "auto"')
    if wanted == "cpu" or not torch.cuda.is_available():
        return torch.device("cpu")
    if local_rank >= torch.cuda.device_count():
        raise ConfigError(
            f"local rank {local_rank} has no CUDA device of its own ({torch.cuda.device_count()} here); start fewer "
            'ranks, or use executor.kind = "virtual", or executor.device = "cpu"'
        )
    return torch.device("cuda", local_rank)


class Learner:
    """Seeds, builds the model in the precision asked for, and keeps what steps and evaluation need.

    ``synchronised``: one rank of many, whose gradients ``sync`` adds to the others'.
    """

    def __init__(
        self,
        config: RunConfig,
        samples: Samples,
        device: torch.device,
        synchronised: bool = False,
    ) -> None:
        torch.set_num_threads(config.executor.threads)
        torch.manual_seed(config.seed)
        model = build_model(config.model, config.data.num_labels, samples.vocab_size, samples.pad_id)
        precision = config.train.precision
        if precision == "auto":
            precision = "bfloat16" if device.type == "cuda" else "float32"
        dtype = torch.float64 if precision == "float64" else torch.float32
        longest = num_positions(model)
        if longest is not None and config.data.max_length > longest:
            raise ConfigError(
                f"data.max_length = {config.data.max_length}, but {config.model.name!r} has {longest} positions"
            )
        if config.policy.packs or config.data.within_documents:
            enable_packing(model, config.model.name, config.data.max_length)
        enable_mask(model, config.model.name, config.model.mask, config.data.max_length)
        self.device, self.clock = device, Clock(device)
        self.model: torch.nn.Module = model.to(device=device, dtype=dtype).train()
        self.autocast: Any = torch.bfloat16 if precision == "bfloat16" else None
        self.sync: Synchroniser | None = None
        if synchronised:
            self.sync = SYNCS[config.sync.kind](self.model, self.clock, config.sync)
        self.optimiser = Optimiser(self.model, config.train, 1, config.lr, config.global_batch)
        self._samples, self._config = samples, config
        self.collate = Collator(
            samples.train,
            samples.dataset.train.labels,
            samples.pad_id,
            device,
            config.model.mask,
            weighted=config.target == "sample_mean",
        )

    @property
    def num_parameters(self) -> int:
        return sum(p.numel() for p in self.model.parameters())

    @property
    def facts(self) -> dict[str, Any]:
        """What environment.json says of the model and its device; a CPU's name stands there already."""
        name = torch.cuda.get_device_name(self.device) if self.device.type == "cuda" else None
        return {"device": name, "num_parameters": self.num_parameters}

    def stepper(self, synchronised: bool = False) -> RankStepper:
        """What runs micro-batches through the model, or through the synchroniser's wrapping of it."""
        sync = self.sync if synchronised else None
        bounded = self._config.memory.path is not None
        return RankStepper(self.model, self.collate, self.clock, self.autocast, bounded, sync)

    def counts(self, ids: Ids) -> Counts:
        """What these training samples come to; the ids of a rank, so that no rank needs the lengths of another's."""
        train = self._samples.train
        learns_tokens = self._config.model.task == "causal_lm"
        return Counts(
            len(ids), int(train.lengths(ids).sum()), int(train.num_targets(ids).sum()) if learns_tokens else 0
        )

    def size(self, total: Counts) -> int:
        """What the learning rate follows of a step: its samples over all ranks, or its tokens."""
        return total.tokens if self._config.lr.per == "tokens" else total.samples

    def label_tokens(self, counts: Counts) -> int | None:
        """Of a record: None for a classifier, which has none."""
        return counts.targets if self._config.model.task == "causal_lm" else None

    def evaluate(self, rank: int = 0, size: int = 1) -> Evaluation | None:
        """On every ``size``-th dev sample from ``rank`` on; None without a dev split."""
        return evaluate(self.model, self._samples, self._config.model.mask, self.device, rank, size)
