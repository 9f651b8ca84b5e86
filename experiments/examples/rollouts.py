"""A policy gradient on a batch of rollouts that exists already: divided by length, every prompt weighing the same.

    torchrun --nproc-per-node 2 rollouts.py

Every rank has the batch, or at least its lengths, counts and prompts, which is a few integers a sample.
"""

import time

import numpy as np
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel
from torch.nn.utils.rnn import pad_sequence

import ddpsched

PROMPT = 4  # tokens before each answer


def build_batch():
    """Return answers to 8 prompts as token ids, of very different lengths, and the advantage of each."""
    draw = np.random.default_rng(0)
    lengths = draw.lognormal(2.6, 0.9, 64).clip(3, 120).astype(int)
    rows = [torch.from_numpy(draw.integers(1, 500, PROMPT + n)) for n in lengths]
    return rows, np.arange(64) // 8, torch.from_numpy(draw.standard_normal(64))


class Policy(torch.nn.Module):
    """Each next token from the mean of those before it."""

    def __init__(self):
        super().__init__()
        self.embedding, self.head = torch.nn.Embedding(500, 32), torch.nn.Linear(32, 500)

    def forward(self, input_ids):
        so_far = torch.arange(1, input_ids.shape[1] + 1)[:, None]
        return self.head((self.embedding(input_ids).cumsum(1) / so_far).tanh())


def build_model():
    torch.manual_seed(0)
    return Policy().double()


def answer_losses(model, rows, advantages):
    """Return each row's loss, summed over the tokens of its answer, (count,)."""
    ids = pad_sequence(rows, batch_first=True, padding_value=0)
    labels = ids[:, 1:].masked_fill(ids[:, 1:] == 0, -100)
    labels[:, : PROMPT - 1] = -100
    losses = F.cross_entropy(model(ids)[:, :-1].transpose(1, 2), labels, reduction="none")
    return losses.sum(1) * advantages


def step(model, rows, prompts, advantages):
    """Backpropagate this rank's share of the mean over prompts of the mean over all tokens of their answers."""
    lengths = [len(row) for row in rows]
    parts = ddpsched.balance(lengths, dist.get_world_size(), packed=False, max_microbatches=4)
    answers = np.array(lengths) - PROMPT
    weights = ddpsched.token_weights("group_mean", answers, groups=prompts, world_size=dist.get_world_size())
    mine = parts.ranks[dist.get_rank()]
    for number, positions in enumerate(mine):
        model.require_backward_grad_sync = number == len(mine) - 1  # of DDP: gradients are reduced in the last one
        losses = answer_losses(model, [rows[i] for i in positions], advantages[positions])
        (losses * torch.from_numpy(weights[positions])).sum().backward()


def main():
    dist.init_process_group("gloo")
    model = DistributedDataParallel(build_model())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(3):
        step(model, *build_batch())
        optimizer.step()
        optimizer.zero_grad()
    time.sleep(0.1)  # for gloo's threads, which abort a process that ends before they are done
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
