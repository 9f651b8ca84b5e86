"""split_samples: a transformers model and a StepLoader that run samples in parts on several ranks."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from transformers.models.auto.modeling_auto import (
    MODEL_FOR_CAUSAL_LM_MAPPING_NAMES,
    MODEL_FOR_SEQUENCE_CLASSIFICATION_MAPPING_NAMES,
)

from ddpsched.errors import ConfigError, DataError
from ddpsched.parts import Part
from ddpsched.step_plan import StepPlan
from ddpsched.training.clock import Clock
from ddpsched.training.collate import CPU, NOT_LEARNT
from ddpsched.training.model import num_positions
from ddpsched.training.packed import enable_packing
from ddpsched.training.part_groups import PartGroups
from ddpsched.training.part_rows import PartRow, positions_of
from ddpsched.training.split import enable_splitting
from ddpsched.training.sync.synchroniser import CollectiveLog

if TYPE_CHECKING:
    from ddpsched.integrations.step_loader import StepLoader

NEXT = "shift_labels"  # transformers' name of labels in the places where they are predicted
TIMEOUT_S = 600.0
LEARNS = {*MODEL_FOR_CAUSAL_LM_MAPPING_NAMES.values(), *MODEL_FOR_SEQUENCE_CLASSIFICATION_MAPPING_NAMES.values()}
KNOWN = {"input_ids", "position_ids", "labels", NEXT, "packing"}  # keys of a batch that can be cut


@contextmanager
def split_samples(model: Any, loader: StepLoader, max_groups: int = 64) -> Iterator[StepLoader]:
    """Let ``model`` attend to whole samples of which this rank has a part, and ``loader`` yield such parts.

        loader = StepLoader(
            data, lengths, policy={"kind": "split", "max_tokens": 8192}, global_batch=64,
            collate_fn=ddpsched.packed_collate,
        )
        with ddpsched.split_samples(model, loader):
            steps = ddpsched.scaled(loader, count=lambda batch: int((batch["shift_labels"] != -100).sum()))
            for batches, scale in steps:
                for batch in ddpsched.micro_batches(ddp, batches):
                    labels = batch.pop("shift_labels")
                    loss = F.cross_entropy(ddp(**batch).logits[0], labels[0], reduction="sum")
                    (scale * loss).backward()
                optimizer.step()
                optimizer.zero_grad()

    ``model``: of transformers, before or after DDP wraps it, whose attention is SDPA. In each attention the keys and
    values of a split sample are gathered over its ranks, with their gradients. ``loader``: with policy "split", and a
    ``collate_fn`` that returns what ``packed_collate`` does; its samples come as rows without padding, a part as a row
    of its own tokens, at their positions in the sample. Labels of tokens are in "shift_labels", (1, tokens), where they
    are predicted: the next token of the sample, whichever rank has it. A classifier has "labels", -100 at all parts but
    the one that its head reads. ``max_groups``: process groups of ranks that are kept at a time.

    Ranks run a step's batches in the order in which they are yielded, each forward and backward before the next:
    another order may wait for ever.

    Raises ConfigError for a model that cannot, found by computing, has dropout, or neither predicts the next token nor
    classifies, for samples that are longer than its positions, and for a loader of another policy.
    """
    if loader.plan_source.policy.kind != "split":
        raise ConfigError(
            f"split_samples: the loader's policy is {loader.plan_source.policy.kind!r}; use policy='split', or leave "
            "split_samples out"
        )
    inner = model.module if isinstance(model, DistributedDataParallel) else model
    name, longest = type(inner).__name__, int(loader.plan_source.longest)
    if not any(each.__name__ in LEARNS for each in type(inner).__mro__):
        raise ConfigError(
            f"split_samples: {name} is no model of transformers that predicts the next token or classifies sequences, "
            "so where its labels belong in parts is not known; use policy='packed'"
        )
    positions = num_positions(inner)
    if positions is not None and longest > positions:
        raise ConfigError(
            f"split_samples: a sample has {longest} tokens, and {name} has {positions} positions; truncate the samples "
            f"to {positions}, or take a model with more"
        )
    enable_packing(inner, name)
    enable_splitting(inner, name, longest)
    loader.parts = PartBatches(max_groups)
    try:
        yield loader
    finally:
        loader.parts.close()
        loader.parts = None


class PartBatches:
    """The batches of a step as a model takes them: each part with the gather over its ranks."""

    def __init__(self, max_groups: int) -> None:
        self._max_groups = max_groups
        self._groups: PartGroups | None = None

    def of_step(self, plan: StepPlan, batches: list[Any], rank: int) -> list[Any]:
        """Return the batches of this rank, each with labels where they are predicted; all ranks call it together.

        Raises ConfigError where several ranks have no process group, DataError for batches of another form.
        """
        shares: Mapping[int, Any] = {}
        if plan.parts:
            if not dist.is_initialized():
                raise ConfigError(
                    "split_samples: parts of a sample on several ranks need torch's process group; initialise it"
                )
            self._groups = self._groups or PartGroups(dist.get_rank(), self._max_groups, TIMEOUT_S)
            shares = self._groups.shares(plan, CPU, CollectiveLog(Clock(CPU)))
        return [
            _shifted(batch) if micro.part is None else _cut(batch, micro.part, *shares[int(micro.ids[0])][1:])
            for micro, batch in zip(plan.ranks[rank], batches, strict=True)
        ]

    def whole(self, batch: Any) -> dict[str, Any]:
        """Return a row of whole samples, its labels of tokens where they are predicted."""
        return _shifted(batch)

    def close(self) -> None:
        """Give the process groups back."""
        if self._groups is not None:
            self._groups.close()


def _shifted(batch: Any) -> dict[str, Any]:
    """Return a row of whole samples, its labels of tokens where they are predicted."""
    given = _checked(batch)
    if given["labels"].dim() == 2:
        labels = given.pop("labels")
        given[NEXT] = torch.nn.functional.pad(labels[:, 1:], (0, 1), value=NOT_LEARNT)
    return given


def _cut(batch: Any, part: Part, gather: Any) -> dict[str, Any]:
    """Return a part of the row of a whole sample."""
    given = _shifted(batch)
    if others := [name for name in given if name not in KNOWN]:
        raise DataError(
            f"split_samples: a batch has {', '.join(map(repr, others))} beside what packed_collate makes, and how a "
            "part of it is cut is not known; leave it out of the collate_fn"
        )
    if "labels" in given and given["labels"].is_floating_point():
        raise DataError("split_samples: labels are numbers of a regression, which parts cannot leave out; give classes")
    positions = torch.as_tensor(positions_of([part]))
    if int(positions.max()) >= given["input_ids"].shape[1]:
        raise DataError(
            f"split_samples: a sample has {given['input_ids'].shape[1]} tokens, and a part of it ends at "
            f"{int(positions.max()) + 1}: give the loader the lengths that the samples have"
        )
    cut = {name: given[name][:, positions] for name in ("input_ids", "position_ids", NEXT) if name in given}
    if "labels" in given:  # of a classifier, whose head reads the first token
        cut["labels"] = given["labels"] if part.is_counted else torch.full_like(given["labels"], NOT_LEARNT)
    offsets = torch.as_tensor(np.array([0, part.tokens], dtype=np.int32))
    return {**cut, "packing": PartRow(part.ranges, gather, offsets)}


def _checked(batch: Any) -> dict[str, Any]:
    needed = ("input_ids", "position_ids", "labels", "packing")
    if not isinstance(batch, Mapping) or any(name not in batch for name in needed):
        held = ", ".join(map(repr, batch)) if isinstance(batch, Mapping) else type(batch).__name__
        raise DataError(
            f"split_samples: a batch needs {', '.join(map(repr, needed))}, as packed_collate makes them; it has {held}"
        )
    return dict(batch)
