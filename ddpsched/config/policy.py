"""[policy]: who runs what."""

from itertools import pairwise
from typing import Annotated, Literal

from pydantic import Field, model_validator

from ddpsched.config.base import Positive, Table

Tokens = Annotated[int, Field(gt=0, le=2**40)]
FILLING = ("token_budget", "bins", "pool")
_OWNERS: dict[str, tuple[str, ...]] = {  # keys of [policy] that some kinds alone know
    "batches_per_optimizer_step": FILLING,
    "max_tokens_for_batch": ("token_budget", "pool"),
    "budget": ("token_budget",),
    "same_shape": ("token_budget",),
    "bins": ("bins",),
    "median_batch": ("bins",),
    "per_rank_bins": ("bins",),
    "replacement": ("bins",),
    "pool_size": ("pool",),
    "strategy": ("pool",),
    "sequence_packing": ("pool",),
    "infinite_loop": ("pool",),
}
PACKED_PEERS = ("karmarkar_karp", "karmarkar_karp_equal", "verl", "verl_equal")


class PolicyConfig(Table):
    """Who runs what."""

    kind: Literal["static", "minmax", "balanced", "packed", "token_budget", "bins", "pool", "peer"] = "minmax"
    prefetch: Positive = 16  # minmax: K, samples in each rank's window
    solver: Literal["auto", "enumeration", "threshold", "ilp"] = "auto"  # of minmax
    max_microbatches: Positive = 1  # balanced: M, most micro-batches of a rank in a step; the cost chooses how many
    lookahead: Positive = 1  # balanced, packed: W, global batches planned at once; 1 keeps each as the order drew it
    peer: str | None = None  # another package's batching, named as in `ddpsched plan --peers`
    # token_budget, bins, pool: micro-batches of their own sizes, so a step's global batch varies
    batches_per_optimizer_step: Annotated[int, Field(gt=0, le=2**16)] = 1  # micro-batches of each rank
    # token_budget, pool: of a micro-batch; two numbers bound the prompt's tokens and the text's
    max_tokens_for_batch: Tokens | Annotated[list[Tokens], Field(min_length=2, max_length=2)] | None = None
    budget: Literal["padded", "real"] = "padded"  # token_budget: which tokens count
    same_shape: bool = False  # token_budget: one count and padded length in a step, as pipelines ask
    # [from, to, batch size] of each
    bins: Annotated[list[Annotated[list[Tokens], Field(min_length=3, max_length=3)]], Field(min_length=1)] | None = None
    median_batch: Positive = 64  # bins by default: four quarters of the longest; 2, 1, 3/4 and 1/2 times this
    per_rank_bins: bool = False  # each rank draws its own bin
    replacement: bool = False  # bins drawn by what they hold, again and again: samples repeat and are left out
    pool_size: Positive = 32  # pool: samples each rank chooses from
    strategy: Literal["prefer_closest", "prefer_first"] = "prefer_closest"  # pool
    sequence_packing: bool = False  # pool: rows without padding, filled greedily; strategy is then ignored
    infinite_loop: bool = True  # pool with steps: another epoch follows; false ends after one

    @property
    def packs(self) -> bool:
        """Whether its micro-batches may be rows without padding."""
        return self.kind == "packed" or self.peer in PACKED_PEERS or self.sequence_packing

    @property
    def fills(self) -> bool:
        """Whether micro-batches come in sizes of their own, so that the global batch varies."""
        return self.kind in FILLING

    @model_validator(mode="after")
    def _belong_together(self) -> "PolicyConfig":
        if (self.kind == "peer") != (self.peer is not None):
            raise ValueError(f"kind = {self.kind!r}, peer = {self.peer!r}: a peer is named for kind = 'peer' alone")
        if self.max_microbatches > 1 and self.kind not in ("balanced", "peer"):
            raise ValueError(f"max_microbatches belongs to kind = 'balanced', not {self.kind!r}")
        if self.lookahead > 1 and self.kind not in ("balanced", "packed"):
            raise ValueError(f"lookahead belongs to kind = 'balanced' or 'packed', not {self.kind!r}")
        for key, kinds in _OWNERS.items():
            if self.kind not in kinds and getattr(self, key) != type(self).model_fields[key].default:
                owners = " or ".join(map(repr, kinds))
                raise ValueError(f"{key} belongs to kind = {owners}, not {self.kind!r}")
        self._check_budget()
        self._check_bins()
        return self

    def _check_budget(self) -> None:
        if self.kind == "token_budget" and self.max_tokens_for_batch is None:
            raise ValueError("token_budget needs max_tokens_for_batch, the tokens that a micro-batch may hold")
        if self.kind == "pool" and isinstance(self.max_tokens_for_batch, list):
            raise ValueError("max_tokens_for_batch with two numbers belongs to kind = 'token_budget'; pool takes one")
        if self.same_shape and self.budget == "real":
            raise ValueError("same_shape fixes a padded length for all micro-batches; use budget = 'padded' with it")

    def _check_bins(self) -> None:
        for (_, high, _), (low, _, _) in pairwise(self.bins or []):
            if low != high + 1:
                what = f"a gap: lengths {high + 1} to {low - 1} have" if low > high else "an overlap: some lengths have"
                raise ValueError(f"bins = {self.bins} leave {what} no bin of their own; bin after bin must follow on")
        if self.bins is not None and self.median_batch != type(self).model_fields["median_batch"].default:
            raise ValueError("median_batch sizes the four default bins; bins of your own bring their batch sizes")
        for low, high, _ in self.bins or []:
            if low > high:
                raise ValueError(f"bins: [{low}, {high}, ...] goes from long to short; write [from, to, batch size]")
