"""A causal language model under torch's DDP.

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
from transformers import LlamaConfig, LlamaForCausalLM


def build_data():
    """Return documents as token ids; of each the first third is a prompt, which is no label."""
    draw = np.random.default_rng(0)
    lengths = draw.lognormal(2.2, 0.7, 330).clip(3, 60).astype(int)
    rows = [draw.integers(1, 1000, n).tolist() for n in lengths]
    return [{"input_ids": row, "labels": [-100] * (len(row) // 3) + row[len(row) // 3 :]} for row in rows]


def collate(samples):
    ids = pad_sequence([torch.tensor(sample["input_ids"]) for sample in samples], batch_first=True)
    labels = [torch.tensor(sample["labels"]) for sample in samples]
    return {"input_ids": ids, "labels": pad_sequence(labels, batch_first=True, padding_value=-100)}


def build_model():
    torch.manual_seed(0)
    shape = LlamaConfig(
        vocab_size=1000, hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=2,
        num_key_value_heads=2, max_position_embeddings=64,
    )  # fmt: skip
    return LlamaForCausalLM(shape)


def main():
    dist.init_process_group("gloo")
    data = build_data()
    sampler = DistributedSampler(data)
    loader = DataLoader(data, batch_size=16, sampler=sampler, collate_fn=collate)
    model = DistributedDataParallel(build_model())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for epoch in range(2):
        sampler.set_epoch(epoch)
        for batch in loader:
            logits = model(input_ids=batch["input_ids"]).logits[:, :-1].flatten(0, 1)
            labels = batch["labels"][:, 1:].flatten()
            loss = F.cross_entropy(logits, labels)
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
    time.sleep(0.1)  # for gloo's threads, which abort a process that ends before they are done
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
