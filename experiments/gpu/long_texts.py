"""Texts of a hundred to a thousand tokens for a language model, and GPT-2's shape of four layers, made on the spot."""

import json
from pathlib import Path

import numpy as np
from tokenizers import Tokenizer

from ddpsched.data.embedded.sentences import compose, embedded_tokenizer
from experiments.gpu.sizes import Size

MEDIAN, SPREAD = 0.2, 0.7  # of the longest; of the logarithm: a law with a long tail, of no data set


def write_texts(folder: Path, size: Size) -> Path:
    """Write the texts as JSON lines, of embedded sentences put end to end; return the file."""
    draw = np.random.default_rng(0)
    lengths = np.exp(draw.normal(np.log(MEDIAN * size.longest), SPREAD, size.samples // 4))
    words = " ".join(compose(8192, seed=1)[0]).split()
    file = folder / "texts.jsonl"
    with file.open("w", encoding="utf-8") as lines:
        for length in lengths.clip(8, size.longest - 2).astype(int).tolist():  # two tokens are the tokenizer's
            start = int(draw.integers(len(words) - length))
            lines.write(json.dumps({"text": " ".join(words[start : start + length])}) + "\n")
    return file


def write_model(folder: Path, size: Size) -> Path:
    """Write the shape and the tokenizer of the model, which then has random weights; return its folder."""
    from transformers import GPT2Config

    model = folder / "gpt2-4-layers"
    shape = GPT2Config(
        n_layer=size.layers, n_embd=size.width, n_head=size.heads, n_positions=size.longest,
        vocab_size=size.vocabulary, bos_token_id=None, eos_token_id=None,
    )  # fmt: skip
    shape.save_pretrained(model)
    tokenizer: Tokenizer = embedded_tokenizer()
    tokenizer.save(str(model / "tokenizer.json"))
    return model
