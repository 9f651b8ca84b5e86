"""A text classifier over streams, one for each rank.

Run it: torchrun --nproc-per-node 2 before.py
"""

import time

import numpy as np
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel
from torch.nn.utils.rnn import pad_sequence
from torch.utils.data import DataLoader, IterableDataset


def build_data():
    """Return sentences as token ids, of very different lengths, each with a label."""
    draw = np.random.default_rng(0)
    lengths = draw.lognormal(2.2, 0.7, 330).clip(3, 60).astype(int)
    return [{"input_ids": draw.integers(1, 1000, n).tolist(), "label": int(draw.integers(2))} for n in lengths]


def collate(samples):
    ids = pad_sequence([torch.tensor(sample["input_ids"]) for sample in samples], batch_first=True)
    return {"input_ids": ids, "labels": torch.tensor([sample["label"] for sample in samples])}


class Shard(IterableDataset):
    """Every G-th sentence, as it comes; nobody knows its length before."""

    def __init__(self, rank, world_size):
        self.rank, self.world_size = rank, world_size

    def __iter__(self):
        yield from build_data()[self.rank :: self.world_size]


def build_model():
    """Return a head on the mean of a sentence's embeddings, padding left out."""
    torch.manual_seed(0)
    return torch.nn.Sequential(torch.nn.EmbeddingBag(1000, 32, padding_idx=0), torch.nn.Linear(32, 2))


def main():
    dist.init_process_group("gloo")
    shard = Shard(dist.get_rank(), dist.get_world_size())
    loader = DataLoader(shard, batch_size=16, collate_fn=collate)
    model = DistributedDataParallel(build_model())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(2):
        for batch in loader:
            logits, labels = model(batch["input_ids"]), batch["labels"]
            loss = F.cross_entropy(logits, labels)
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
    time.sleep(0.1)  # for gloo's threads, which abort a process that ends before they are done
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
