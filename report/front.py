"""The README's figure and its caption, filled from the frozen results like every other number."""

from pathlib import Path

from analysis.settings import AA
from analysis.style import STRONGEST
from ddpsched.records import write_text
from report.figures import GLOO, VIRTUAL
from report.measures import arms, speed
from report.render import as_text
from report.results import Results
from report.sentences import code, near_strongest
from report.wording import interval, listed

BEGIN, END = "<!-- results:begin -->", "<!-- results:end -->"
FIGURE = "report/figures/speeds.png"
SHOWN = ("balanced", "packed", STRONGEST)


def block(results: Results) -> str:
    """Return the text between the README's marks: the figure, its numbers, and on what they were measured."""
    found = results.of(VIRTUAL, *GLOO)
    numbers = [f"{code(arm)} {interval(speed(m, arm))}" for m in found[:1] for arm in arms(m) if arm in SHOWN]
    floor = "".join(f", static again (A/A) {interval(speed(m, AA))}" for m in found[:1])
    launches = sorted({str(len({run.seed for run in each.setting.runs})) for each in found})
    devices = sorted({each.table["device"] for each in found})
    near = [near_strongest(m, "balanced") for m in found[:1] if STRONGEST in m.setting.arms]
    beside = f"; `balanced` is {near[0]} it" if near else ""
    caption = (
        "*DistilBERT's shape on SST-2, four ranks, 32 samples a step. Samples a second over those of equal counts, on "
        "virtual ranks (a CPU core plays all ranks in turn, and exchanging gradients takes no time): "
        f"{', '.join(numbers)}{floor}. In brackets 95 % intervals of {listed(launches)} launches, all "
        f"arms in turn, on {listed([str(as_text(device)) for device in devices])}. With one micro-batch a "
        f"rank, the strongest padded batching of others that keeps static's gradient is transformers' {code(STRONGEST)}"
        f"{beside}.*"
    )
    words = "Throughput of each policy over static's, beside transformers' batch_rebalance, with the noise floor"
    return f"{BEGIN}\n![{words}]({FIGURE})\n\n{caption}\n{END}"


def update(readme: Path, results: Results) -> None:
    """Write the block between the marks of a README."""
    text = readme.read_text(encoding="utf-8")
    before, _, rest = text.partition(BEGIN)
    _, _, after = rest.partition(END)
    write_text(readme, before + block(results) + after)
