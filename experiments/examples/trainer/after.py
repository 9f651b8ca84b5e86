"""A text classifier under transformers' Trainer, its samples divided by length.

Run it: torchrun --nproc-per-node 2 after.py
"""

import time

import numpy as np
import torch
from torch.nn.utils.rnn import pad_sequence
from transformers import DistilBertConfig, DistilBertForSequenceClassification, Trainer, TrainingArguments

from ddpsched.integrations.transformers import balance


def build_data():
    """Return sentences as token ids, of very different lengths, each with a label."""
    draw = np.random.default_rng(0)
    lengths = draw.lognormal(2.2, 0.7, 330).clip(3, 60).astype(int)
    return [{"input_ids": draw.integers(1, 1000, n).tolist(), "label": int(draw.integers(2))} for n in lengths]


def collate(samples):
    ids = pad_sequence([torch.tensor(sample["input_ids"]) for sample in samples], batch_first=True)
    labels = torch.tensor([sample["label"] for sample in samples])
    return {"input_ids": ids, "attention_mask": (ids > 0).long(), "labels": labels}


def build_model():
    torch.manual_seed(0)
    shape = DistilBertConfig(
        vocab_size=1000, dim=32, n_layers=2, n_heads=2, hidden_dim=64, max_position_embeddings=64,
        dropout=0.0, attention_dropout=0.0, seq_classif_dropout=0.0,
    )  # fmt: skip
    return DistilBertForSequenceClassification(shape)


def main():
    arguments = TrainingArguments(
        "outputs/trainer", num_train_epochs=2, per_device_train_batch_size=16, optim="sgd", learning_rate=0.1,
        lr_scheduler_type="constant", max_grad_norm=0.0, save_strategy="no", report_to=[], use_cpu=True,
        remove_unused_columns=False, disable_tqdm=True, logging_strategy="no", dataloader_pin_memory=False,
    )  # fmt: skip
    trainer = balance(Trainer(build_model(), arguments, collate, build_data()))
    trainer.train()
    time.sleep(0.1)  # for gloo's threads, which abort a process that ends before they are done


if __name__ == "__main__":
    main()
