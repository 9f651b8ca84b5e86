"""A causal language model on documents, some of which are far longer than others.

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
from transformers import GPT2Config, GPT2LMHeadModel


def build_data():
    """Return documents as token ids, a few of them longer than all others of their step together."""
    draw = np.random.default_rng(0)
    lengths = draw.lognormal(2.0, 1.2, 330).clip(3, 400).astype(int)
    rows = [draw.integers(1, 1000, n).tolist() for n in lengths]
    return [{"input_ids": row, "labels": row} for row in rows]


def collate(samples):
    rows = [torch.tensor(sample["input_ids"]) for sample in samples]
    labels = pad_sequence(rows, batch_first=True, padding_value=-100)
    return {"input_ids": pad_sequence(rows, batch_first=True), "labels": labels}


def build_model():
    torch.manual_seed(0)
    shape = GPT2Config(
        vocab_size=1000, n_positions=400, n_embd=32, n_layer=2, n_head=2, resid_pdrop=0.0, embd_pdrop=0.0,
        attn_pdrop=0.0, bos_token_id=1, eos_token_id=1, use_cache=False,
    )  # fmt: skip
    return GPT2LMHeadModel(shape)


def main():
    dist.init_process_group("gloo")
    data, model = build_data(), DistributedDataParallel(build_model())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    sampler = DistributedSampler(data)
    loader = DataLoader(data, batch_size=16, sampler=sampler, collate_fn=collate)
    for epoch in range(2):
        sampler.set_epoch(epoch)
        for batch in loader:
            labels = batch.pop("labels")
            logits = model(**batch).logits
            F.cross_entropy(logits[:, :-1].flatten(0, 1), labels[:, 1:].flatten()).backward()
            optimizer.step()
            optimizer.zero_grad()
    time.sleep(0.1)  # for gloo's threads, which abort a process that ends before they are done
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
