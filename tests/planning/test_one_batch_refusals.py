"""balance refuses what it cannot divide, with the value, what is allowed, and a remedy."""

from collections.abc import Callable
from typing import Any

import pytest

from ddpsched import balance
from ddpsched.errors import ConfigError, DataError, InfeasibleError

BAD: dict[str, tuple[Callable[[], Any], type[Exception], str]] = {
    "no lengths": (lambda: balance([], 2), DataError, r"lengths of shape \(0,\); give the tokens of each sample"),
    "a table": (lambda: balance([[1, 2]], 2), DataError, r"lengths of shape \(1, 2\)"),
    "lists of ids": (lambda: balance([[1, 2], [3]], 2), DataError, "the first one is a list of several values"),
    "fractions": (lambda: balance([1.5, 2.0], 2), DataError, "lengths are float64, needs integers"),
    "texts": (lambda: balance(["a", "b"], 2), DataError, r"is of texts; give ddpsched\.lengths"),
    "negative": (lambda: balance([3, -1, 0], 2), DataError, "length 1 is -1, needs 1 to .*; 2 of 3 are like this"),
    "no ranks": (lambda: balance([3], 0), ConfigError, "world_size = 0, needs an integer from 1 to 2"),
    "a rank of text": (lambda: balance([3], "2"), ConfigError, "world_size = '2', needs"),
    "no tokens": (lambda: balance([3], 1, max_tokens=0), ConfigError, "max_tokens = 0, needs"),
    "fewer samples": (
        lambda: balance([3, 4], 3),
        InfeasibleError,
        "2 samples for 3 ranks, .* give stand_ins=True, .* or at most 2 ranks",
    ),
    "fewer groups": (lambda: balance([3, 4, 5], 3, groups=[0, 0, 1]), InfeasibleError, "2 groups for 3 ranks"),
    "a long sample": (
        lambda: balance([3, 9], 2, max_tokens=8),
        InfeasibleError,
        "sample 1 has 9 tokens, but max_tokens = 8; cut it, or raise max_tokens to 9",
    ),
    "a large group": (
        lambda: balance([3, 4, 2], 1, groups=[0, 0, 1], groups_stay="microbatch", max_tokens=6),
        InfeasibleError,
        "group 0 has 7 tokens, but max_tokens = 6; let it stay on a rank",
    ),
    "groups that overlap": (
        lambda: balance([3, 4, 2], 1, groups=[[0, 1], [1, 2]]),
        DataError,
        "groups 0 and 1 overlap, in position 1",
    ),
    "a group elsewhere": (lambda: balance([3, 4], 1, groups=[[0, 2]]), DataError, "has position 2, needs integers"),
    "groups of others": (lambda: balance([3, 4], 1, groups=[0]), DataError, "groups of 1 samples, but there are 2"),
    "a named group": (
        lambda: balance([3, 4, 2], 1, groups=["a", "a", "b"], groups_stay="microbatch", max_tokens=6),
        InfeasibleError,
        "group 'a' has 7 tokens",
    ),
    "no group": (lambda: balance([3, 4], 1, groups=[0, None]), DataError, r"groups\[1\] = None is no group"),
    "NaN for a group": (lambda: balance([3, 4], 1, groups=[0, float("nan")]), DataError, r"groups\[1\] = nan is no"),
    "a number for groups": (lambda: balance([3, 4], 1, groups=8), DataError, "groups = 8, needs a name for each of 2"),
    "names as positions": (lambda: balance([3, 4], 1, groups=[("a", 1)]), DataError, "position 'a', needs integers"),
    "a number for a cost": (lambda: balance([3, 4], 1, cost=3), ConfigError, "cost = 3, needs a CostModel"),
    "too costly": (lambda: balance([2**31] * 16, 2, gamma=1.0), ConfigError, "would cost up to 7.38e.19 units"),
    "few levels": (
        lambda: balance([6] * 6 + [1, 1], 2, max_tokens=10, max_microbatches=2, lockstep=True),
        InfeasibleError,
        "max_microbatches = 2, but lockstep needs 3 .* raise max_microbatches to 3",
    ),
    "levels that cannot be filled": (
        lambda: balance([8] * 5, 2, max_tokens=10, lockstep=True),
        InfeasibleError,
        "5 samples or groups cannot fill 6; raise max_tokens, or give stand_ins=True",
    ),
    "mixed positions": (lambda: balance([3, 4], 1, groups=[{0, "a"}, {1}]), DataError, "position 'a', needs integers"),
    "a text for a flag": (lambda: balance([3, 4], 1, lockstep="no"), ConfigError, "lockstep = 'no', needs True"),
    "too many tokens": (lambda: balance([3, 4], 1, max_tokens=2**41), ConfigError, "needs an integer from 1 to 2"),
    "a few rows of groups": (
        lambda: balance([7, 9, 6, 1], 2, max_tokens=9, max_microbatches=1, groups=[2, 0, 1, 2]),
        InfeasibleError,
        "no division that keeps to groups and counts was found with fewer than .* raise max_microbatches to",
    ),
    "weights of another shape": (
        lambda: balance([3], 2, stand_ins=True).sum_scale([1, 2], rank=1),
        DataError,
        r"weights of shape \(2,\), needs \(1,\)",
    ),
    "weights of text": (lambda: balance([3, 4], 1).sum_scale(["a", "b"]), DataError, "weights are no numbers"),
    "another rank": (lambda: balance([3, 4], 1).sum_scale(rank=1), ConfigError, "rank = 1, needs an integer from 0 to"),
    "another place": (lambda: balance([3], 1, groups_stay="node"), ConfigError, "'node' is none of 'rank', 'micro"),
    "few rows": (
        lambda: balance([5] * 8, 2, max_tokens=5, max_microbatches=3),
        InfeasibleError,
        "max_microbatches = 3, .* fill 4 rows of 5 tokens; raise max_microbatches to 4",
    ),
    "few micro-batches": (
        lambda: balance([5] * 8, 2, max_tokens=5, max_microbatches=3, packed=False),
        InfeasibleError,
        "need 4 padded micro-batches of at most 5 tokens; raise max_microbatches to 4",
    ),
    "uneven counts": (lambda: balance([5] * 7, 2, equal_counts=True), InfeasibleError, "7 samples are no multip"),
    "uneven groups": (
        lambda: balance([5] * 6, 2, groups=[0, 0, 0, 0, 1, 1], equal_counts=True),
        InfeasibleError,
        "groups of 2 to 4 samples .* each rank 3",
    ),
    "two costs": (lambda: balance([5], 1, alpha=1, cost="padded_tokens"), ConfigError, "but cost is given; leave"),
    "a square": (lambda: balance([5], 1, cost="padded_tokens_squared"), ConfigError, "does not add up"),
    "no cost": (lambda: balance([5], 1, cost={"kind": "calibrated"}), ConfigError, "needs path"),
    "negative alpha": (lambda: balance([5], 1, alpha=-1), ConfigError, "alpha = -1, needs a number from 0"),
    "gamma of nothing": (lambda: balance([5], 1, gamma=float("nan")), ConfigError, "gamma = nan, needs a number"),
}  # fmt: skip


@pytest.mark.parametrize("case", BAD)
def test_refused_with_a_remedy(case: str) -> None:
    call, kind, words = BAD[case]
    with pytest.raises(kind, match=words):
        call()
