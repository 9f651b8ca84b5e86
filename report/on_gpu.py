"""The section on GPUs: what experiments.gpu measured there, as rows and sentences."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from markupsafe import Markup

from analysis.style import STRONGEST
from report.wording import ABSENT, file_name, listed, number, percent, size

MODELS = {"distilbert": "DistilBERT's shape, short sentences", "gpt2": "GPT-2's shape with 4 layers, long texts"}
HOLDS = 0.1  # of a ratio, by which a prediction may be off
FEWEST = 8  # steps of an arm, below which nothing is concluded
OURS = ("balanced", "packed")
# of the arms that the report names; the strongest batching of others where it was measured
NAMES = {**{arm: f"`{arm}`" for arm in (*OURS, STRONGEST)}, "static again": "A/A"}
BATCHES = (32, 2048)  # samples a step of what is said in words
OTHERS = {"token_budget"}  # arms whose steps hold other samples than static's, so their gradient is another


def device(measured: Mapping[str, Any]) -> str:
    """Return the name of the device, as its driver gives it."""
    facts = measured["parts"]["device"]
    return str((facts.get("gpu") or {}).get("name") or facts.get("cpu", "unknown device"))


def slug(measured: Mapping[str, Any]) -> str:
    """Return the device's name as that of a file.

    >>> slug({"parts": {"device": {"gpu": {"name": "NVIDIA H100 80GB HBM3"}}}})
    'nvidia-h100-80gb-hbm3'
    """
    return file_name(device(measured))


def of_kind(measured: Mapping[str, Any], kind: str) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Yield the parts of a kind, with what comes behind it in their names."""
    for name, part in measured["parts"].items():
        if name.split()[0] == kind:
            yield name.partition(" ")[2], part


def heading(part: Mapping[str, Any]) -> str:
    """Return the setting of arms that ran in turn."""
    model = MODELS.get(part["model"], part["model"])
    return f"{model}, {part['world_size']} virtual ranks, {part['global_batch']:,} samples a step"


def when(part: Mapping[str, Any]) -> str:
    """Return the day and the code that a part was measured with."""
    return f"{part['date']}, code {part['commit']}"


def attention_cells(times: Mapping[str, Mapping[str, float]]) -> Iterator[list[str]]:
    """Yield a row for each kernel of attention: the milliseconds of a shape's first micro-batch, and of later ones."""
    for kernel, each in times.items():
        first, later = each["first_ms"], each["later_ms"]
        yield [kernel, f"{first:.1f}", f"{later:.1f}", number(first / later)]


def cells(arm: Mapping[str, Any]) -> list[str]:
    """Return the cells of an arm: its time, throughput over static's, what was predicted, padding and memory."""
    if "failed" in arm:
        return [ABSENT, ABSENT, ABSENT, f"failed: {arm['failed']}", "", "", ""]
    predicted, peak = arm["predicted"], arm["peak_memory_bytes"]
    return [
        *_times(arm), _throughput(arm),
        ABSENT if predicted is None or arm["arm"].startswith("static") else number(predicted),
        number(arm["padding"]), ABSENT if peak is None else size(peak),
    ]  # fmt: skip


def compiled_cells(arm: Mapping[str, Any]) -> list[str]:
    """Return the cells of an eager or compiled arm."""
    if "failed" in arm:
        return [ABSENT, ABSENT, ABSENT, f"failed: {arm['failed']}", number(arm.get("compiling_s")), "", ""]
    seconds = ABSENT if arm["compiling_s"] is None else number(arm["compiling_s"])
    ran = f"; ran eagerly: {arm['compile_failed']}" if arm["compile_failed"] else ""
    within, padding = str(arm["within_steps"]), number(arm["padding"])
    return [*_times(arm), _throughput(arm) + ran, seconds, within, padding]


def _times(arm: Mapping[str, Any]) -> list[str]:
    return [str(arm["steps"]), f"{1e3 * arm['step_s']:.1f}", f"{1e3 * arm['mean_step_s']:.1f}"]


def _throughput(arm: Mapping[str, Any]) -> str:
    if arm["throughput"] is None:
        return ABSENT
    return f"{number(arm['throughput'])} ({number(arm['low'])} to {number(arm['high'])})"


def cut_off(part: Mapping[str, Any]) -> str:
    """Return a sentence where a setting's time was up before its last step."""
    return f" Its time was up after {part['cut_off_s']} s; the steps done by then count." if "cut_off_s" in part else ""


def judged(part: Mapping[str, Any]) -> str:
    """Return sentences on a setting: which arm was fastest, how noisy it was, and whether predictions held."""
    arms: Sequence[Mapping[str, Any]] = [arm for arm in part["arms"] if arm.get("throughput") is not None]
    again = next((arm for arm in arms if arm["arm"] == "static again"), None)
    rest = [arm for arm in arms if not arm["arm"].startswith("static")]
    if again is None or not rest:
        return ""
    counts = [arm["steps"] for arm in arms]
    if min(counts) < FEWEST:
        return f"Each arm has {min(counts)} to {max(counts)} steps after the warm-up, too few to conclude from."
    noise = abs(again["throughput"] - 1)
    best = max((arm for arm in rest if arm["arm"] not in OTHERS), key=lambda arm: arm["throughput"])
    words = [f"Fastest on static's batches is {best['arm']}, {number(best['throughput'])} times static's throughput"]
    if best["throughput"] - 1 <= noise:
        words[0] += ", which the A/A pair does not tell from static"
    off = {arm["arm"]: arm["predicted"] / arm["throughput"] - 1 for arm in rest if arm["predicted"] is not None}
    if off:
        worst = max(off, key=lambda name: abs(off[name]))
        held = sum(abs(each) <= HOLDS for each in off.values())
        words.append(
            f"{held} of {len(off)} predictions are within {percent(HOLDS)} of what was measured; the worst is that of "
            f"{worst}, off by {off[worst]:+.1%}"
        )
    auto = next((arm for arm in arms if arm["chosen"]), None)
    if auto is not None:
        words.append(f"auto took {auto['chosen']}")
    return ". ".join(words) + "."


def over_static(measured: Mapping[str, Any], batch: int) -> dict[str, str]:
    """Return the named arms' throughput over static's with short sentences on 4 ranks, as far as enough steps ran."""
    rows = {name: _row(measured, arm, batch) for arm, name in NAMES.items()}
    auto = _row(measured, "auto", batch)
    if auto and auto["chosen"]:
        rows[f"`auto`, which took {auto['chosen']},"] = auto
    return {name: number(row["throughput"]) for name, row in rows.items() if row}


def _row(measured: Mapping[str, Any], arm: str, batch: int) -> Mapping[str, Any] | None:
    part = measured["parts"].get(f"speed distilbert 4 {batch}", {})
    row = next((each for each in part.get("arms", ()) if each["arm"] == arm and "failed" not in each), None)
    return row if row is not None and row["steps"] >= FEWEST else None


def no_gain(measured: Mapping[str, Any]) -> Markup:
    """Return the arms of 32 samples a step whose middle half of steps is not all faster than static's, with values."""
    rows = {arm: _row(measured, arm, BATCHES[0]) for arm in (*OURS, STRONGEST)}
    slow = {NAMES[arm]: number(row["throughput"]) for arm, row in rows.items() if row and row["low"] <= 1}
    return Markup(listed([f"{name} {value}" for name, value in slow.items()]) if slow else "")


def at_the_set_up(measured: Mapping[str, Any]) -> Markup:
    """Return a sentence on what balanced and packed have over static, by the samples of a step."""
    words = []
    for batch in BATCHES:
        of = over_static(measured, batch)
        if {NAMES[arm] for arm in OURS} <= of.keys():
            words.append(f"{listed([f'{name} {value}' for name, value in of.items()])} at {batch:,} samples a step")
    if not words:
        return Markup("")
    said = Markup("; ".join(words))
    return Markup(
        "On {}, with {} on four virtual ranks, the throughput over static's, in one launch of each size and so without "
        "an interval, is {}."
    ).format(device(measured), _shape(measured), said)


def _shape(measured: Mapping[str, Any]) -> Markup:
    """Return what of DistilBERT was trained there: its layers, on embedded sentences of few words."""
    made = measured["parts"].get("calibration distilbert", {}).get("identity")
    if made is None:
        return Markup("DistilBERT's layers")
    words = Markup("DistilBERT's layers, a vocabulary of {:,}, composed sentences and {}")
    return words.format(made["shape"]["vocab_size"], made["precision"])
