"""The target gradient, computed the plain way: one process, one micro-batch after another, losses summed."""

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
import torch.nn.functional as F
from torch.nn.modules.dropout import _DropoutNd

from ddpsched.certify.capture import trainable
from ddpsched.certify.gradient_comparison import TOLERANCES, Likeness, compare
from ddpsched.certify.target import Target, draw_coordinates
from ddpsched.config import RunConfig
from ddpsched.data.samples import Samples
from ddpsched.plan import Ids, StepPlan
from ddpsched.training.collate import NOT_LEARNT, Batch, Collator
from ddpsched.training.masks import enable_mask
from ddpsched.training.model import build_model

# what rounding alone may do to one sample's gradient, relatively: some bits beyond the last that a number has; one
# where products are rounded to bfloat16 and added up in float32
ROUNDING = {"float64": 2.0**-49, "float32": 2.0**-20, "bfloat16": 2.0**-8}
MOST = 0.1  # of a gradient is no rounding, however much cancels
SINGLY = 256  # a batch up to this size is taken apart sample by sample where its gradient is inexplicable
Losses = Callable[[torch.nn.Module, Any], torch.Tensor]  # (model, batch) -> (count,) the losses of what counts


def reference(
    model: torch.nn.Module,
    batches: Iterable[Any],
    losses: Losses,
    ranks: Sequence[int],
    *,
    coordinates: npt.NDArray[np.integer] | None = None,
    names: Sequence[str] = (),
    others: Mapping[str, npt.ArrayLike] | None = None,
    world_size: int | None = None,
    unit: str = "samples",
) -> Target:
    """``sum of all losses / their number``, differentiated; each batch is a part of the target.

    ``losses(model, batch)``: 1-D, one for each item that counts. ``ranks``: who runs each batch; the rest as in
    ``Target``. The model's dropout should be off, and its ``grad`` stays as it was.
    """
    named = trainable(model)
    parameters = [parameter for _, parameter in named]
    ends = np.cumsum([parameter.numel() for parameter in parameters])
    if coordinates is None:
        coordinates = draw_coordinates(int(ends[-1]), np.random.default_rng(0))
    total = torch.zeros(int(ends[-1]), dtype=parameters[0].dtype)
    counts, parts = [], []
    for batch in batches:
        own = losses(model, batch)
        counts.append(own.numel())
        part = np.zeros(len(coordinates))
        if own.numel():
            given = torch.autograd.grad(own.sum(), parameters, allow_unused=True)
            for gradient, end in zip(given, ends.tolist(), strict=True):
                if gradient is None:
                    continue
                flat = gradient.reshape(-1).cpu()
                begin = end - len(flat)
                total[begin:end] += flat
                inside = slice(*np.searchsorted(coordinates, (begin, end)))
                part[inside] = flat.numpy()[coordinates[inside] - begin]
        parts.append(part)
    total /= max(1, sum(counts))
    return Target(
        gradient=total.numpy(), parts=np.stack(parts), coordinates=coordinates, counts=np.array(counts),
        ranks=np.array(ranks), others={name: np.asarray(each) for name, each in (others or {}).items()},
        names=tuple(names), world_size=world_size, unit=unit,
        parameters={name: parameter.numel() for name, parameter in named},
    )  # fmt: skip


def without_dropout(model: torch.nn.Module) -> float:
    """Switch off every dropout of the model, modules' and those that forward reads from the config; the highest rate
    that was on.
    """
    rates = [0.0]

    def silence(owner: Any, name: str) -> None:
        rate = getattr(owner, name)
        if isinstance(rate, float) and rate > 0:
            rates.append(rate)
            setattr(owner, name, 0.0)

    for module in model.modules():
        if isinstance(module, _DropoutNd):
            silence(module, "p")
        for name in [key for key in vars(module) if "drop" in key]:
            silence(module, name)
    config = getattr(model, "config", None)
    for name in [key for key in vars(config) if "drop" in key] if config is not None else []:
        silence(config, name)
    return max(rates)


class RunReference:
    """The model of one of our runs, alone in this process, and the target of any of its steps.

    ``config`` as it was given, ``own`` as it is certified. ``dropout``: the highest rate that the model had.
    """

    def __init__(self, config: RunConfig, own: RunConfig, samples: Samples) -> None:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(own.seed)
            # the config's own dropout, to tell which; weights are drawn the same whatever it is
            model = build_model(config.model, own.data.num_labels, samples.vocab_size, samples.pad_id)
        enable_mask(model, own.model.name, own.model.mask, own.data.max_length)
        self.dropout = without_dropout(model)
        dtype = torch.float64 if own.train.precision == "float64" else torch.float32
        self.model: torch.nn.Module = model.to(dtype).train()
        self._precision = own.train.precision
        self.tolerance = TOLERANCES[own.train.precision]
        self.size = sum(parameter.numel() for _, parameter in trainable(self.model))
        self.over = ("label tokens of the " if own.target == "token_mean" else "") + "global batch"
        self._own, self._samples = own, samples
        labels, device = samples.dataset.train.labels, torch.device("cpu")
        self._collate = Collator(samples.train, labels, samples.pad_id, device, own.model.mask)

    def judge(self, plan: StepPlan, found: np.ndarray, missing: Collection[str] = ()) -> Likeness:
        """Micro-batches as the plan has them; singly, where these do not explain what was found, or rounding might.

        ``missing``: parameters whose ``grad`` was None.
        """
        micro = [(rank, each.ids) for rank, own in enumerate(plan.ranks) for each in own]
        likeness = compare(found, self._target(micro), self.tolerance, missing=missing)
        if likeness.holds or likeness.explained:
            return likeness
        if plan.global_batch > SINGLY:
            unseen = f"single samples were not looked at, as this step has {plan.global_batch:,}; up to {SINGLY} are"
            return replace(
                likeness, cause=f"{likeness.cause} ({unseen}: a lower global_batch tells whether one is lost)"
            )
        target = self._target([(rank, ids[i : i + 1]) for rank, ids in micro for i in range(len(ids))])
        rounding = min(MOST, ROUNDING[self._precision] * target.cancellation)  # more, where samples nearly cancel
        return compare(found, target, self.tolerance, rounding=rounding, missing=missing)

    def _target(self, parts: Sequence[tuple[int, Ids]]) -> Target:
        train, by_token = self._samples.train, self._own.target == "token_mean"
        lengths = [train.lengths(ids) for _, ids in parts]
        names = [f"sample {ids[0]}" for _, ids in parts] if all(len(ids) == 1 for _, ids in parts) else []
        return reference(
            self.model,
            (self._collate(ids) for _, ids in parts),
            self._losses,
            [rank for rank, _ in parts],
            coordinates=draw_coordinates(self.size, np.random.default_rng(self._own.seed)),
            names=names,
            others={
                "tokens": np.array([own.sum() for own in lengths]),
                "padded tokens": np.array([len(own) * own.max() for own in lengths]),
                **({"samples": np.array([len(own) for own in lengths])} if by_token else {}),
            },
            world_size=self._own.world_size,
            unit="tokens" if by_token else "samples",
        )

    def _losses(self, model: torch.nn.Module, batch: Batch) -> torch.Tensor:
        mixed = self._precision == "bfloat16"
        with torch.autocast("cpu", torch.bfloat16, enabled=mixed):
            logits = model(**batch.inputs).logits
        logits = logits.float() if mixed else logits
        if batch.labels.dim() == 1:
            return F.cross_entropy(logits, batch.labels, reduction="none")
        # (count, longest - 1): the losses of next tokens, 0 where these are not learnt
        next_ones = batch.labels[:, 1:]
        tokens = F.cross_entropy(logits[:, :-1].transpose(1, 2), next_ones, reduction="none")
        learnt = next_ones != NOT_LEARNT
        return tokens[learnt] if self._own.target == "token_mean" else tokens.sum(1) / learnt.sum(1).clamp(min=1)
