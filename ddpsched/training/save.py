"""The trained model and its tokenizer as a folder that transformers' ``from_pretrained`` reads."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch.distributed.tensor import DTensor
from transformers import PreTrainedTokenizerFast
from transformers.utils import logging

from ddpsched.data.config import DataConfig
from ddpsched.data.tokenizer import load_tokenizer
from ddpsched.own_folder import remove
from ddpsched.recovery.synced_file import sync
from ddpsched.shortage import system_errors

ROLES = {"pad_token": ("[PAD]", "<pad>"), "unk_token": ("[UNK]", "<unk>")}  # those that a tokenizer may name


def save_pretrained(model: torch.nn.Module, data: DataConfig, path: Path, writes: bool = True) -> None:
    """Write ``model`` and the tokenizer of ``data`` to the folder ``path``, in one piece: aside, then renamed.

    ``writes``: whether this process does; the ranks of a sharded model all call it, as each has a share of the weights.
    """
    weights = {name: _whole(tensor) for name, tensor in model.state_dict().items()}
    if not writes:
        return
    aside = path.with_name(f"{path.name}.part")
    for folder in (aside, path):
        remove(folder)
    try:
        with system_errors(aside):
            _write(model, weights, data, aside)
        for file in (*aside.iterdir(), aside):
            sync(file)
        aside.rename(path)
    except BaseException:
        remove(aside)
        raise


def _write(model: torch.nn.Module, weights: dict[str, torch.Tensor], data: DataConfig, folder: Path) -> None:
    hugging_face: Any = model
    with _without_progress():
        hugging_face.save_pretrained(folder, state_dict=weights)
    tokenizer = load_tokenizer(data.tokenizer)
    known = tokenizer.get_vocab()
    named = {role: next((each for each in tokens if each in known), None) for role, tokens in ROLES.items()}
    wrapped = PreTrainedTokenizerFast(tokenizer_object=tokenizer, model_max_length=data.max_length, **named)
    wrapped.save_pretrained(folder)


@contextmanager
def _without_progress() -> Iterator[None]:
    shown = logging.is_progress_bar_enabled()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        if shown:
            logging.enable_progress_bar()


def _whole(tensor: Any) -> torch.Tensor:
    return tensor.full_tensor().cpu() if isinstance(tensor, DTensor) else tensor
