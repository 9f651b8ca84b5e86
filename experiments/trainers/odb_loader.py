"""online-dynamic-batching in a Trainer, by its own adapter, with the exact loss or its own.

It takes a loader of single samples with workers, and refuses the one that Trainer makes with accelerate on several
ranks; so it gets torch's own, each rank with every second sample. Ranks end an epoch together (``join=False``), as
Trainer's loop cannot go on with fewer of them: the few samples that a rank has left are dropped.
"""

import os
from collections.abc import Callable
from typing import Any

from ddpsched.peers.online_dynamic_batching import BUFFER, BUFFER_BATCHES, PACKAGE, SEED
from ddpsched.peers.packages import need
from experiments.trainers.setting import PER_DEVICE, Rows, padded

HELD = max(BUFFER, BUFFER_BATCHES * PER_DEVICE)  # samples of a rank, by which its budget was found
ARGUMENTS = {"per_device_train_batch_size": 1, "dataloader_num_workers": 1, "dataloader_prefetch_factor": HELD}
ENDLESS = 2**60  # samples after which its callback would end the training


def collate(rows: Rows) -> dict[str, Any]:
    """Return a padded batch with the keys that the package adds to samples, from which it takes its loss scale."""
    added = {key: value for key, value in rows[0].items() if key not in ("input_ids", "labels")}
    return padded(rows) | added


def enable(trainer: Any, tokens: int, seed: int, exact: bool) -> None:
    """Let a trainer take groups of ``tokens`` input tokens; without ``exact``, with the package's own loss scale."""
    hf = need("odb.integrations.hf", PACKAGE)
    args = trainer.args
    make: Callable[..., Any] = _loader_class()
    loader = make(trainer.train_dataset, args.process_index, args.world_size, seed)
    # windows of all ranks are shuffled by this seed, which the package begins anew in each process; it names its group
    # of processes too, and a second group of one name cannot begin, so with its own loss the seed is another
    loader._iter_random_seed = SEED + 1000 * seed + (not exact)
    os.environ["ODB_ITERATOR_STARTUP_JITTER_SEC"] = "0"  # else each loader waits for up to two seconds
    hf.enable_odb(
        trainer, train_dataloader=loader, token_budget=tokens, loss_scaling="none" if exact else "exact", join=False,
        sample_budget=ENDLESS, max_steps_policy="preserve", scheduler_progress="optimizer_steps",
        no_warmup=True,  # else it begins with windows of one sample
    )  # fmt: skip


def _loader_class() -> Any:
    from torch.utils.data import DataLoader, DistributedSampler

    class Singles(DataLoader):
        """Single samples of a rank; a class for each loader, as the package takes the length from the class."""

        def __init__(self, rows: Any, rank: int, ranks: int, seed: int) -> None:
            shuffled: Any = DistributedSampler(rows, ranks, rank, seed=seed)
            super().__init__(
                rows, batch_size=1, sampler=shuffled, num_workers=1, prefetch_factor=HELD, collate_fn=collate
            )

        def set_epoch(self, epoch: int) -> None:
            self.sampler.set_epoch(epoch)  # type: ignore[attr-defined]

    return Singles
