"""Samples that are arrays of shape (T, features), as audio and video are.

Run it: torchrun --nproc-per-node 2 before.py
"""

import time

import numpy as np
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel
from torch.nn.utils.rnn import pad_sequence
from torch.utils.data import DataLoader, DistributedSampler


def build_data():
    """Return clips of T frames of 16 features each, with the level that is to be predicted."""
    draw = np.random.default_rng(0)
    frames = draw.lognormal(3.5, 0.6, 330).clip(5, 200).astype(int)
    clips = [draw.normal(draw.normal(), 1.0, (each, 16)).astype(np.float32) for each in frames]
    return [(clip, clip.mean()) for clip in clips]


def collate(samples):
    clips = pad_sequence([torch.from_numpy(clip) for clip, _ in samples], batch_first=True, padding_value=torch.nan)
    return clips, torch.tensor([level for _, level in samples])


class Regressor(torch.nn.Module):
    """Two layers on each frame, and the mean over the real ones."""

    def __init__(self):
        super().__init__()
        self.layers = torch.nn.Sequential(torch.nn.Linear(16, 32), torch.nn.ReLU(), torch.nn.Linear(32, 1))

    def forward(self, clips):
        real = ~clips[..., 0].isnan()
        levels = self.layers(clips.nan_to_num())[..., 0]
        return (levels * real).sum(1) / real.sum(1)


def build_model():
    torch.manual_seed(0)
    return Regressor()


def main():
    dist.init_process_group("gloo")
    data = build_data()
    sampler = DistributedSampler(data)
    loader = DataLoader(data, batch_size=16, sampler=sampler, collate_fn=collate)
    model = DistributedDataParallel(build_model())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for epoch in range(2):
        sampler.set_epoch(epoch)
        for clips, levels in loader:
            loss = F.mse_loss(model(clips), levels)
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
    time.sleep(0.1)  # for gloo's threads, which abort a process that ends before they are done
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
