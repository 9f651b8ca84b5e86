"""Sentences on the comparison of policies, from its numbers."""

from collections.abc import Mapping, Sequence
from typing import Any

from analysis.arms import UNITS
from analysis.settings import AA
from report.compared import BIAS, MATERIAL, baseline, in_turn, noise, others
from report.wording import duration, listed, number, percent

Setting = Mapping[str, Any]
Row = Mapping[str, Any]

# arms by label, with the samples that a rank gets
ARMS = {
    "static (max_length)": "B/G samples, each padded to the longest length allowed",
    "static": "B/G samples, padded to the longest of the micro-batch",
    AA: "static's once more: what differs between the two is noise",
    "static (sequential)": "the same, in the order of the data",
    "static (length_grouped)": "the same, from an order in which samples of like length are neighbours",
    "static (concatenated)": "slices of all documents joined end to end, each of the longest length allowed",
    "static (concatenated, within documents)": "the same slices, whose tokens attend to their own document alone",
    "static (curriculum)": "the same, shortest samples first, neighbours dealt in turn",
    "static (curriculum, window = 960)": "the same, each 960 neighbours reshuffled",
    "static (curriculum, window = 160)": "the same, each 160 neighbours reshuffled",
    "static (curriculum, root, start = 0.2)": "drawn from the shortest samples, a fifth of all at first, then more",
    "static (curriculum_local)": "each rank's shard of the data, shortest samples first",
    "minmax": "the first samples of each rank's window, their counts solved so that the largest cost is least",
    "balanced": "static's global batch, split by length in one micro-batch a rank",
    "balanced (M = 4)": "static's global batch, split in up to four micro-batches a rank",
    "packed": "static's global batch, in rows without padding",
    "token_budget": "as many of the next samples as a budget of padded tokens allows",
    "token_budget (linear LR)": "the same; the learning rate follows the samples of each step",
    "token_budget (sqrt LR)": "the same; the learning rate follows their root",
    "token_budget (length_grouped)": "the same, from an order in which samples of like length are neighbours",
    "token_budget (curriculum)": "the same, shortest samples first: B falls as they grow",
    "token_budget (curriculum, linear LR)": "the same, and the learning rate follows the samples of each step",
    "token_budget (curriculum, sqrt LR)": "the same, and the learning rate follows their root",
    "token_budget (same shape)": "the same; all micro-batches of a step have one count and one length",
    "bins": "samples of one range of lengths, each range with its own batch size",
    "pool (prefer_closest)": "of a pool, the oldest sample and those closest to its length, up to a budget",
    "pool (prefer_first)": "of a pool, the oldest sample and the oldest no longer than it, up to a budget",
    "pool (packed)": "of a pool, the oldest samples in rows without padding, up to a budget of tokens",
}


def described(settings: Sequence[Setting]) -> list[tuple[str, str]]:
    """Return the known arms of all settings, with the samples that a rank gets, in the order of ``ARMS``."""
    present = {row["arm"] for setting in settings for row in setting["arms"]}
    return [(arm, what) for arm, what in ARMS.items() if arm in present]


def all_in_turn(settings: Sequence[Setting]) -> bool:
    """Return whether the arms of all settings ran in turn."""
    return all(map(in_turn, settings))


def unit(setting: Setting) -> str:
    """Return the unit of the amount trained on: samples or real tokens."""
    return UNITS[setting["unit"]]


def speed(setting: Setting) -> str:
    """Return a sentence on the arms that are faster than static, and those that are slower."""
    rows = [row for row in others(setting) if row.get("speed_low") is not None]
    if not rows:
        reasons = list(dict.fromkeys(row["reason"] for row in others(setting) if row.get("reason")))
        return f"Speeds are not compared: {listed(reasons) if reasons else 'there is no static arm'}."
    best = max(rows, key=lambda row: float(row["speed_ratio"]))
    faster, slower, alike = (
        [row["arm"] for row in rows if row["verdict"] in words]
        for words in (("faster",), ("slower",), {row["verdict"] for row in rows} - {"faster", "slower"})
    )
    floor = next((row for row in setting["arms"] if row["arm"] == AA and row.get("speed_low") is not None), None)
    floor_text = (
        f" Static against itself (A/A): {number(floor['speed_low'])} to {number(floor['speed_high'])}." if floor else ""
    )
    most = (
        f"Most real tokens a second are trained by {best['arm']}, {number(best['speed_ratio'])} times static's "
        f"(95 % interval {number(best['speed_low'])} to {number(best['speed_high'])})."
        if best["speed_ratio"] > 1
        else "No arm trains more real tokens a second than static."
    )
    return (
        f"{most} Faster than static: {few(faster)}; slower: {few(slower)}; not told apart from A/A, or the same: "
        f"{few(alike)}.{floor_text}"
    )


def few(arms: Sequence[str]) -> str:
    """Return the names of up to four arms, or the number of more.

    >>> few(["a", "b"]), few(list("abcdef"))
    ('a and b', '6 arms')
    """
    return listed(list(arms)) if len(arms) <= 4 else f"{len(arms)} arms"


def shape(setting: Setting) -> str:
    """Return sentences on padding, balance and order bias: the least and the largest of each."""
    rows = setting["arms"]
    least, most = _ends(rows, "padding")
    even, uneven = _ends(rows, "imbalance_tokens")
    biased = [row for row in rows if row["order_bias"] is not None and row["order_bias"] >= BIAS]
    biased.sort(key=lambda row: -float(row["order_bias"]))
    named = [f"{row['arm']} ({number(row['order_bias'])})" for row in biased]
    return (
        f"Padding is {percent(least['padding'])} ({least['arm']}) to {percent(most['padding'])} ({most['arm']}) of "
        f"what is computed. The largest rank has {number(even['imbalance_tokens'])} ({even['arm']}) to "
        f"{number(uneven['imbalance_tokens'])} ({uneven['arm']}) times the mean rank's padded tokens. Samples of like "
        f"length share steps (order bias of {BIAS} or more) with: {listed(named)}."
    )


def learning(setting: Setting) -> str:
    """Return sentences on losses after equal training and equal time, and their spread among equal gradients.

    Nothing is said of equal time where arms did not run in turn.
    """
    static = baseline(setting)
    if static is None or static.get("loss_at_equal") is None:
        return "Training losses cannot be held against static's."
    rows = [row for row in others(setting) if row.get("loss_at_equal") is not None]
    same = ["static", *(row["arm"] for row in rows if row.get("same_steps"))]
    sentences = [
        f"The arms {listed(same)} train the same samples in the same steps, so their gradients differ by dropout and "
        f"rounding alone: that their training losses after the same {unit(setting)} lie {number(noise(setting), 3)} "
        "apart is chance."
        if len(same) > 1
        else "No other arm has static's gradients, so nothing says how large a difference chance would make."
    ]
    equal = {"loss_at_equal": unit(setting), "loss_at_equal_s": duration(setting["budget_s"])}
    for key, when in list(equal.items())[: 2 if in_turn(setting) else 1]:
        known = [row for row in rows if row.get(key) is not None and static.get(key)]
        lower = [row["arm"] for row in known if row[key] < (1 - MATERIAL) * static[key]]
        higher = [row["arm"] for row in known if row[key] > (1 + MATERIAL) * static[key]]
        far = f"more than {percent(MATERIAL, 0)}"
        sentences.append(
            f"After the same {when}, {far} below static's: {few(lower)}; above: {few(higher)}."
            if lower or higher
            else f"After the same {when}, no arm is {far} away from static."
        )
    return " ".join(sentences)


def evaluation(setting: Setting) -> str:
    """Return a sentence on the least and largest dev loss, and the spread among equal gradients."""
    rows = [row for row in setting["arms"] if row.get("dev_loss") is not None]
    if not rows:
        return "No arm was evaluated."
    best, worst = _ends(rows, "dev_loss")
    ends = (
        f"After the whole epoch the dev loss is {number(best['dev_loss'], 3)} ({best['arm']}) to "
        f"{number(worst['dev_loss'], 3)} ({worst['arm']})"
    )
    spread = noise(setting, "dev_loss")
    return f"{ends}; among arms of equal gradients it spreads by {number(spread, 3)}." if spread else f"{ends}."


def steadiness(setting: Setting) -> str:
    """Return a sentence on the least and largest spread of gradient norms and rise of the loss."""
    rows = [row for row in setting["arms"] if row.get("grad_norm_cv") is not None]
    if not rows:
        return "Gradient norms were not measured."
    (even, uneven), (calm, wild) = _ends(rows, "grad_norm_cv"), _ends(rows, "loss_rise")
    return (
        f"Gradient norms vary least with {even['arm']} (CV {number(even['grad_norm_cv'])}), most with {uneven['arm']} "
        f"({number(uneven['grad_norm_cv'])}); the loss rises again by a factor of {number(calm['loss_rise'])} "
        f"({calm['arm']}) to {number(wild['loss_rise'])} ({wild['arm']})."
    )


def _ends(rows: Sequence[Row], key: str) -> tuple[Row, Row]:
    return min(rows, key=lambda row: float(row[key])), max(rows, key=lambda row: float(row[key]))
