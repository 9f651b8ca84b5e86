"""Sentences on plans beside those of other packages, measured in the same launches."""

from collections.abc import Sequence

from markupsafe import Markup

from analysis.settings import AA
from analysis.style import STRONGEST
from report.measures import RIVALS, STRONGEST_PAIRS, Row, against, time, told_apart
from report.results import Measured
from report.sentences import code, sentence
from report.wording import interval, number

PACKED_AND_RANDOM, PACKED_AND_VERLS = RIVALS


def beside_strongest(m: Measured, ranks: str) -> Markup:
    """Return how the package's arms stand against the strongest batching of others, in the same launches."""
    if STRONGEST not in m.setting.arms:
        return Markup("")
    parts = [f"{code(arm)} {said}" for (arm, _), said in _said_over(m, STRONGEST_PAIRS).items()]
    begin = f"On {ranks}, in the same launches, the throughput over {code(STRONGEST)} is:"
    return sentence(begin, "; ".join(parts) + ".") if parts else Markup("")


def near_strongest(m: Measured, arm: str) -> str:
    """Return how an arm's throughput stands to that of the strongest batching of others, before that number."""
    row, apart = _over(m, STRONGEST_PAIRS)[arm, STRONGEST]
    if row.get("low") is None:
        return "beside"
    if not apart:
        return "not told apart from"
    return "above" if row["low"] > 1 else "below"


def over_rivals(m: Measured) -> Markup:
    """Return how plans stand against others' with the same kind of rows, in the same launches; empty where none ran."""
    said = _said_over(m, RIVALS).items()
    parts = [f"{code(arm)} over {code(other)} {words}" for (arm, other), words in said]
    return Markup(f"{'; '.join(parts)}." if parts else "")


def packing_in_short(m: Measured) -> Markup:
    """Return how planned rows without padding stand to random ones, in the same launches; empty where none ran."""
    row, apart = _over(m, [PACKED_AND_RANDOM])[PACKED_AND_RANDOM]
    if row.get("low") is None:
        return Markup("")
    than = f"has {number(row['ratio'])} times the throughput of" if apart else "is not told apart from"
    row, apart = _over(m, [PACKED_AND_VERLS])[PACKED_AND_VERLS]
    nor = "" if apart or row.get("low") is None else ", and is not told apart from such rows partitioned as verl does"
    return Markup(f"{code('packed')} {than} random batches without padding on the four ranks{nor}")


def _said_over(m: Measured, pairs: Sequence[tuple[str, str]]) -> dict[tuple[str, str], str]:
    """Return the throughput of each pair that has an interval, and whether it is told apart, in words."""
    return {
        pair: f"{interval(row)}{'' if apart else ', not told apart from A/A'}"
        for pair, (row, apart) in _over(m, pairs).items()
        if row.get("low") is not None
    }


def _over(m: Measured, pairs: Sequence[tuple[str, str]]) -> dict[tuple[str, str], tuple[Row, bool]]:
    """Return each pair's throughput, of the first arm over the second, and whether it is told apart from A/A."""
    rows = {(arm, other): against(m, other, arm) for arm, other in pairs}  # the other's time over the arm's
    apart = told_apart([(row, time(m, AA)) for row in rows.values()])
    return {pair: (row, each) for (pair, row), each in zip(rows.items(), apart, strict=True)}


OVER_OTHERS = (beside_strongest, near_strongest, over_rivals, packing_in_short)
