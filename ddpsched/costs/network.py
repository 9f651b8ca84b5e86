"""A network: the seconds of an all-reduce by its bytes, and how much of a step's messages its ranks wait for.

A ring all-reduce of n bytes over G ranks takes 2(G-1) turns, in each of which a rank sends n/G bytes (R. Thakur,
R. Rabenseifner, W. Gropp, *Optimization of Collective Communication Operations in MPICH*, 2005):

    seconds(n, G) = 2 (G-1) * (latency + n / G / bandwidth)

Latency and bandwidth are fitted to all-reduces of several sizes, which ``ddpsched calibrate --network`` measures.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
from pydantic import Field, ValidationError

from ddpsched.costs.calibration import Identity, read_measured
from ddpsched.decode import shown
from ddpsched.errors import ConfigError
from ddpsched.table import NonNegative, Positive, PositiveFloat, Ranks, Table, Text, first_fault

KIND: Literal["network"] = "network"
VERSION: Literal[1] = 1
BACKWARD = 2 / 3  # of a micro-batch's time: a backward computes two products of matrices where forward computes one


class Network(Table):
    """A network between ranks, and the messages of gradients that a step of a model sends over it.

    ``messages``: bytes of each all-reduce of a step, in their order; () for none. ``overlaps``: whether messages travel
    while backward still runs; the last one never does. ``identity``, ``world_size``, ``backend``: of the measurement;
    None where latency and bandwidth are given. ``error``: the mean error at sizes left out of the fit, as a share.

    >>> float(Network(latency_s=0.0, bandwidth_bytes_per_s=1e9).all_reduce_s(1e9, world_size=2))
    1.0
    """

    kind: Literal["network"] = KIND
    version: Literal[1] = VERSION
    identity: Identity | None = None
    world_size: Ranks | None = None
    backend: Text | None = None
    latency_s: NonNegative = 0.0
    bandwidth_bytes_per_s: Annotated[PositiveFloat, Field(ge=1)] = 1e9
    messages: tuple[PositiveFloat, ...] = ()
    overlaps: bool = False
    error: NonNegative | None = None
    sizes: tuple[Positive, ...] = ()  # bytes of the all-reduces that were measured
    seconds: tuple[PositiveFloat, ...] = ()  # of each, the median

    @classmethod
    def load(cls, path: str | Path) -> "Network":
        """Read a file. Raises ConfigError that names it, its fault, and the command that writes a new one."""

        def refusal(reason: str) -> ConfigError:
            remedy = "torchrun --nproc-per-node G -m ddpsched calibrate CONFIG --network --output FILE"
            return ConfigError(f"network {path}: {reason}; write one with: {remedy}")

        text, values = read_measured(path, refusal)
        if values.get("kind") != KIND:
            raise refusal(f'kind = {shown(values.get("kind"))}, expected "{KIND}"')
        try:
            return cls.model_validate_json(text)
        except ValidationError as error:
            raise refusal(first_fault(error)) from None

    def __str__(self) -> str:
        size = f"{self.world_size} ranks, {self.backend}" if self.world_size else "given"
        error = "" if self.error is None else f"; mean error at sizes held out {self.error:.1%}"
        return (
            f"{size}: {1e6 * self.latency_s:.4g} us a turn, {self.bandwidth_bytes_per_s / 1e9:.4g} GB/s{error}\n"
            f"a step sends {len(self.messages)} messages, {sum(self.messages) / 1e6:.4g} MB; the last one "
            f"{self.messages[-1] / 1e6 if self.messages else 0:.4g} MB"
        )

    def all_reduce_s(self, num_bytes: Any, world_size: int) -> Any:
        """Return the seconds of one all-reduce; arrays give arrays."""
        turns = 2 * (world_size - 1)
        return turns * (self.latency_s + np.asarray(num_bytes) / world_size / self.bandwidth_bytes_per_s)

    def exposed_s(self, world_size: int, backward_s: Any = 0.0) -> Any:
        """Return the seconds from the slowest rank's last gradient until all ranks have the sum.

        ``backward_s``: of the slowest rank's last backward, scalar or (steps,), behind which messages hide. The last
        message begins when that has ended; those before it are one after another, so at best all of that time is
        theirs:

            max(seconds of the last message, seconds of all messages - backward_s)
        """
        if not self.messages or world_size == 1:
            return np.zeros(np.shape(backward_s))[()]
        each = self.all_reduce_s(self.messages, world_size)
        hidden = np.asarray(backward_s) if self.overlaps else np.zeros(np.shape(backward_s))
        return np.maximum(each[-1], each.sum() - hidden)[()]


def fit_network(sizes: Sequence[int], seconds: Sequence[float], world_size: int) -> tuple[float, float]:
    """Return latency and bandwidth of these all-reduces of a group, by relative error; neither is negative.

    ``sizes``: bytes. ``seconds``: one of each size.
    """
    from scipy.optimize import nnls

    turns, measured = 2 * (world_size - 1), np.asarray(seconds, dtype=np.float64)
    columns = turns * np.array([np.ones(len(measured)), np.asarray(sizes) / world_size]).T / measured[:, None]
    norm = np.linalg.norm(columns, axis=0)
    latency, inverse = nnls(columns / norm, np.ones(len(measured)))[0] / norm
    return float(latency), float(min(1e15, 1 / inverse if inverse > 0 else 1e15))
