"""auto: the fastest of the policies that keep static's gradient, on this device, as measured."""

from collections.abc import Iterator
from typing import ClassVar, Literal

from ddpsched.costs.shape_menu import Shape
from ddpsched.errors import ConfigError
from ddpsched.planning.assignment import Assignment
from ddpsched.planning.policies.balanced import Balanced
from ddpsched.planning.policies.packed import Packed
from ddpsched.planning.policies.static import Static
from ddpsched.planning.policy import Policy
from ddpsched.planning.steps.context import Context
from ddpsched.table import Positive

PLANS_NOTHING = (
    "policy.kind = 'auto' takes the fastest by measured times, and plans nothing itself; use `ddpsched run`, "
    "`ddpsched advise`, or a loader with a calibrated cost; or name one of 'static', 'balanced' and 'packed'"
)


class Auto(Policy):
    """Predict the step time of each candidate on this device, and take the fastest:

        step  =  mean over steps of max_r cost(rank r)  +  what a step takes beside forward and backward

    Costs are seconds, fitted to micro-batches of this model that are measured when the run begins, in about a
    minute, or taken from an earlier measurement of the same model, device, precision and threads; a loader in another
    loop has them from a calibration, which knows no packed rows. The candidates have
    the same global batches, each sample weighing 1/B, so the gradient is static's whichever is taken: static, balanced
    with up to 1, 2, ... micro-batches a rank (the cost then decides how many in each step), and packed where the
    model can. One that is predicted to be slower than static is never taken, and rank 0's choice is that of all ranks.

    Options: ``max_microbatches``, the most micro-batches of a rank that balanced may have. ``packed``, whether packed
    rows are tried. Source: this package.
    """

    kind: Literal["auto"] = "auto"
    max_microbatches: Positive = 4
    """The most micro-batches of a rank that balanced may have; 1, 2, 4, ... up to it are tried."""
    packed: bool = True
    """Try packed rows, if the model can run them."""

    takes: ClassVar[Literal["batches", "windows", "epoch"]] = "batches"

    def candidates(self, packs: bool) -> dict[str, Policy]:
        """Return the policies to choose from, by name, static first. ``packs``: whether the model runs packed rows."""
        most = sorted({*(2**power for power in range(self.max_microbatches.bit_length())), self.max_microbatches})
        found: dict[str, Policy] = {"static": Static()}
        for count in most:
            name = f"balanced, M = {count}" if count > 1 else "balanced"
            found[name] = Balanced(max_microbatches=count)
        return found | ({"packed": Packed()} if packs and self.packed else {})

    def shapes(self, context: Context, most: int) -> list[Shape]:
        raise ConfigError(PLANS_NOTHING)

    def __call__(self, context: Context) -> Iterator[Assignment]:
        raise ConfigError(PLANS_NOTHING)
