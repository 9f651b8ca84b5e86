"""Sentences of the report on its studies, in words that follow the numbers."""

import re
from collections.abc import Mapping, Sequence
from typing import Any

from markupsafe import Markup

from analysis.settings import AA
from analysis.speed_up import speed_up_table
from analysis.tradeoffs import tradeoffs
from ddpsched.visible_text import visible
from experiments.trainers.frozen import Frozen, PeersFile, StepsFile, TargetFile
from experiments.trainers.rows import StepRow, TargetRow, label, step_rows, target_rows
from report.measures import Row, against, arms, p95, peak, shares, speed, time, tracking, within
from report.results import Measured, Results
from report.wording import ABSENT, duration, interval, listed, number, percent, signed, size

STRONGEST = "batch_rebalance"
LAWS = (range(20), range(20, 40), range(40, 60))  # steps of the study shift, by law
EPOCH = "SST-2, 4 ranks, global batch 32"  # of experiments.trainers peers
OF_LAWS = ("SST-2", "GSM8K", "SST-2 again")


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
    """Return each arm's throughput over static's, of several studies."""
    return Markup(listed([f"{interval(speed(m, arm))} with {code(arm)}" for m in found for arm in arms(m)]))


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
    on = {arm: m for m in gloo for arm in arms(m)} | ({AA: gloo[0]} if gloo else {})
    rows = []
    for arm in ["static", *dict.fromkeys([*arms(virtual), *on]), AA]:
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


def how_many(virtual: Measured, gloo: Sequence[Measured]) -> str:
    """Return how many arms are told apart from static, and where."""
    parts = []
    for words, found in (("virtual ranks", [virtual]), ("four processes", gloo)):
        verdicts = [time(m, arm).get("verdict") for m in found for arm in arms(m)]
        if verdicts:
            parts.append(f"{verdicts.count('faster')} of {len(verdicts)} arms are faster on {words}")
    return f"{'; '.join(parts)}; A/A tells of noise alone."


def by_arm(link: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """Return the rows of a link by arm."""
    return {row["arm"]: row for row in link["rows"]}


def beside_strongest(m: Measured) -> Markup:
    """Return how the package's arms stand against the strongest batching of others, in the same launches."""
    if STRONGEST not in m.setting.arms:
        return Markup("")
    floor = time(m, AA)
    parts = []
    for arm in ("balanced", "packed"):
        row = against(m, STRONGEST, arm)  # its time over the arm's: the arm's throughput over its
        if row.get("low") is not None:
            apart = _beyond(row, floor)
            parts.append(f"{code(arm)} {interval(row)}{'' if apart else ', which A/A would claim too'}")
    return _sentence(f"Over {code(STRONGEST)} the throughput is:", "; ".join(parts) + ".") if parts else Markup("")


def _beyond(row: Row, floor: Row) -> bool:
    """Return whether a ratio's interval lies on one side of A/A's."""
    if floor.get("low") is None:
        return False
    reach = max(1 / floor["low"], floor["high"])
    return bool(row["low"] > reach or row["high"] < 1 / reach)


def where_time_goes(m: Measured) -> Markup:
    """Return the shares of a step that are padding and imbalance, by arm, and static's ceiling."""
    found = shares(m)
    parts = [
        f"{code(arm)} {percent(each['padding'], 0)} and {percent(each['imbalance'], 0)}" for arm, each in found.items()
    ]
    limit = ""
    if base := found.get("static"):
        rest = percent(1 - base["padding"] - base["imbalance"], 0)
        limit = f"Without either, {code('static')} would take {rest} of its time."
    return _sentence("Of a step, padding and imbalance take, in this order:", "; ".join(parts) + ".", limit)


def tails(m: Measured) -> Markup:
    """Return whether tails shrink as much as means do."""
    less, more, unknown = list[str](), list[str](), 0
    for arm in arms(m):
        tail, mean = p95(m, arm), time(m, arm)
        if tail["low"] is None or mean.get("low") is None:
            unknown += 1
        elif tail["high"] < mean["low"]:
            less.append(arm)
        elif tail["low"] > mean["high"]:
            more.append(arm)
    said = [f"P95 over {code('static')}'s lies below the mean's ratio with {_codes(less)}."] if less else []
    said += [f"It lies above with {_codes(more)}."] if more else []
    said += ["Of other arms the two intervals overlap: tails shrink as means do."] if not unknown else []
    return _sentence(*said)


def _codes(names: Sequence[str]) -> str:
    return listed([str(code(name)) for name in names])


def about_memory(m: Measured) -> Markup:
    """Return which arms need measurably more or less memory than static."""
    rows = {arm: peak(m, arm) for arm in arms(m)}
    more = [arm for arm, row in rows.items() if row["low"] is not None and row["low"] > 1]
    less = [arm for arm, row in rows.items() if row["high"] is not None and row["high"] < 1]
    mean = next((arm["memory_max_bytes"] for arm in m.table["arms"] if arm["arm"] == "static"), None)
    said = [f"({code('static')}: {size(mean)}.)"]
    if more:
        said.append(f"More than {code('static')}: {_codes(more)}.")
    if less:
        said.append(f"Less: {_codes(less)}.")
    return _sentence(*said) if more or less else _sentence(*said, "No interval leaves out 1.")


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


def waiting_for_plans(m: Measured) -> str:
    """Return how long steps waited for plans."""
    found = {arm["arm"]: arm for arm in m.table["arms"] if arm["arm"] not in ("static", AA)}
    waits = {name: arm["plan_wait_share"] for name, arm in found.items() if arm["plan_wait_share"] is not None}
    if not waits:
        return "the wait for them was not measured."
    name = max(waits, key=lambda arm: waits[arm])
    tail = duration(found[name]["plan_wait_p95_s"])
    return f"the wait for one is at most {percent(waits[name], 2)} of a step ({name}), P95 {tail}."


def slowness(m: Measured) -> str:
    """Return the second rank's slowness in a setting of the study of unequal ranks."""
    given = m.setting.runs[0].config["executor"].get("slowness") or [1.0, 1.0]
    return f"{given[-1]:g}"


def about_unequal(found: Sequence[Measured]) -> Markup:
    """Return where learning of speeds pays beyond A/A."""
    said = []
    for m in found:
        plain, online = arms(m)
        row, floor = against(m, online, plain), time(m, AA)
        if row.get("low") is None:
            continue
        word = "pays" if row["high"] < 1 else "costs" if row["low"] > 1 else "changes nothing measurable"
        if not _beyond(row, floor):
            word = "is not told apart from A/A"
        said.append(f"{slowness(m)}: {word}")
    return _sentence("Learning of speeds, by slowness:", "; ".join(said) + ".") if said else Markup("")


def about_shift(m: Measured) -> Markup:
    """Return what a stale calibration costs while lengths are those that it has never seen."""
    names = {name.rpartition("/")[2]: name for name in arms(m)}
    stale = next((name for name in names.values() if "short" in name), None)
    new = next((name for name in names.values() if "long" in name), None)
    if stale is None or new is None:
        return Markup("")
    rows = [(law, within(m, stale, steps), within(m, new, steps)) for law, steps in zip(OF_LAWS, LAWS, strict=True)]
    told = [law for law, one, other in rows if _apart(one, other)]
    if told:
        return Markup(f"The two calibrations are told apart in {listed(told)}.")
    return Markup("The two calibrations are told apart in none of the three.")


def _apart(one: Row, other: Row) -> bool:
    """Return whether two intervals have nothing in common."""
    known = one["low"] is not None and other["low"] is not None
    return known and (one["low"] > other["high"] or one["high"] < other["low"])


class Trainers:
    """Tables and sentences on the files of experiments.trainers."""

    def __init__(self, files: Mapping[str, Frozen]) -> None:
        self.steps = [each for each in files.values() if isinstance(each, StepsFile)]
        self.targets = [each for each in files.values() if isinstance(each, TargetFile)]

    def trainer_steps(self) -> str:
        """Return how many steps each arm's time is of."""
        numbers = []
        for file in self.steps:
            of = file.experiment
            total = len(file.launches) * of["rounds"] * of["steps"]
            numbers.append(f"{total} interleaved steps in {len(file.launches)} launches ({of['model']})")
        return listed(numbers)

    def trainer_rows(self, tiny: bool = True) -> list[dict[str, str]]:
        """Return a row of cells an arm and model. ``tiny``: of the tiny model, too."""
        files = [file for file in self.steps if tiny or file.experiment["model"] != "tiny"]
        return [self._row(str(file.experiment["model"]), row) for file in files for row in step_rows(file)]

    @staticmethod
    def _row(model: str, row: StepRow) -> dict[str, str]:
        errors = ["" if error is None else f"{error:.0e}" for error in (row.error, row.own_error)]
        return {
            "model": model.rpartition("/")[2], "arm": label(row.arm), "epoch": f"{row.epoch_s:,.0f}",
            "ratio": row.ratio, "verdict": row.verdict.partition(":")[0], "error": errors[0], "own_error": errors[1],
        }  # fmt: skip

    def target_tables(self) -> list[tuple[str, list[TargetRow]]]:
        """Return a heading and its rows for each file of times to a dev loss."""
        found = []
        for file in self.targets:
            title = f"{file.experiment['model']}, dev loss {file.target:.3f}, {len(file.seeds)} seeds"
            found.append((title, [row for row in target_rows(file) if row.arm != "random"]))
        return found


class Computed:
    """Sentences on what was computed or measured beside the studies."""

    def __init__(self, results: Results) -> None:
        self.results = results

    def yardstick(self, arm: str) -> float | None:
        """Return an arm's yardstick over an epoch, or over the steps of the study on virtual ranks."""
        files = (each for each in self.results.trainers.values() if isinstance(each, PeersFile))
        rows = [row for file in files for trace, found in file.traces.items() if trace == EPOCH for row in found]
        planned = next((row.yardstick for row in rows if row.arm == arm), None)
        runs = (row for each in self.results.of("virtual") for row in each.table["arms"] if row["arm"] == arm)
        return planned or next((row["yardstick"] for row in runs), None)

    def simulator_rows(self) -> list[dict[str, Any]]:
        """Return the simulator's errors on held-out steps by the clock, a row a model, kind of ranks and policy."""
        return [row for table in self.results.simulator for row in table["rows"] if row["clock"] == "wall"]

    def simulated_error(self) -> str:
        """Return the range of these errors, beside those that the same steps measured twice have."""
        rows = [row | {"error": row["errors"]["fixed"]} for row in self.simulator_rows()]
        if not rows:
            return "How far it is off was not measured."
        errors, floors = ([row[one]["mean"] for row in rows] for one in ("error", "again"))
        off, same = (f"{percent(min(each))} to {percent(max(each))}" for each in (errors, floors))
        return (
            f"With each rank's speed and noise from the first steps of a run, makespans of later steps are off by "
            f"{off} on average; the same steps measured twice differ by {same}."
        )

    def about_scaling(self) -> Markup:
        """Return the computed gains of the first and last number of ranks."""
        table = speed_up_table(self.results.what_if)
        equal = table.loc[table.index.get_level_values("slow")[0]]
        first, last = equal.columns[0], equal.columns[-1]
        parts = [
            f"{code(str(arm))} {number(row[first])} at {first:,} ranks and {number(row[last])} at {last:,}"
            for arm, row in equal.iterrows() if arm != "static"
        ]  # fmt: skip
        return _sentence("; ".join(parts) + ".")


SENTENCES = (
    arm_rows, how_many, by_arm, code, throughput, gains, signed_ratio, beside_strongest, where_time_goes, tails,
    about_memory, proxy, waiting_for_plans, slowness, about_unequal, about_shift,
)  # fmt: skip
