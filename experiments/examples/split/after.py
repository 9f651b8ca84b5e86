"""A causal language model on documents, the longest of them in parts on several ranks.

Run it: torchrun --nproc-per-node 2 after.py
"""

import time

import numpy as np
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel
from transformers import GPT2Config, GPT2LMHeadModel

import ddpsched


def build_data():
    """Return documents as token ids, a few of them longer than all others of their step together."""
    draw = np.random.default_rng(0)
    lengths = draw.lognormal(2.0, 1.2, 330).clip(3, 400).astype(int)
    rows = [draw.integers(1, 1000, n).tolist() for n in lengths]
    return [{"input_ids": row, "labels": row} for row in rows]


def label_tokens(batch):
    return int((batch["shift_labels"] != -100).sum())


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
    policy = {"kind": "split", "max_tokens": 256}
    loader = ddpsched.StepLoader(
        data, ddpsched.lengths(data), policy=policy, global_batch=32, collate_fn=ddpsched.packed_collate
    )
    with ddpsched.split_samples(model, loader):
        for _ in range(2):
            for batches, scale in ddpsched.scaled(loader, count=label_tokens):
                for batch in ddpsched.micro_batches(model, batches):
                    labels = batch.pop("shift_labels")
                    logits = model(**batch).logits
                    (scale * F.cross_entropy(logits[0], labels[0], reduction="sum")).backward()
                optimizer.step()
                optimizer.zero_grad()
    time.sleep(0.1)  # for gloo's threads, which abort a process that ends before they are done
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
