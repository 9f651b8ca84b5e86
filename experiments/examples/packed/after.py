"""DistilBERT on rows without padding, of as many tokens on each rank.

Run it: torchrun --nproc-per-node 2 after.py
"""

import time

import numpy as np
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel
from transformers import DistilBertConfig, DistilBertForSequenceClassification

import ddpsched


def build_data():
    """Return sentences as token ids, of very different lengths, each with a label."""
    draw = np.random.default_rng(0)
    lengths = draw.lognormal(2.2, 0.7, 330).clip(3, 60).astype(int)
    return [{"input_ids": draw.integers(1, 1000, n).tolist(), "label": int(draw.integers(2))} for n in lengths]


def build_model():
    torch.manual_seed(0)
    shape = DistilBertConfig(
        vocab_size=1000, dim=32, n_layers=2, n_heads=2, hidden_dim=64, max_position_embeddings=64,
        dropout=0.0, attention_dropout=0.0, seq_classif_dropout=0.0,
    )  # fmt: skip
    return DistilBertForSequenceClassification(shape)


def main():
    dist.init_process_group("gloo")
    data, model = build_data(), build_model()
    ddpsched.enable_packing(model)
    loader = ddpsched.StepLoader(
        data, ddpsched.lengths(data), policy="packed", global_batch=32, collate_fn=ddpsched.packed_collate
    )
    model = DistributedDataParallel(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(2):
        for batches, scale in ddpsched.scaled(loader):
            for batch in ddpsched.micro_batches(model, batches):
                labels = batch.pop("labels")
                (scale * F.cross_entropy(model(**batch).logits, labels, reduction="sum")).backward()
            optimizer.step()
            optimizer.zero_grad()
    time.sleep(0.1)  # for gloo's threads, which abort a process that ends before they are done
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
