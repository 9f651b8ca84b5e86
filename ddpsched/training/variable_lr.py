"""Learning rates: a warm-up by the number of the step, and a factor for the step's size on any torch scheduler's."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from contextlib import suppress
from copy import deepcopy
from numbers import Real
from typing import Any

import torch
from torch.optim.lr_scheduler import LRScheduler

from ddpsched.errors import ConfigError


def linear_warmup(total_steps: int, warmup: float) -> Callable[[int], float]:
    """Return a rule that rises linearly over the first ``warmup`` share of the steps, then falls linearly to 0.

    >>> rule = linear_warmup(10, 0.2)
    >>> [round(rule(step), 2) for step in (0, 1, 2, 6, 9)]
    [0.5, 1.0, 1.0, 0.5, 0.12]
    """
    rise = round(total_steps * warmup)

    def factor(step: int) -> float:
        if step < rise:
            return (step + 1) / rise
        return max(0.0, (total_steps - step) / max(1, total_steps - rise))

    return factor


def linear(size: float, reference: float) -> float:
    """Return size / reference: a step over k times as much moves k times as far, as k small SGD steps would.

    ``size``, ``reference``: > 0, in the same unit, samples or tokens of a global batch.
    Source: Goyal et al., Accurate, Large Minibatch SGD (2017), arXiv:1706.02677.

    >>> linear(10, 2), linear(1, 2)
    (5.0, 0.5)
    """
    return size / reference


def square_root(size: float, reference: float) -> float:
    """Return sqrt(size / reference): it keeps the variance of the update's noise, and suits Adam's normalised steps.

    Units as in :func:`linear`. Source: Krizhevsky, One weird trick (2014), arXiv:1404.5997; for Adam: Malladi et al.,
    On the SDEs and Scaling Rules for Adaptive Gradient Algorithms (2022), arXiv:2205.10287.

    >>> square_root(8, 2), square_root(1, 4)
    (2.0, 0.5)
    """
    return math.sqrt(size / reference)


# by the names that a config's lr.kind has for them
RULES: dict[str, Callable[[float, float], float]] = {"linear": linear, "sqrt": square_root}
NEEDED = ("optimizer", "get_last_lr", "step", "state_dict", "load_state_dict")  # of a base scheduler


class VariableBatchSizeLR:
    """The rates of ``base``, a torch scheduler, times ``rule``'s factor for the size of the step at hand.

        lr_g = base_g * f        f = size / reference ("linear") or its square root ("sqrt")

    for each parameter group g. ``reference``: the size that base's rates are meant for;
    it and the sizes are in one unit, samples or tokens, of the *global* batch, the same
    on all ranks. Sizes need not be known before their step.

    A step is ``scale(size)``, ``optimizer.step()``, ``step()``. Between ``step()`` and
    the next ``scale()`` base's own rates are in force, as for a step of the reference's
    size. Base alone decides its rates, and never sees a scaled one: schedulers
    such as ExponentialLR take the next rate from the group's, where factors would pile
    up. So call this object's ``step``, not base's; one that advances once an epoch, or
    ReduceLROnPlateau's ``step(metric)``, may have many ``scale()`` before it. Momentum
    and whatever else base moves in the groups is left alone. (AdamW decays weights by
    lr * weight_decay, so by the scaled rate.)

    *Resuming*: build the optimizer, base and this anew, load the optimizer's state, then
    this one's, which brings base's. A base with its state loaded may be wrapped as well.
    Rates always come from ``base.get_last_lr()``, as the optimizer's state may have been
    saved while its groups' were scaled.

    Raises ValueError for a reference that is not a number above 0, an unknown rule, or a
    base that is not a scheduler, is a ``VariableBatchSizeLR`` or knows other groups than
    its optimizer has.

    Source: DeepSpeed's class of the same name, whose sizes are a list for the whole
    epoch, given beforehand; the rules' own sources are in :func:`linear` and :func:`square_root`.

    A budget of 30 tokens holds 10 samples of 3 tokens, or 4 of 7:

    >>> optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=1e-3)
    >>> base = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1.0)
    >>> schedule = VariableBatchSizeLR(base, reference=2)
    >>> for num_samples in (10, 4):
    ...     schedule.scale(num_samples)
    ...     print(schedule.get_last_lr())
    ...     optimizer.step()
    ...     schedule.step()
    [0.005]
    [0.002]
    """

    def __init__(self, base: LRScheduler, reference: float, rule: str = "linear") -> None:
        missing = [name for name in NEEDED if not hasattr(base, name)]
        if missing:
            raise ValueError(f"base = {base!r} is not a torch scheduler: it lacks {', '.join(missing)}")
        if isinstance(base, VariableBatchSizeLR):
            raise ValueError("base is a VariableBatchSizeLR, and two would scale twice; wrap the scheduler within it")
        if rule not in RULES:
            raise ValueError(f"rule = {rule!r}: the known ones are {', '.join(map(repr, RULES))}")
        self.base, self.optimizer, self.rule = base, base.optimizer, rule
        self.reference = _positive("reference", reference)
        self.size: float | None = None  # of the step whose rates are in force; None: base's own are
        self._rates = self._read_rates()
        self._apply()  # a resumed optimizer may have come with scaled rates

    def scale(self, size: float) -> None:
        """Put the rates of a step over ``size`` in force, before ``optimizer.step()``; may be called again.

        ``size``: > 0, in reference's unit. Raises ValueError, with the rates left as they were, for anything else.
        """
        checked = _positive("size", size)
        factor = RULES[self.rule](checked, self.reference)
        if not 0 < factor < math.inf:
            raise ValueError(
                f"size / reference = {size!r} / {self.reference} is beyond what a float can hold; give both in one unit"
            )
        self.size = checked
        self._apply()

    def step(self, *args: Any, **kwargs: Any) -> None:
        """Put base's rates back in force after ``optimizer.step()``, then call ``base.step(*args, **kwargs)``."""
        self.size = None
        self._apply()
        self.base.step(*args, **kwargs)
        self._rates = self._read_rates()

    def get_last_lr(self) -> list[float]:
        """Return the rates now in force, one per parameter group."""
        factor = 1.0 if self.size is None else RULES[self.rule](self.size, self.reference)
        return [rate * factor for rate in self._base_rates()]

    def state_dict(self) -> dict[str, Any]:
        """Return reference, rule, the size in force and base's state: plain values, JSON's where base's are."""
        size, self.size = self.size, None
        self._apply()  # base may remember tensors that are the groups' own
        base = deepcopy(self.base.state_dict())
        self.size = size
        self._apply()
        return {**self._identity(), "size": size, "base": base}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue where ``state`` was taken, with the rates that were in force there.

        Raises ConfigError, with everything left as it was, for a state of another scheduler, reference or rule.
        """
        identity = self._identity()
        needed = {*identity, "size", "base"}
        if not isinstance(state, Mapping) or set(state) != needed or not isinstance(state["base"], Mapping):
            given = sorted(map(str, state)) if isinstance(state, Mapping) else repr(state)
            raise ConfigError(f"the state of a VariableBatchSizeLR needs exactly {sorted(needed)}, got {given}")
        differs = [f"{key} = {state[key]!r}, here {value!r}" for key, value in identity.items() if state[key] != value]
        if differs:
            raise ConfigError(
                f"the state is of another VariableBatchSizeLR: {'; '.join(differs)}; build it as it was there"
            )
        before = self.state_dict()["base"]
        try:
            size = None if state["size"] is None else _positive("size", state["size"])
            self.base.load_state_dict(dict(state["base"]))  # a copy: some of torch's pop from it
            rates = self._read_rates()
            if len(rates) != len(self._rates):
                raise ValueError(f"rates for {len(rates)} parameter groups, here there are {len(self._rates)}")
        except Exception as error:  # torch does not check a state, it trips over it in one way or another
            self.base.load_state_dict(before)
            raise ConfigError(f"the state does not fit: {type(error).__name__}: {error}") from error
        self.size, self._rates = size, rates
        self._apply()

    def _identity(self) -> dict[str, Any]:
        return {"scheduler": type(self.base).__name__, "reference": self.reference, "rule": self.rule}

    def _read_rates(self) -> list[float]:
        """Return base's current rates as numbers; to be called when base has just set them.

        Some versions of torch keep a group's own tensor as the last rate, which is scaled in place.
        """
        return [float(rate) for rate in self.base.get_last_lr()]

    def _base_rates(self) -> list[float]:
        """Return base's current rates, one per group; never read from the groups, which may hold scaled ones."""
        if len(self._rates) != len(self.optimizer.param_groups):
            raise ValueError(
                f"base has rates for {len(self._rates)} parameter groups, its optimizer has "
                f"{len(self.optimizer.param_groups)}; build the scheduler when all groups are there"
            )
        return self._rates

    def _apply(self) -> None:
        for group, rate in zip(self.optimizer.param_groups, self.get_last_lr(), strict=True):
            if isinstance(group["lr"], torch.Tensor):
                group["lr"].fill_(rate)  # the tensor itself is what a compiled or captured optimizer reads
            else:
                group["lr"] = rate


def _positive(name: str, value: Any) -> float:
    """Return ``value`` as a float; raise ValueError where it is not a finite number above 0."""
    with suppress(OverflowError):  # an int beyond floats
        if isinstance(value, Real) and not isinstance(value, bool) and 0 < float(value) < math.inf:
            return float(value)
    raise ValueError(f"{name} = {value!r}: give a finite number above 0")
