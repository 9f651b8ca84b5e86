"""Sentences of the report on its studies, in words that follow the numbers."""

import re
from collections.abc import Sequence
from typing import Any

from markupsafe import Markup

from analysis.settings import AA
from analysis.style import STRONGEST
from analysis.tradeoffs import tradeoffs
from ddpsched.visible_text import visible
from report.measures import (
    RIVALS,
    STRONGEST_PAIRS,
    Row,
    against,
    arms,
    p95,
    peak,
    shares,
    speed,
    time,
    told_apart,
    tracking,
)
from report.results import Measured
from report.shift import LAWS, refitted_over_stale
from report.wording import ABSENT, duration, interval, listed, number, percent, signed, size

NAMED = ("balanced", "packed", STRONGEST)  # arms of which the abstract and the README speak
PACKED_AND_RANDOM, PACKED_AND_VERLS = RIVALS


def code(name: str) -> Markup:
    """Return a name as code in Markdown; what would end the code is left out."""
    return Markup(f"`{re.sub('[`|]', '', visible(name))}`")


def _sentence(*parts: Any) -> Markup:
    return Markup(" ".join(str(part) for part in parts if part))


def throughput(row: Row) -> str:
    """Return a row of ``measures.speed`` as the object of "has".

    >>> throughput({"ratio": 1.9, "low": 1.8, "high": 2.0, "verdict": "faster"})
    '1.90 (1.80 to 2.00) times the throughput of equal splitting'
    >>> throughput({"ratio": 1.0, "low": 0.9, "high": 1.1, "verdict": "not told apart from A/A"})
    'a throughput not told apart from A/A (1.00 (0.90 to 1.10))'
    """
    if row.get("ratio") is None:
        return "a throughput that was not measured"
    verdict = row.get("verdict") or ""
    if verdict not in ("faster", "slower"):
        return f"a throughput {verdict} ({interval(row)})"
    return f"{interval(row)} times the throughput of equal splitting"


def gains(found: Sequence[Measured]) -> Markup:
    """Return the named arms' throughput over static's, of several studies; what is within the noise is said to be."""
    parts = []
    for m in found:
        for arm in (arm for arm in arms(m) if arm in NAMED):
            value = number(speed(m, arm)["ratio"])
            apart = time(m, arm)["verdict"] in ("faster", "slower")
            parts.append(f"{value} with {code(arm)}{'' if apart else ' (not told apart from static)'}")
    return Markup(listed(parts))


def signed_ratio(row: Row) -> str:
    """Return a ratio as a change, with its interval.

    >>> signed_ratio({"ratio": 1.2, "low": 1.1, "high": 1.3})
    '+20.0 % (+10.0 to +30.0 %)'
    """
    if row.get("ratio") is None:
        return "an unmeasured share"
    if row.get("low") is None:
        return signed(row["ratio"] - 1)
    low, high = (signed(row[end] - 1) for end in ("low", "high"))
    return f"{signed(row['ratio'] - 1)} ({low.removesuffix(' %')} to {high})"


def arm_rows(virtual: Measured, memory: Measured | None, gloo: Sequence[Measured]) -> list[list[str]]:
    """Return the cells of the report's table of arms, A/A last."""
    biases = {row["arm"]: row["order_bias"] for row in tradeoffs(virtual.setting, virtual.table).to_dict("records")}
    on = {arm: m for m in gloo for arm in arms(m)} | ({AA: gloo[0]} if len(gloo) == 1 else {})
    rows = []
    between = dict.fromkeys([*arms(virtual), *(arm for m in gloo for arm in arms(m))])
    for arm in ["static", *between, AA]:
        here = arm in virtual.setting.arms and arm != "static"
        row = [code(arm) if arm != AA else AA]
        row += [interval(speed(virtual, arm)), str(time(virtual, arm).get("verdict") or "")] if here else [ABSENT, ""]
        row += [interval(p95(virtual, arm)) if here else ABSENT, interval(tracking(virtual, arm))]
        row.append(number(biases.get(arm), 3))
        if memory is not None:
            row.append(interval(peak(memory, arm)) if arm in memory.setting.arms and arm != "static" else ABSENT)
        if gloo:
            found = on.get(arm)
            row += [interval(speed(found, arm)), str(time(found, arm).get("verdict") or "")] if found else [ABSENT, ""]
        rows.append(row)
    return rows


def floors(gloo: Sequence[Measured]) -> Markup:
    """Return the A/A of each study of four processes, with the arms that it is beside."""
    parts = [f"{interval(speed(m, AA))} beside {_codes(arms(m))}" for m in gloo]
    return Markup("; ".join(parts))


def how_many(virtual: Measured, gloo: Sequence[Measured]) -> str:
    """Return how many arms are told apart from static, and where."""
    parts = []
    for words, found in (("virtual ranks", [virtual]), ("four processes", gloo)):
        verdicts = [time(m, arm).get("verdict") for m in found for arm in arms(m)]
        if verdicts:
            parts.append(f"{verdicts.count('faster')} of {len(verdicts)} arms are faster on {words}")
    return f"{'; '.join(parts)}."


def by_arm(link: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """Return the rows of a link by arm."""
    return {row["arm"]: row for row in link["rows"]}


def beside_strongest(m: Measured) -> Markup:
    """Return how the package's arms stand against the strongest batching of others, in the same launches."""
    if STRONGEST not in m.setting.arms:
        return Markup("")
    parts = [f"{code(arm)} {said}" for (arm, _), said in _said_over(m, STRONGEST_PAIRS).items()]
    begin = f"On virtual ranks, in the same launches, the throughput over {code(STRONGEST)} is:"
    return _sentence(begin, "; ".join(parts) + ".") if parts else Markup("")


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


def over_rivals(m: Measured) -> Markup:
    """Return how plans stand against others' with the same kind of rows, in the same launches."""
    over_static = [f"{code(arm)} {interval(speed(m, arm))}" for arm in arms(m)]
    said = _said_over(m, RIVALS).items()
    parts = [f"{code(arm)} over {code(other)} {words}" for (arm, other), words in said]
    throughputs = f"Throughput over {code('static')}'s: {'; '.join(over_static)}; A/A {interval(speed(m, AA))}."
    return _sentence(throughputs, f"Of one over the other: {'; '.join(parts)}." if parts else "")


def packing_in_short(m: Measured) -> Markup:
    """Return how planned rows without padding stand to random ones, in the same launches; empty where none ran."""
    row, apart = _over(m, [PACKED_AND_RANDOM])[PACKED_AND_RANDOM]
    if row.get("low") is None:
        return Markup("")
    than = f"has {number(row['ratio'])} times the throughput of" if apart else "is not told apart from"
    row, apart = _over(m, [PACKED_AND_VERLS])[PACKED_AND_VERLS]
    nor = "" if apart or row.get("low") is None else ", and is not told apart from such rows partitioned as verl does"
    return Markup(f"{code('packed')} {than} random batches without padding on the four ranks{nor}")


def near_strongest(m: Measured, arm: str) -> str:
    """Return how an arm's throughput stands to that of the strongest batching of others, before that number."""
    row, apart = _over(m, STRONGEST_PAIRS)[arm, STRONGEST]
    if row.get("low") is None:
        return "beside"
    if not apart:
        return "not told apart from"
    return "above" if row["low"] > 1 else "below"


def where_time_goes(m: Measured) -> Markup:
    """Return padding and imbalance of static's step, and what it would take without either."""
    found, base = shares(m), m.table["baseline"]
    if base not in found:
        return Markup("")
    padding, imbalance = found[base]["padding"], found[base]["imbalance"]
    return Markup(
        f"Padding takes {percent(padding, 0)} of a step of {code(base)} and imbalance {percent(imbalance, 0)}; without "
        f"either it would take {percent(1 - padding - imbalance, 0)} of its time. The figure has all arms."
    )


def another_model(m: Measured) -> Markup:
    """Return the throughput of each arm with another model, and its verdicts."""
    parts = [f"{code(arm)} {interval(speed(m, arm))}, {time(m, arm).get('verdict')}" for arm in arms(m)]
    floor = interval(speed(m, AA))
    number_of = m.view["environment"].get("num_parameters") or 0
    begin = (
        f"With MiniLM ({number_of / 1e6:.0f} million parameters, pretrained) on four virtual ranks the throughput over"
    )
    return _sentence(begin, f"{code('static')}'s is", "; ".join(parts) + f"; A/A {floor}.")


def tails(found: Sequence[Measured], values: bool = True) -> Markup:
    """Return by how much the P95 of step times shrinks beside the mean; an arm whose P95 is within A/A's is named.

    ``values``: with the numbers, which the table of arms has of virtual ranks.
    """
    rows = [(m, arm, p95(m, arm)) for m in found for arm in arms(m)]
    known = [(m, arm, tail) for m, arm, tail in rows if tail["low"] is not None]
    if not known:
        return Markup("P95 has no interval in these results.")
    parts = [f"{code(arm)} {interval(tail)}, mean {number(time(m, arm).get('ratio'))}" for m, arm, tail in known]
    apart = told_apart([(tail, p95(m, AA)) for m, _, tail in known])
    within = [arm for (_, arm, _), told in zip(known, apart, strict=True) if not told]
    alike = f"not told apart from A/A: {_codes(within)}." if within else "all are told apart from A/A."
    return _sentence("; ".join(parts) + ";" if values else "", alike)


def _codes(names: Sequence[str]) -> str:
    return listed([str(code(name)) for name in names])


def memory_in_short(m: Measured) -> Markup:
    """Return between which arms' peaks over static's all others lie, of those that are told apart."""
    rows = {arm: row["ratio"] for arm, (row, apart) in _peaks(m).items() if apart}
    if not rows:
        return Markup("is not told apart from static's")
    ends = dict.fromkeys((min(rows, key=rows.__getitem__), max(rows, key=rows.__getitem__)))
    return Markup(f"is {' to '.join(f'{number(rows[arm])} ({code(arm)})' for arm in ends)} times static's")


def _peaks(m: Measured) -> dict[str, tuple[Row, bool]]:
    """Return each arm's peak memory over static's, and whether it is told apart; all arms are one family."""
    rows, floor = {arm: peak(m, arm) for arm in arms(m)}, peak(m, AA) if AA in m.setting.arms else {}
    apart = told_apart([(row, floor) for row in rows.values()])
    return {arm: (row, each) for (arm, row), each in zip(rows.items(), apart, strict=True)}


def about_memory(m: Measured) -> Markup:
    """Return which arms need more or less memory than static, beyond what static's second run differs by."""
    rows, floor = _peaks(m), peak(m, AA) if AA in m.setting.arms else {}
    more = [arm for arm, (row, apart) in rows.items() if apart and row["low"] > 1]
    less = [arm for arm, (row, apart) in rows.items() if apart and row["high"] < 1]
    mean = next((arm["memory_max_bytes"] for arm in m.table["arms"] if arm["arm"] == "static"), None)
    said = [f"({code('static')}: {size(mean)}; A/A {interval(floor)}.)"]
    if more:
        said.append(f"More than {code('static')}: {_codes(more)}.")
    if less:
        said.append(f"Less: {_codes(less)}.")
    rest = [arm for arm in rows if arm not in more + less]
    holm = "The arms are corrected together, so an interval may lie beside 1 and its arm not be told apart."
    return _sentence(*said, f"Not told apart from A/A: {_codes(rest)}. {holm}" if rest else "")


def proxy(m: Measured) -> Markup:
    """Return by how much times shrink less than the padded tokens that plans minimise."""
    parts = []
    for arm in arms(m):
        tokens, seconds = time(m, arm, "max_padded_tokens").get("ratio"), time(m, arm, "max_compute_s").get("ratio")
        if tokens and seconds:
            parts.append(f"{code(arm)} {number(tokens)} and {number(seconds)}")
    share = tracking(m, "static", "heaviest_share")
    r, least = tracking(m, "static"), tracking(m, "balanced")
    return _sentence(
        f"Under {code('static')}, where ranks differ most, r is {interval(r)}, and the rank predicted heaviest was the",
        f"slowest in {interval(share)} of the steps; under {code('balanced')}, which leaves little to predict, r is",
        f"{interval(least)}. The largest rank's padded tokens over static's, and its compute time over static's:",
        "; ".join(parts) + ".",
    )


def proxy_on_processes(found: Sequence[Measured]) -> Markup:
    """Return how well predicted costs tell times where ranks share cores, over several studies."""
    r, right = (_across([tracking(m, "static", name) for m in found]) for name in ("cost_time_r", "heaviest_share"))
    return _sentence(
        f"On four processes r is {r}, and the rank predicted heaviest was the slowest in {right} of the steps:",
        "ranks that wait for a core take longer than their tokens tell.",
    )


def _across(rows: Sequence[Row]) -> str:
    """Return the least and the largest of several values, with the ends that their intervals reach."""
    values, lows, highs = ([row[name] for row in rows if row.get(name)] for name in ("ratio", "low", "high"))
    if len(values) < 2:
        return interval(rows[0])
    reach = f" (intervals from {number(min(lows))} to {number(max(highs))})" if lows and highs else ""
    return f"{number(min(values))} to {number(max(values))}{reach}"


def waiting_for_plans(found: Sequence[Measured]) -> str:
    """Return how long steps waited for plans, over the arms of several studies, the second runs of A/A among them."""
    rows = [arm for m in found for arm in m.table["arms"] if arm["plan_wait_share"] is not None]
    if not rows:
        return "the wait for them was not measured."
    shares, tails = (sorted(arm[name] for arm in rows) for name in ("plan_wait_share", "plan_wait_p95_s"))
    return (
        f"the wait for one is {percent(shares[0], 2)} to {percent(shares[-1], 2)} of a step by arm, A/A included, and "
        f"its P95 {duration(tails[0])} to {duration(tails[-1])}."
    )


def slowness(m: Measured) -> str:
    """Return the second rank's slowness in a setting of the study of unequal ranks."""
    given = m.setting.runs[0].config["executor"].get("slowness") or [1.0, 1.0]
    return f"{given[-1]:g}"


def about_unequal(found: Sequence[Measured]) -> Markup:
    """Return where learning of speeds pays beyond A/A."""
    rows = [against(m, *online_and_plain(m)) for m in found]
    apart = told_apart([(row, time(m, AA)) for m, row in zip(found, rows, strict=True)])
    said = []
    for m, row, told in zip(found, rows, apart, strict=True):
        if row.get("low") is not None:
            word = f"changes the step by {signed_ratio(row)}" if told else "is not told apart from A/A"
            said.append(f"at {slowness(m)} times it {word}")
    return _sentence("Learning the speeds, against balanced without:", "; ".join(said) + ".") if said else Markup("")


def online_and_plain(m: Measured) -> tuple[str, str]:
    """Return the arm that learns each rank's speed, and the one with the same costs that does not."""
    online = next((arm for arm in arms(m) if "online" in arm), "")
    return online, next((arm for arm in arms(m) if arm != online), "")


def about_shift(m: Measured) -> Markup:
    """Return what refitting the calibration changes, of each law's steps."""
    rows = {law: refitted_over_stale(m, law) for law in LAWS}
    apart = told_apart([(row, time(m, AA)) for row in rows.values()])
    said = [
        f"{law} {interval(row)}{'' if told else ', not told apart from A/A'}"
        for (law, row), told in zip(rows.items(), apart, strict=True)
        if row.get("low") is not None
    ]
    return (
        _sentence("Step time with the refitted calibration over that with the stale one:", "; ".join(said) + ".")
        if said
        else Markup("")
    )


SENTENCES = (
    arm_rows, floors, how_many, by_arm, code, throughput, gains, memory_in_short, packing_in_short, near_strongest,
    beside_strongest, over_rivals, where_time_goes, tails, another_model, about_memory, proxy, proxy_on_processes,
    waiting_for_plans, slowness, about_unequal, online_and_plain, about_shift,
)  # fmt: skip
