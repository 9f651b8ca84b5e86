"""A small classifier with every kind of parameter that a synchroniser can get wrong."""

from dataclasses import dataclass

import torch

VOCABULARY, WIDTH = 20, 8


@dataclass
class Output:
    """A model output in which DDP finds tensors."""

    logits: torch.Tensor


class Toy(torch.nn.Module):
    """A classifier whose embedding is also its decoder.

    ``sometimes``: used by a batch whose first token is even. ``unused``: used by none. ``seen``: a buffer that forward
    changes. ``turned``: its memory is not in the order of its shape. ``layers``: a list, whose entries fully_shard
    takes as units.
    """

    def __init__(self) -> None:
        super().__init__()
        self.embedding = torch.nn.Embedding(VOCABULARY, WIDTH)
        self.layers = torch.nn.ModuleList(torch.nn.Linear(WIDTH, WIDTH) for _ in range(2))
        self.sometimes = torch.nn.Linear(WIDTH, WIDTH)
        self.unused = torch.nn.Linear(3, 5)
        self.decoder = torch.nn.Linear(WIDTH, VOCABULARY, bias=False)
        self.decoder.weight = self.embedding.weight
        self.turned = torch.nn.Parameter(0.1 * torch.randn(3, VOCABULARY).t())
        self.register_buffer("seen", torch.zeros(()))
        self.register_buffer("constant", torch.ones(2))

    def forward(self, input_ids: torch.Tensor, attention_mask: torch.Tensor) -> Output:
        hidden = self.embedding(input_ids)
        hidden = (hidden * attention_mask[..., None].to(hidden.dtype)).sum(1)
        for layer in self.layers:
            hidden = torch.tanh(layer(hidden))
        if int(input_ids[0, 0]) % 2 == 0:
            hidden = hidden + self.sometimes(hidden)
        if self.training:
            self.seen += len(input_ids)
        return Output(self.decoder(hidden) @ self.turned)


def toy(dtype: torch.dtype) -> Toy:
    torch.manual_seed(0)
    return Toy().to(dtype)
