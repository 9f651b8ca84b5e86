"""A text classifier with accelerate.

Run it: torchrun --nproc-per-node 2 before.py
"""

import time

import numpy as np
import torch
import torch.nn.functional as F
from accelerate import Accelerator
from torch.nn.utils.rnn import pad_sequence
from torch.utils.data import DataLoader


def build_data():
    """Return sentences as token ids, of very different lengths, each with a label."""
    draw = np.random.default_rng(0)
    lengths = draw.lognormal(2.2, 0.7, 330).clip(3, 60).astype(int)
    return [{"input_ids": draw.integers(1, 1000, n).tolist(), "label": int(draw.integers(2))} for n in lengths]


def collate(samples):
    ids = pad_sequence([torch.tensor(sample["input_ids"]) for sample in samples], batch_first=True)
    return {"input_ids": ids, "labels": torch.tensor([sample["label"] for sample in samples])}


def build_model():
    """Return a head on the mean of a sentence's embeddings, padding left out."""
    torch.manual_seed(0)
    return torch.nn.Sequential(torch.nn.EmbeddingBag(1000, 32, padding_idx=0), torch.nn.Linear(32, 2))


def main():
    accelerator = Accelerator(cpu=True)
    loader = DataLoader(build_data(), batch_size=16, shuffle=True, collate_fn=collate)
    model = build_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
    for _ in range(2):
        for batch in loader:
            logits, labels = model(batch["input_ids"]), batch["labels"]
            loss = F.cross_entropy(logits, labels)
            accelerator.backward(loss)
            optimizer.step()
            optimizer.zero_grad()
    time.sleep(0.1)  # for gloo's threads, which abort a process that ends before they are done
    accelerator.end_training()


if __name__ == "__main__":
    main()
