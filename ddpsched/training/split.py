"""Split samples in a model and on virtual ranks: what a model must be for them, and ranks that share one process."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch

from ddpsched.errors import ConfigError
from ddpsched.parts import Part, finish_times, head_and_tail
from ddpsched.step_plan import Microbatch, StepPlan
from ddpsched.training.clock import Clock
from ddpsched.training.collate import Collator, pad
from ddpsched.training.model import exact_logits, gap, objection, some_rows
from ddpsched.training.part_rows import Gather, JoinedParts, positions_of
from ddpsched.training.rank_step import RankStep

SECONDS = ("data", "forward", "backward")  # spans of a micro-batch


def enable_splitting(model: Any, name: str, max_length: int) -> None:
    """Check that ``model``, which runs packed rows, runs samples in parts; ``name``: for messages.

    Raises ConfigError for a model with dropout, which executors could not draw alike for parts, for one whose rotary
    positions depend on how long a row is, and for one whose logits of a sample in parts are not those of the whole,
    found by computing both.
    """
    if rates := _dropouts(model):
        raise ConfigError(
            f"policy.kind = 'split' runs a sample on several ranks, whose dropout is drawn on each: model {name!r} has "
            f"{', '.join(rates)}; set model.dropout = 0, or each of them in the model's config"
        )
    by_length = [kind for kind in _rope_kinds(model) if "dynamic" in kind or kind == "longrope"]
    if by_length:  # as transformers' dynamic_rope_update has it
        raise ConfigError(
            f"model {name!r} cannot run split samples: its rotary positions ({by_length[0]!r}) depend on the longest "
            "position of a row, which parts of a sample do not share; use policy.kind = 'packed'"
        )
    differs, fails = "its logits of a sample in parts differ from those of the whole", "a sample in parts fails in it"
    if (why := objection(lambda: _compare(model, max_length), differs, fails)) is not None:
        raise ConfigError(f"model {name!r} cannot run split samples: {why}; use policy.kind = 'packed'")


def _dropouts(model: Any) -> list[str]:
    """Return what a model draws at random while it trains, with the rates: layers, and numbers that modules keep."""
    rates = set[str]()
    for module in model.modules():
        if isinstance(module, torch.nn.modules.dropout._DropoutNd):
            rates |= {f"dropout {module.p:g}"} if module.p > 0 else set()
            continue
        for key, value in vars(module).items():
            if "drop" in key and isinstance(value, float) and value > 0:
                rates.add(f"{key} {value:g}")
    return sorted(rates)


def _rope_kinds(model: Any) -> list[str]:
    """Return the kinds of rotary positions that the modules of a model have; some have one for each kind of layer."""
    kinds = [getattr(module, "rope_type", None) for module in model.modules()]
    named = [list(kind.values()) if isinstance(kind, dict) else [kind] for kind in kinds]
    return sorted({str(kind) for each in named for kind in each if kind})


class _Rows:
    """Some rows as a table, whose every token is learnt."""

    def __init__(self, rows: Sequence[np.ndarray]) -> None:
        self._rows = rows

    def row(self, id: int) -> Any:
        return self._rows[id]

    labels = row


def _compare(model: Any, max_length: int) -> float:
    """Return the largest gap between logits of whole samples, padded, and of the same samples in parts."""
    rows, device = some_rows(model, max_length), model.device
    expected = exact_logits(model, **pad(rows, np.arange(len(rows)), 0, device).inputs)
    collate = Collator(_Rows(rows), np.zeros(len(rows), dtype=np.int64), 0, device)
    found, wanted = [], []
    for id, row in enumerate(rows):
        parts = head_and_tail(len(row), min(3, len(row)))
        logits = exact_logits(model, **collate.parts(id, parts, JoinedParts(parts, device)).inputs)
        if logits.dim() == 2:
            found.append(logits)
            wanted.append(expected[id : id + 1])
        else:
            found.append(logits[0])
            wanted.append(expected[id, torch.as_tensor(positions_of(parts), device=device)])
    return gap(torch.cat(found), torch.cat(wanted))


def joined(
    plan: StepPlan, device: torch.device
) -> tuple[dict[int, tuple[Sequence[Part], Gather]], Sequence[Sequence[Microbatch]]]:
    """Return how virtual ranks run the step: a split sample's parts in one row, in the turn of the rank that counts it.

    Their gradient is that of the parts on their ranks, which are added up. Returns the parts and the gather of each
    split sample, by id, and the micro-batches of each rank's turn.
    """
    shares: dict[int, tuple[Sequence[Part], Gather]] = {}
    for id, placed in plan.parts.items():
        parts = sorted((part for _, part in placed), key=lambda part: part.index)
        shares[id] = parts, JoinedParts(parts, device)
    if not shares:
        return shares, plan.ranks
    return shares, [[micro for micro in rank if micro.part is None or micro.part.is_counted] for rank in plan.ranks]


def share_losses(plan: StepPlan, done: Sequence[RankStep], targets: Callable[[int, Part], int]) -> None:
    """Give each rank of a split sample its share of the loss that all parts had in one row, in place.

    ``targets``: of a sample's part, the label tokens that it predicts.
    """
    for rank, micros in enumerate(plan.ranks):
        run = [micro for micro in micros if micro.part is None or micro.part.is_counted]
        for place, micro in enumerate(run):
            if micro.part is None:
                continue
            id = int(micro.ids[0])
            each = [(other, targets(id, part)) for other, part in plan.parts[id]]
            loss, total = done[rank].losses[place], max(1, sum(count for _, count in each))
            for other, count in each:
                if other == rank:
                    done[rank].losses[place] = loss * (count / total)
                else:
                    done[other].losses.append(loss * (count / total))


def share_times(plan: StepPlan, done: Sequence[RankStep], measured: Sequence[dict[str, Any]], clock: Clock) -> float:
    """Give each rank of a split sample its share of the time that all parts took; return when the last rank is done.

    ``measured``: columns of each rank's record, changed in place. Parts cost alike, and begin together; what
    ranks would take to gather keys and values is not in it.
    """
    took: dict[int, dict[str, float]] = {}
    own: list[list[dict[str, float]]] = []
    for rank, micros in enumerate(plan.ranks):
        spans = iter(zip(*(done[rank].spans[name] for name in SECONDS), strict=True))
        own.append([])
        for micro in micros:
            if micro.part is None or micro.part.is_counted:
                seconds = {name: clock.seconds(*span) for name, span in zip(SECONDS, next(spans), strict=True)}
                own[-1].append(seconds)
                if micro.part is not None:
                    took[int(micro.ids[0])] = {name: each / micro.part.count for name, each in seconds.items()}
    ranks: list[list[tuple[float, int | None]]] = []
    rest = []
    for rank, micros in enumerate(plan.ranks):
        of_turn = {name: sum(each[name] for each in own[rank]) for name in SECONDS}
        whole, shared = iter(own[rank]), dict.fromkeys(SECONDS, 0.0)
        ranks.append([])
        for micro in micros:
            seconds = next(whole) if micro.part is None or micro.part.is_counted else {}
            seconds = seconds if micro.part is None else took[int(micro.ids[0])]
            ranks[-1].append((sum(seconds.values()), None if micro.part is None else int(micro.ids[0])))
            shared = {name: shared[name] + seconds[name] for name in SECONDS}
        rest.append(measured[rank]["compute_s"] - sum(of_turn.values()))
        measured[rank]["compute_s"] += sum(shared.values()) - sum(of_turn.values())
        measured[rank] |= {f"{name}_s": shared[name] for name in SECONDS}
    return max(end + more for end, more in zip(finish_times(ranks), rest, strict=True))
