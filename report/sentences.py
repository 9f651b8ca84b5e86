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
    Row,
    against,
    arms,
    each_once,
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


def code(name: str) -> Markup:
    """Return a name as code in Markdown; what would end the code is left out."""
    return Markup(f"`{re.sub('[`|]', '', visible(name))}`")


def sentence(*parts: Any) -> Markup:
    """Return what there is of the parts as one text."""
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
    parts, of = [], {arm: m for m, arm in each_once(found)}
    first = next((arm for arm in NAMED if arm in of), "")
    for arm in (arm for arm in NAMED if arm in of):
        value = number(speed(of[arm], arm)["ratio"])
        apart = time(of[arm], arm)["verdict"] in ("faster", "slower")
        own = "" if of[arm] is of[first] else " in launches of its own"
        parts.append(f"{value} with {code(arm)}{own}{'' if apart else ' (not told apart from static)'}")
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
    on = {arm: m for m, arm in each_once(gloo)} | ({AA: gloo[0]} if len(gloo) == 1 else {})
    rows = []
    between = dict.fromkeys([*arms(virtual), *(arm for arm in on if arm != AA)])
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
    """Return the A/A of each study of four processes, with the arms that it is beside in the table."""
    beside = [(m, [arm for other, arm in each_once(gloo) if other is m]) for m in gloo]
    parts = [f"{interval(speed(m, AA))} beside {_codes(names)}" for m, names in beside]
    return Markup("; ".join(parts))


def how_many(virtual: Measured, gloo: Sequence[Measured]) -> str:
    """Return how many arms are told apart from static, and where."""
    parts = []
    for words, found in (("virtual ranks", [virtual]), ("four processes", gloo)):
        verdicts = [time(m, arm).get("verdict") for m, arm in each_once(found)]
        if verdicts:
            parts.append(f"{verdicts.count('faster')} of {len(verdicts)} arms are faster on {words}")
    return f"{'; '.join(parts)}."


def by_arm(link: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """Return the rows of a link by arm."""
    return {row["arm"]: row for row in link["rows"]}


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
    return sentence(begin, f"{code('static')}'s is", "; ".join(parts) + f"; A/A {floor}.")


def tails(found: Sequence[Measured], values: bool = True) -> Markup:
    """Return by how much the P95 of step times shrinks beside the mean; an arm whose P95 is within A/A's is named.

    ``values``: with the numbers, which the table of arms has of virtual ranks.
    """
    rows = [(m, arm, p95(m, arm)) for m, arm in each_once(found)]
    known = [(m, arm, tail) for m, arm, tail in rows if tail["low"] is not None]
    if not known:
        return Markup("P95 has no interval in these results.")
    parts = [f"{code(arm)} {interval(tail)}, mean {number(time(m, arm).get('ratio'))}" for m, arm, tail in known]
    apart = told_apart([(tail, p95(m, AA)) for m, _, tail in known])
    within = [arm for (_, arm, _), told in zip(known, apart, strict=True) if not told]
    be = "is" if len(within) == 1 else "are"
    alike = f"{_codes(within)} {be} not told apart from A/A." if within else "all arms are told apart from A/A."
    return sentence("; ".join(parts) + ";" if values else "", alike)


def _codes(names: Sequence[str]) -> str:
    return listed([str(code(name)) for name in names])


def memory_in_short(m: Measured) -> Markup:
    """Return the least and the largest peak over static's, of those that are told apart, and which arm's is least."""
    rows = {arm: row["ratio"] for arm, (row, apart) in _peaks(m).items() if apart}
    if not rows:
        return Markup("is not told apart from that of equal splitting")
    least, most = min(rows, key=rows.__getitem__), max(rows.values())
    upwards = "" if len(rows) == 1 else f" to {number(most)}"
    of_which = "" if len(rows) == 1 else ", least"
    return Markup(f"is {number(rows[least])}{upwards} times that of equal splitting{of_which} with {code(least)}")


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
    said = [f"{code('static')} needs {size(mean)} (A/A {interval(floor)})."]
    for names, what in ((more, "more"), (less, "less")):
        if names:
            said.append(f"{_codes(names)} {'needs' if len(names) == 1 else 'need'} {what}.")
    rest = [arm for arm in rows if arm not in more + less]
    holm = "The arms are corrected together, so an interval may lie beside 1 and its arm not be told apart."
    return sentence(*said, f"Not told apart from A/A: {_codes(rest)}. {holm}" if rest else "")


def still_rising(m: Measured) -> Markup:
    """Return by how much each arm's peak memory rose in the second half of the steps, mean over launches."""
    if len(m.setting.runs[0].steps) < 2:
        return Markup("")
    rises = {}
    for arm in ("static", *arms(m)):
        peaks = [run.steps["max_peak_memory_bytes"] for run in m.setting.arms[arm]]
        rises[arm] = sum(each.max() / each.iloc[: len(each) // 2].max() - 1 for each in peaks) / len(peaks)
    least, most = min(rises, key=rises.__getitem__), max(rises, key=rises.__getitem__)
    steps = m.setting.runs[0].config["steps"]
    return Markup(
        f"Peaks of {steps} steps are not final: from step {steps // 2} on they rose by {percent(rises[least])} "
        f"({code(least)}) to {percent(rises[most])} ({code(most)})."
    )


def proxy(m: Measured) -> Markup:
    """Return by how much times shrink less than the padded tokens that plans minimise."""
    parts = []
    for arm in arms(m):
        tokens, seconds = time(m, arm, "max_padded_tokens").get("ratio"), time(m, arm, "max_compute_s").get("ratio")
        if tokens and seconds:
            parts.append(f"{code(arm)} {number(tokens)} and {number(seconds)}")
    share = tracking(m, "static", "heaviest_share")
    r, least = tracking(m, "static"), tracking(m, "balanced")
    return sentence(
        f"Under {code('static')}, where ranks differ most, r is {interval(r)}, and the rank predicted heaviest was the",
        f"slowest in {interval(share)} of the steps; under {code('balanced')}, which leaves little to predict, r is",
        f"{interval(least)}. The largest rank's padded tokens over static's, and its compute time over static's:",
        "; ".join(parts) + ".",
    )


def proxy_on_processes(found: Sequence[Measured]) -> Markup:
    """Return how well predicted costs tell times where ranks share cores, over several studies."""
    r, right = (_across([tracking(m, "static", name) for m in found]) for name in ("cost_time_r", "heaviest_share"))
    return sentence(
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
        f"the mean of its launches' P95 {duration(tails[0])} to {duration(tails[-1])}."
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
    return sentence("Learning the speeds, against balanced without:", "; ".join(said) + ".") if said else Markup("")


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
        sentence("Step time with the refitted calibration over that with the stale one:", "; ".join(said) + ".")
        if said
        else Markup("")
    )


SENTENCES = (
    arm_rows, floors, how_many, by_arm, code, throughput, gains, memory_in_short, where_time_goes, tails,
    another_model, about_memory, still_rising, proxy, proxy_on_processes, waiting_for_plans, slowness, about_unequal,
    online_and_plain, about_shift,
)  # fmt: skip
